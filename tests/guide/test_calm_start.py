"""A guide's default start is calm: claims on both packages."""

import numpy as np
import pytest

from ngvi.guide import calm

#: Covariates of 40 counts.
X = np.random.default_rng(0).normal(size=(40, 4))


def _counts(ppl, scale):
    """A regression of counts, whose coefficients have wide priors or narrow ones."""

    def model(rows, y):
        with ppl.plate("columns", 4):
            w = ppl.sample("w", ppl.dist.Normal(ppl.array(0.0), scale))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(rows @ w)), obs=y)

    return model


def _starts(ppl, scale, **options):
    """Where guides of two seeds start, shape ``(2, 4)``."""
    args, found = (ppl.array(X), ppl.array(np.ones(40))), []
    for seed in range(2):
        guide = ppl.guide(_counts(ppl, scale), **options)
        ppl.forget()
        ppl.call(guide, *args, seed=seed)
        found.append(ppl.numpy(ppl.initial(guide).loc))
    return np.array(found)


def test_a_start_at_which_the_density_explodes_is_a_median_of_more_draws(ppl):
    assert (np.abs(_starts(ppl, 100.0)).max(1) < 15).all()


def test_a_strategy_of_the_users_is_kept(ppl):
    """The same one, named: the density explodes there, so that the default is not lucky."""
    strategy = ppl.infer.init_to_median if ppl.is_numpyro else ppl.autoguide.init_to_median
    assert (np.abs(_starts(ppl, 100.0, init_loc_fn=strategy(num_samples=15))).max(1) > 15).all()


def test_other_starts_are_those_of_the_ppl(ppl):
    strategy = ppl.infer.init_to_median if ppl.is_numpyro else ppl.autoguide.init_to_median
    named = _starts(ppl, 1.0, init_loc_fn=strategy(num_samples=15))
    np.testing.assert_array_equal(_starts(ppl, 1.0), named)


@pytest.mark.parametrize(("size", "count"), [(1, 1000), (10**5, 100), (10**7, 15), (0, 1000)])
def test_medians_of_many_latents_take_fewer_draws(size, count):
    assert calm.num_samples(size) == count


def test_what_is_calmer():
    assert calm.is_low(float("nan")) and calm.is_low(-1e7) and not calm.is_low(-1e5)
    assert calm.is_calmer(-1e4, -1e7) and calm.is_calmer(-1e9, float("nan"))
    assert not calm.is_calmer(-2e6, -3e6) and not calm.is_calmer(float("nan"), -1e7)
