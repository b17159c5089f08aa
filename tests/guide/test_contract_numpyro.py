"""The guide is a full citizen of NumPyro's AutoContinuous contract."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import stats

from tests import models
from tests.backends import load
from tests.reference import FAMILIES, SCALE_NAME, random_gaussian

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro import handlers
from numpyro.infer import SVI, Predictive, Trace_ELBO, TraceEnum_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoGuideList
from numpyro.infer.initialization import init_to_value

from numpyro_ngvi import SVI as StatefulSVI
from numpyro_ngvi import NaturalGaussianGuide, Snngm, families

D = 8  # sigma 1, weights 2, centre 1, effect 4


@pytest.fixture(autouse=True)
def _float64():
    with load("numpyro").float64():
        yield


def _args():
    X, group, y = models.data()
    return jnp.asarray(X), jnp.asarray(group, "int32"), jnp.asarray(y)


@pytest.fixture(scope="module", params=FAMILIES)
def fitted(request):
    """A guide of the hierarchy model, and parameters at a random Gaussian."""
    with load("numpyro").float64():
        guide = NaturalGaussianGuide(models.numpyro_models().hierarchy, request.param)
        with handlers.seed(rng_seed=0), handlers.trace():
            guide(*_args())
        loc, scale = random_gaussian(request.param, D, np.random.default_rng(0))
        cls = {"covariance_cholesky": families.CovarianceCholesky, "diagonal": families.Diagonal}
        family = cls[request.param](jnp.asarray(loc), jnp.asarray(0.5 * scale))
        return guide, {"auto_posterior": family}, family


def _unconstrained_order(guide):
    """Index of ``centre`` in the latent vector, found by moving one coordinate at a time."""
    base = guide._unpack_and_constrain(jnp.zeros(D), {})["centre"]
    return next(
        i for i in range(D) if guide._unpack_and_constrain(jnp.eye(D)[i], {})["centre"] != base
    )


def test_the_posterior_is_one_typed_parameter():
    guide = NaturalGaussianGuide(models.numpyro_models().hierarchy, init_scale=0.2)
    svi = SVI(guide.model, guide, Snngm(), Trace_ELBO())
    params = svi.get_params(svi.init(jax.random.key(0), *_args()))
    assert list(params) == ["auto_posterior"]
    assert isinstance(params["auto_posterior"], families.CovarianceCholesky)
    # init_scale rounds twice on its way to a standard deviation.
    np.testing.assert_allclose(params["auto_posterior"].stddev, 0.2, rtol=1e-12)


def test_median_is_the_constrained_mean(fitted):
    guide, params, family = fitted
    median = guide.median(params)
    assert set(median) >= {"sigma", "weights", "centre", "effect"}
    assert median["sigma"] > 0
    assert median["weights"].shape == (3,)
    # The stick-breaking transform sums to one up to rounding.
    np.testing.assert_allclose(median["weights"].sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(median["centre"], family.mean[_unconstrained_order(guide)])


@pytest.mark.parametrize("levels", [0.3, [0.1, 0.5, 0.9]])
def test_quantiles_are_those_of_the_marginals(fitted, levels):
    guide, params, family = fitted
    quantiles = guide.quantiles(params, levels)
    shape = np.shape(levels)
    assert quantiles["effect"].shape == (*shape, 4)
    assert quantiles["sigma"].shape == shape
    i = _unconstrained_order(guide)
    expected = stats.norm(family.mean[i], family.stddev[i]).ppf(levels)
    np.testing.assert_allclose(quantiles["centre"], expected, rtol=1e-9)  # jax's own icdf


def test_sample_posterior_has_the_marginals_and_the_deterministic_sites(fitted):
    guide, params, family = fitted
    num = 20_000
    draws = guide.sample_posterior(jax.random.key(1), params, *_args(), sample_shape=(num,))
    assert draws["weights"].shape == (num, 3)
    assert draws["effect"].shape == (num, 4)
    i = _unconstrained_order(guide)
    # Five standard errors of a mean and of a standard deviation.
    error = 5 * float(family.stddev[i]) / num**0.5
    assert abs(draws["centre"].mean() - family.mean[i]) < error
    assert abs(draws["centre"].std() - family.stddev[i]) < error
    np.testing.assert_array_equal(draws["largest"][:, 0], draws["effect"].max(-1))


def test_get_posterior_is_a_numpyro_distribution(fitted):
    guide, params, family = fitted
    posterior = guide.get_posterior(params)
    assert isinstance(posterior, dist.Distribution)
    assert (posterior.batch_shape, posterior.event_shape) == ((), (D,))
    expected = stats.multivariate_normal(family.mean, family.covariance_matrix)
    theta = posterior.sample(jax.random.key(0), (3,))
    # Condition numbers below 1e3 in float64.
    np.testing.assert_allclose(posterior.log_prob(theta), expected.logpdf(theta), rtol=1e-10)
    np.testing.assert_allclose(posterior.mean, family.mean)
    np.testing.assert_allclose(posterior.variance, family.variance, rtol=1e-12)
    if isinstance(family, families.CovarianceCholesky):
        np.testing.assert_allclose(
            posterior.covariance_matrix, family.covariance_matrix, rtol=1e-12, atol=1e-14
        )
        np.testing.assert_allclose(
            posterior.precision_matrix, family.precision_matrix, rtol=1e-9, atol=1e-12
        )


def test_get_transform_takes_the_base_to_the_posterior(fitted):
    guide, params, family = fitted
    base, transform = guide.get_base_dist(), guide.get_transform(params)
    z = base.sample(jax.random.key(0), (5,))
    assert z.shape == (5, D)
    np.testing.assert_allclose(transform(z), family.sample(z), rtol=1e-12)
    pushed = dist.TransformedDistribution(base, transform)
    np.testing.assert_allclose(
        pushed.log_prob(transform(z)), family.log_prob(transform(z)), rtol=1e-10
    )


def test_predictive_takes_the_guide(fitted):
    guide, params, _ = fitted
    X, group, _ = _args()
    latents = Predictive(guide, params=params, num_samples=7)(jax.random.key(0), *_args())
    assert latents["effect"].shape == (7, 4)
    model = models.numpyro_models().hierarchy

    def without_y(X, group):
        return handlers.condition(model, {})(X, group, jnp.zeros(len(X)))

    predictive = Predictive(without_y, guide=guide, params=params, num_samples=7)
    draws = predictive(jax.random.key(0), X, group)
    assert draws["largest"].shape == (7, 1)


def test_a_guide_survives_pickling_and_deepcopy(fitted):
    guide, params, _ = fitted
    back = pickle.loads(pickle.dumps(params))
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    before = guide.median(params)
    after = guide.median(back)
    for site in before:
        np.testing.assert_array_equal(before[site], after[site])


def test_pickling_a_guide_of_a_module_level_model():
    guide = NaturalGaussianGuide(module_level_model)
    with handlers.seed(rng_seed=0), handlers.trace():
        guide()
    back = pickle.loads(pickle.dumps(guide))
    params = {"auto_posterior": families.CovarianceCholesky(jnp.ones(2), jnp.eye(2))}
    np.testing.assert_array_equal(back.median(params)["x"], guide.median(params)["x"])


def module_level_model():
    numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))


# -- in stock SVI ---------------------------------------------------------------------


def _conjugate(y):
    # Evidence: y_i ~ N(mu, 1), mu ~ N(0, 10^2).
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


Y = np.array([1.0, 2.0, 4.0, 5.0])
POSTERIOR_VARIANCE = 1 / (4 + 0.01)
POSTERIOR_MEAN = POSTERIOR_VARIANCE * Y.sum()


def _decreasing(steps):
    return optax.linear_schedule(0.05, 0.0, steps)


@pytest.mark.parametrize(
    "loss",
    [
        Trace_ELBO(),
        Trace_ELBO(num_particles=4),
        Trace_ELBO(num_particles=4, vectorize_particles=False),
    ],
    ids=["1 particle", "4 particles", "4 in sequence"],
)
def test_stock_svi_run_finds_a_conjugate_posterior(loss):
    guide = NaturalGaussianGuide(_conjugate)
    svi = SVI(_conjugate, guide, Snngm(_decreasing(1000)), loss)
    params = svi.run(jax.random.key(0), 1000, jnp.asarray(Y), progress_bar=False).params
    posterior = guide.get_posterior(params)
    # The schedule ends at zero and q is exact there: what is left is the last steps' size.
    np.testing.assert_allclose(posterior.mean, [POSTERIOR_MEAN], atol=1e-3)
    np.testing.assert_allclose(posterior.variance, [POSTERIOR_VARIANCE], atol=1e-3)


def test_forward_mode_differentiation_gives_the_same_step():
    guide = NaturalGaussianGuide(_conjugate)
    svi = SVI(_conjugate, guide, Snngm(0.01), Trace_ELBO())
    state = svi.init(jax.random.key(0), jnp.asarray(Y))
    reverse, _ = svi.update(state, jnp.asarray(Y))
    forward, _ = svi.update(state, jnp.asarray(Y), forward_mode_differentiation=True)
    for a, b in zip(
        jax.tree.leaves(svi.get_params(reverse)),
        jax.tree.leaves(svi.get_params(forward)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)  # rounding


def test_model_parameters_are_learned_at_the_same_time():
    def model(y):
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, scale), obs=y)

    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, Snngm(_decreasing(3000), other=optax.adam(0.02)), Trace_ELBO())
    params = svi.run(jax.random.key(0), 3000, jnp.asarray(Y), progress_bar=False).params
    assert set(params) == {"auto_posterior", "scale"}
    # Maximum of the evidence over the scale: about sqrt(sum (y - ybar)^2 / (n - 1)); the noise
    # of Adam at a rate of 0.02 is a few hundredths.
    assert params["scale"] == pytest.approx(Y.std(ddof=1), abs=0.15)


def test_an_enumerated_latent_is_left_to_trace_enum_elbo():
    model = models.numpyro_models().mixture
    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, Snngm(_decreasing(300)), TraceEnum_ELBO())
    result = svi.run(jax.random.key(0), 300, *_args(), progress_bar=False)
    assert np.isfinite(result.losses).all()
    assert result.losses[-50:].mean() < result.losses[:10].mean()
    assert "component" not in guide.median(result.params)


def test_an_autoguidelist_takes_it_beside_another_guide():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    guide = AutoGuideList(model)
    guide.append(NaturalGaussianGuide(handlers.block(model, hide=["sigma"]), prefix="natural"))
    guide.append(AutoDelta(handlers.block(model, expose=["sigma"]), prefix="delta"))
    svi = SVI(model, guide, Snngm(_decreasing(300), other=optax.adam(0.01)), Trace_ELBO())
    result = svi.run(jax.random.key(0), 300, jnp.asarray(Y), progress_bar=False)
    assert "natural_posterior" in result.params
    median = guide.median(result.params)
    assert set(median) == {"mu", "sigma"}
    assert median["mu"] == pytest.approx(3.0, abs=0.2)  # a prior of N(0, 100) hardly shrinks


def test_init_loc_fn_and_prefix_are_used():
    guide = NaturalGaussianGuide(
        _conjugate, prefix="q", init_loc_fn=init_to_value(values={"mu": 2.5})
    )
    svi = SVI(_conjugate, guide, Snngm(), Trace_ELBO())
    params = svi.get_params(svi.init(jax.random.key(0), jnp.asarray(Y)))
    np.testing.assert_array_equal(params["q_posterior"].mean, [2.5])


def test_float32_is_followed_where_jax_uses_it():
    with jax.enable_x64(False):
        guide = NaturalGaussianGuide(_conjugate)
        svi = SVI(_conjugate, guide, Snngm(_decreasing(300)), Trace_ELBO())
        result = svi.run(jax.random.key(0), 300, jnp.asarray(Y, "float32"), progress_bar=False)
        family = result.params["auto_posterior"]
        assert {leaf.dtype for leaf in jax.tree.leaves(family)} == {jnp.dtype("float32")}
        np.testing.assert_allclose(family.mean, [POSTERIOR_MEAN], atol=0.05)


# -- what the user reads --------------------------------------------------------------


def test_repr_tells_the_family_and_why():
    guide = NaturalGaussianGuide(_conjugate)
    assert repr(guide) == "NaturalGaussianGuide(family='auto', not set up yet)"
    with handlers.seed(rng_seed=0), handlers.trace():
        guide(jnp.asarray(Y))
    assert "family='covariance_cholesky'" in repr(guide)
    assert "auto" in repr(guide)
    assert "d=1, one dense block, 2 parameters" in repr(guide)


def test_auto_is_of_low_rank_beyond_a_thousand_latents():
    def model():
        numpyro.sample("x", dist.Normal(jnp.zeros(1001), 1.0).to_event(1))

    guide = NaturalGaussianGuide(model)
    with handlers.seed(rng_seed=0), handlers.trace():
        guide()
    assert isinstance(guide.family, families.LowRankPrecision)
    assert "1001 latents, dense only up to 1000" in repr(guide)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_may_be_given_by_name_class_or_instance(family):
    cls = {"covariance_cholesky": families.CovarianceCholesky, "diagonal": families.Diagonal}
    for requested in (family, cls[family], cls[family]()):
        guide = NaturalGaussianGuide(_conjugate, requested)
        with handlers.seed(rng_seed=0), handlers.trace() as trace:
            guide(jnp.asarray(Y))
        assert hasattr(trace["auto_posterior"]["value"], SCALE_NAME[family])


# -- the stateful SVI -----------------------------------------------------------------


def test_step_is_init_and_update():
    stock = SVI(_conjugate, NaturalGaussianGuide(_conjugate), Snngm(0.01), Trace_ELBO())
    state, expected = stock.init(jax.random.key(3), jnp.asarray(Y)), []
    for _ in range(3):
        state, loss = stock.update(state, jnp.asarray(Y))
        expected.append(float(loss))
    guide = NaturalGaussianGuide(_conjugate)
    svi = StatefulSVI(_conjugate, guide, Snngm(0.01), Trace_ELBO(), rng_key=jax.random.key(3))
    losses = [float(svi.step(jnp.asarray(Y))) for _ in range(3)]
    # Compiled and not: sums in another order.
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert guide.median(svi.params)["mu"].shape == ()


def test_step_compiles_once_for_arguments_of_one_shape():
    calls = []

    def model(y, scale, flag=True):
        calls.append(1)
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, scale if flag else 1.0), obs=y)

    guide = NaturalGaussianGuide(model)
    svi = StatefulSVI(model, guide, Snngm(0.01), Trace_ELBO(), rng_key=jax.random.key(0))
    svi.step(jnp.asarray(Y), 1.0)
    compiled = len(calls)
    svi.step(jnp.asarray(Y + 1), 2.0)  # arrays and floats may change
    assert len(calls) == compiled
    svi.step(jnp.asarray(Y), 1.0, flag=False)  # anything else is a constant
    assert len(calls) > compiled


def test_init_update_run_and_evaluate_are_the_stock_ones():
    guide = NaturalGaussianGuide(_conjugate)
    svi = StatefulSVI(_conjugate, guide, Snngm(_decreasing(50)), Trace_ELBO())
    result = svi.run(jax.random.key(0), 50, jnp.asarray(Y), progress_bar=False)
    assert np.isfinite(float(svi.evaluate(result.state, jnp.asarray(Y))))
    for name in ("init", "update", "run", "evaluate", "get_params"):
        assert getattr(StatefulSVI, name) is getattr(SVI, name)
