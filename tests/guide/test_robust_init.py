"""A guide's default start is robust: claims on both packages."""

import numpy as np
import pytest

from ngvi.guide.robust_init import ROBUST_INIT, RobustInit

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
    assert ROBUST_INIT.num_samples_for(size) == count


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


def test_another_set_up_of_a_guide_looks_anew(ppl):
    """The first fails, after it has found how narrow it must be."""
    model, (income, y) = _incomes(ppl, 1e-4)
    guide = ppl.guide(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(guide), "_choose_family", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ppl.call(guide, income, y)
    ppl.forget()
    ppl.call(guide, income / 4e4, y)
    np.testing.assert_allclose(ppl.numpy(ppl.initial(guide).stddev), 0.1, rtol=1e-6)


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


def test_a_look_about_the_start_does_not_run_the_model_again_numpyro():
    """Its gradient at the start, and its values about it, are of one run."""
    numpyro = pytest.importorskip("numpyro")
    import numpyro_ngvi

    runs = []

    def model():
        runs.append(1)
        numpyro.sample("x", numpyro.distributions.Normal(0.0, 1.0))

    guide = numpyro_ngvi.NaturalGaussianGuide(model)
    with numpyro.handlers.seed(rng_seed=0):
        guide.set_up()
    assert len(runs) == 2  # and once for its structure


def test_a_low_start_stays_where_the_model_fails_at_others_pyro(monkeypatch):
    pyro = pytest.importorskip("pyro")
    pyro_ngvi = pytest.importorskip("pyro_ngvi")
    fails, others = [], []

    def model():
        w = pyro.sample("w", pyro.distributions.Normal(0.0, 1.0))
        if fails:
            raise ValueError("at another start")
        return w

    monkeypatch.setattr(RobustInit, "is_low", lambda *_: fails.append(True) or len(others) < 2)
    monkeypatch.setattr(
        RobustInit, "is_better", lambda *of: fails.clear() or bool(others.append(of))
    )
    guide = pyro_ngvi.NaturalGaussianGuide(model, init_scale=0.1)
    guide()
    assert [np.isnan(level) for _, level, _ in others] == [True, True]


def test_how_narrow():
    levels = [[-1e9]] * 3 + [[-10.0, -14.0], [-10.0, -10.1]] + [[-10.0]] * 2
    assert ROBUST_INIT.narrow_scale(levels, start=-10.0, dim=2) == ROBUST_INIT.narrower[3]
    assert ROBUST_INIT.narrow_scale([[np.nan]] * 7, start=-10.0, dim=2) == ROBUST_INIT.narrower[-1]
    assert ROBUST_INIT.explodes([-10.0, np.nan], -10.0) and ROBUST_INIT.explodes(
        [-1e8, -10.0], -1e6
    )
    assert not ROBUST_INIT.explodes([-1e5] * 4, -10.0) and not ROBUST_INIT.explodes([-2e7], -1e7)
    assert not ROBUST_INIT.explodes(ROBUST_INIT.directions(10**5 + 1)[:, 0], -10.0)


def test_which_start_is_better():
    assert (
        ROBUST_INIT.is_low(float("nan"))
        and ROBUST_INIT.is_low(-1e7)
        and not ROBUST_INIT.is_low(-1e5)
    )
    assert ROBUST_INIT.is_better(-1e4, -1e7) and ROBUST_INIT.is_better(-1e9, float("nan"))
    assert not ROBUST_INIT.is_better(-2e6, -3e6) and not ROBUST_INIT.is_better(float("nan"), -1e7)
