"""A guide's default start is robust: claims on both packages."""

import numpy as np
import pytest

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


@pytest.mark.fast_in_numpyro
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


def _incomes(ppl, prior_sd):
    """Counts by income, on the log scale."""

    def model(income, y):
        w = ppl.sample("w", ppl.dist.Normal(ppl.array(0.0), prior_sd))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(w * income)), obs=y)

    return model, (ppl.array(4e4 * np.exp(X[:, 0] / 2)), ppl.array(np.ones(40)))


def _initial(ppl, model, args, **options):
    guide = ppl.guide(model, **options)
    ppl.forget()
    ppl.call(guide, *args, seed=0)
    return ppl.initial(guide)


def test_a_guide_starts_narrow_where_wide_draws_explode(ppl):
    """Draws with the usual sd have rates of ``exp(4000)``; the posterior's sd is 4e-6."""
    model, args = _incomes(ppl, 1e-4)
    assert 1e-8 < float(_initial(ppl, model, args).stddev[0]) < 2e-4


def test_a_width_of_the_users_is_kept_and_other_models_have_the_usual_one(ppl):
    model, args = _incomes(ppl, 1e-4)
    wide = _initial(ppl, model, args, init_scale=0.1)
    plain_model = _initial(ppl, _counts(ppl, 1.0), (ppl.array(X), ppl.array(np.ones(40))))
    for family in (wide, plain_model):
        np.testing.assert_allclose(ppl.numpy(family.stddev), 0.1, rtol=1e-6)


@pytest.mark.fast_in_numpyro
def test_globals_beside_standardised_locals_start_narrow_if_the_guide_is_asked_to(ppl):
    """As ``NaturalGaussianGuide`` does from the same start, and the locals with an sd of 1."""

    def model(income, y):
        w = ppl.sample("w", ppl.dist.Normal(ppl.array(0.0), 1e-4))
        with ppl.plate("rows", len(y)):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(w * income + effect)), obs=y)

    args = ppl.array(4e4 * np.exp(X[:5, 0] / 2)), ppl.array(np.ones(5))
    start = ppl.start_at(w=1e-5, effect=np.zeros(5))
    guide = ppl.package.ReparametrizedGaussianGuide(model, init_loc_fn=start, init_scale=None)
    ppl.set_up(guide, *args)
    np.testing.assert_allclose(ppl.numpy(ppl.initial(guide).stddev), [1e-5, 1, 1, 1, 1, 1])
    plain = _initial(ppl, model, args, init_loc_fn=start)
    np.testing.assert_allclose(ppl.numpy(plain.stddev), 1e-5)


def test_a_start_is_at_the_means_of_priors_where_their_medians_are_impossible(ppl):
    """Rates are infinite or zero, unless the weight is some 700 / 4e4 from zero."""
    model, args = _incomes(ppl, 1e4)
    assert float(_initial(ppl, model, args).loc[0]) == 0.0


@pytest.mark.parametrize("transform", ["jit", "vmap"])
def test_the_first_call_may_be_part_of_a_program_numpyro(transform):
    """There nothing can be decided by what is found, and the width is the usual one."""
    jax, numpyro_ngvi = pytest.importorskip("jax"), pytest.importorskip("numpyro_ngvi")
    numpyro = pytest.importorskip("numpyro")

    def model(y):
        w = numpyro.sample("w", numpyro.distributions.Normal(0.0, 1.0))
        numpyro.sample("y", numpyro.distributions.Normal(w, 1.0), obs=y)

    guide = numpyro_ngvi.NaturalGaussianGuide(model)
    svi = numpyro.infer.SVI(model, guide, numpyro_ngvi.BLR(), numpyro_ngvi.NaturalELBO())
    keys = jax.random.split(jax.random.key(0), 2)
    init = jax.jit(svi.init) if transform == "jit" else jax.vmap(svi.init, in_axes=(0, None))
    state = init(keys[0] if transform == "jit" else keys, jax.numpy.ones(3))
    posterior = svi.get_params(state)["auto_posterior"]
    np.testing.assert_allclose(posterior.stddev, 0.1, rtol=1e-6)
