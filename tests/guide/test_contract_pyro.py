"""The guide is a full citizen of Pyro's AutoContinuous contract."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
from scipy import stats

from tests import models
from tests.backends import load
from tests.reference import FAMILIES, SCALE_NAME, random_gaussian

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer import SVI, JitTrace_ELBO, Predictive, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuideList
from pyro.infer.autoguide.initialization import init_to_value
from pyro.nn import PyroModule, PyroParam, PyroSample

from pyro_ngvi import NaturalGaussianGuide, Snngm, families

D = 8  # sigma 1, weights 2, centre 1, effect 4


@pytest.fixture(autouse=True)
def _float64():
    with load("pyro").float64():
        yield


def _args():
    return tuple(map(torch.as_tensor, models.data()))


@pytest.fixture(params=FAMILIES)
def fitted(request):
    """A guide of the hierarchy model at a random Gaussian, and that Gaussian."""
    guide = NaturalGaussianGuide(models.pyro_models().hierarchy, request.param)
    guide(*_args())
    loc, scale = random_gaussian(request.param, D, np.random.default_rng(0))
    _set(guide, request.param, loc, 0.5 * scale)
    cls = {"covariance_cholesky": families.CovarianceCholesky, "diagonal": families.Diagonal}
    return guide, cls[request.param](torch.as_tensor(loc), torch.as_tensor(0.5 * scale))


def _set(guide, family, loc, scale):
    with torch.no_grad():
        guide.posterior.loc.copy_(torch.as_tensor(loc))
        getattr(guide.posterior, SCALE_NAME[family]).copy_(torch.as_tensor(scale))


def _index_of_centre(guide):
    return next(
        i for i in range(D) if dict(_centre(guide, torch.eye(D)[i])) != dict(_centre(guide, None))
    )


def _centre(guide, latent):
    latent = torch.zeros(D) if latent is None else latent
    return [
        (site["name"], value.item())
        for site, value in guide._unpack_latent(latent)
        if site["name"] == "centre"
    ]


def test_every_coordinate_is_a_named_parameter(fitted, request):
    guide, family = fitted
    names = {f"posterior.{name}" for name in family.coordinates()}
    assert {name.removesuffix("_unconstrained") for name, _ in guide.named_parameters()} == names
    assert {name.split(".", 1)[1] for name, _ in pyro.get_param_store().items()} == names


def test_median_is_the_constrained_mean_without_gradient(fitted):
    guide, family = fitted
    median = guide.median(*_args())
    assert set(median) == {"sigma", "weights", "centre", "effect"}
    assert not any(value.requires_grad for value in median.values())
    assert median["sigma"] > 0
    # The stick-breaking transform sums to one up to rounding.
    np.testing.assert_allclose(median["weights"].sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(median["centre"], family.mean[_index_of_centre(guide)])


def test_quantiles_are_those_of_the_marginals(fitted):
    guide, family = fitted
    quantiles = guide.quantiles([0.1, 0.5, 0.9], *_args())
    assert not any(value.requires_grad for value in quantiles.values())
    assert quantiles["effect"].shape == (3, 4)
    i = _index_of_centre(guide)
    expected = stats.norm(family.mean[i], family.stddev[i]).ppf([0.1, 0.5, 0.9])
    np.testing.assert_allclose(quantiles["centre"].squeeze(), expected, rtol=1e-9)  # torch's icdf


def test_get_posterior_is_a_pyro_distribution(fitted):
    guide, family = fitted
    posterior = guide.get_posterior()
    assert isinstance(posterior, TorchDistributionMixin)
    assert (posterior.batch_shape, posterior.event_shape) == ((), (D,))
    expected = stats.multivariate_normal(family.mean, family.covariance_matrix)
    with torch.no_grad():
        theta = posterior.sample((3,))
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
    guide, family = fitted
    base, transform = guide.get_base_dist(), guide.get_transform()
    z = base.sample((5,))
    assert z.shape == (5, D)
    with torch.no_grad():
        theta = transform(z)
        np.testing.assert_allclose(theta, family.sample(z), rtol=1e-12)
        pushed = dist.TransformedDistribution(base, [transform])
        np.testing.assert_allclose(pushed.log_prob(theta), family.log_prob(theta), rtol=1e-10)


def test_predictive_takes_the_guide(fitted):
    guide, family = fitted
    num = 500
    draws = Predictive(guide.model, guide=guide, num_samples=num)(*_args())
    assert draws["largest"].reshape(-1).shape == (num,)
    latents = Predictive(guide, num_samples=num)(*_args())
    # Predictive itself puts a dimension for the plate between draws and event.
    assert latents["weights"].shape == (num, 1, 3)
    assert latents["effect"].shape == (num, 4)
    i = _index_of_centre(guide)
    # Five standard errors of a mean.
    error = 5 * float(family.stddev[i]) / num**0.5
    assert abs(float(latents["centre"].mean() - family.mean[i])) < error


def test_sample_latent_draws_from_the_posterior(fitted):
    guide, family = fitted
    with torch.no_grad():
        pyro.set_rng_seed(0)
        draws = torch.stack([guide.sample_latent() for _ in range(2000)])
    # Five standard errors.
    error = 5 * family.stddev / 2000**0.5
    assert ((draws.mean(0) - family.mean).abs() < error).all()


def test_guides_are_replayed_in_outer_plates(fitted):
    guide, _ = fitted
    with pyro.plate("outer", 6, dim=-2):
        trace = poutine.trace(guide).get_trace(*_args())
    assert trace.nodes["effect"]["value"].shape == (6, 4)


# -- saving ---------------------------------------------------------------------------


def module_level_model():
    pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))


@pytest.fixture
def small(request):
    guide = NaturalGaussianGuide(module_level_model)
    guide()
    _set(guide, "covariance_cholesky", [1.0, 2.0], [[1.0, 0.0], [0.5, 2.0]])
    return guide


@pytest.mark.parametrize("through", ["pickle", "torch.save", "deepcopy"])
def test_a_guide_survives_saving(small, through):
    median, covariance = small.median()["x"], small.get_posterior().covariance_matrix
    if through == "pickle":
        back = pickle.loads(pickle.dumps(small))
    elif through == "torch.save":
        buffer = io.BytesIO()
        torch.save(small, buffer)
        pyro.clear_param_store()
        buffer.seek(0)
        back = torch.load(buffer, weights_only=False)
    else:
        back = copy.deepcopy(small)
    np.testing.assert_array_equal(back.median()["x"], median)
    np.testing.assert_array_equal(
        back.get_posterior().covariance_matrix.detach(), covariance.detach()
    )


def test_a_saved_guide_is_trained_on(small):
    """The marks by which optimisers know coordinates survive the round trip."""
    back = copy.deepcopy(small)
    svi = SVI(module_level_model, back, Snngm({"lr": 0.01}), Trace_ELBO())
    before = back.posterior.loc.detach().clone()
    svi.step()
    assert (back.posterior.loc != before).any()


def test_a_state_dict_restores_the_posterior(small):
    saved = small.state_dict()
    other = NaturalGaussianGuide(module_level_model)
    other()
    pyro.clear_param_store()
    other.load_state_dict(saved)
    np.testing.assert_array_equal(other.median()["x"], [1.0, 2.0])


def test_a_traced_guide_draws_the_same(small):
    class Draw(torch.nn.Module):
        def __init__(self, guide):
            super().__init__()
            self.guide = guide

        def forward(self):
            return self.guide()["x"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated and its tracer nervous
        traced = torch.jit.trace(Draw(small), (), check_trace=False)
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)
    pyro.set_rng_seed(0)
    expected = small()["x"]
    for module in (traced, loaded):
        pyro.set_rng_seed(0)
        np.testing.assert_array_equal(module().detach(), expected.detach())


# -- in stock SVI ---------------------------------------------------------------------

Y = torch.tensor([1.0, 2.0, 4.0, 5.0], dtype=torch.float64)
POSTERIOR_VARIANCE = 1 / (4 + 0.01)
POSTERIOR_MEAN = POSTERIOR_VARIANCE * 12.0


def _conjugate(y):
    # y_i ~ N(mu, 1), mu ~ N(0, 10^2).
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def _decreasing(steps):
    return lambda t: 0.05 * max(0.0, 1 - t / steps) + 1e-12


@pytest.mark.parametrize("elbo", [Trace_ELBO, JitTrace_ELBO])
@pytest.mark.parametrize(
    "particles",
    [{}, {"num_particles": 4, "vectorize_particles": True, "max_plate_nesting": 1}],
    ids=["1 particle", "4 particles"],
)
def test_stock_svi_finds_a_conjugate_posterior(elbo, particles):
    guide = NaturalGaussianGuide(_conjugate)
    svi = SVI(_conjugate, guide, Snngm({"lr": _decreasing(500)}), elbo(**particles))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        for _ in range(500):
            svi.step(Y)
    posterior = guide.get_posterior()
    # The schedule ends at zero and q is exact there: what is left is the last steps' size.
    np.testing.assert_allclose(posterior.mean.detach(), [POSTERIOR_MEAN], atol=2e-3)
    np.testing.assert_allclose(posterior.variance.detach(), [POSTERIOR_VARIANCE], atol=2e-3)


@pytest.mark.parametrize("local", [False, True])
def test_module_local_params_on_and_off(local):
    with pyro.settings.context(module_local_params=local):
        guide = NaturalGaussianGuide(_conjugate)
        svi = SVI(_conjugate, guide, Snngm({"lr": _decreasing(300)}), Trace_ELBO())
        for _ in range(300):
            svi.step(Y)
        assert len(pyro.get_param_store()) == (0 if local else 2)
        np.testing.assert_allclose(guide.median(Y)["mu"], POSTERIOR_MEAN, atol=5e-3)


def test_local_params_of_two_guides_are_their_own():
    with pyro.settings.context(module_local_params=True):
        first, second = NaturalGaussianGuide(_conjugate), NaturalGaussianGuide(_conjugate)
        for guide in (first, second):
            guide(Y)
        svi = SVI(_conjugate, first, Snngm({"lr": 0.1}), Trace_ELBO())
        before = second.median(Y)["mu"]
        svi.step(Y)
        assert second.median(Y)["mu"] == before


def test_model_parameters_are_learned_at_the_same_time():
    def model(y):
        scale = pyro.param("scale", torch.tensor(1.0), constraint=constraints.positive)
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=y)

    optimiser = Snngm({"lr": _decreasing(1000)}, other=pyro.optim.Adam({"lr": 0.02}))
    svi = SVI(model, NaturalGaussianGuide(model), optimiser, Trace_ELBO())
    for _ in range(1000):
        svi.step(Y)
    # Maximum of the evidence over the scale: about sqrt(sum (y - ybar)^2 / (n - 1)); the noise
    # of Adam at a rate of 0.02 is a few hundredths.
    assert float(pyro.param("scale")) == pytest.approx(float(Y.std()), abs=0.15)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.slope = PyroSample(dist.Normal(0.0, 10.0))
        self.scale = PyroParam(torch.tensor(1.0), constraints.positive)

    def forward(self, x, y=None):
        slope = self.slope
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(slope * x, self.scale), obs=y)


def test_a_pyromodule_model():
    model, x = Regression(), torch.arange(4.0)
    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, Snngm({"lr": _decreasing(200)}), Trace_ELBO())
    for _ in range(200):
        svi.step(x, Y)
    slope = float((x * Y).sum() / (x * x).sum())
    assert float(guide.median(x, Y)["slope"]) == pytest.approx(slope, abs=0.05)
    assert not any("model" in name for name, _ in guide.named_parameters())


def test_an_enumerated_latent_is_left_to_trace_enum_elbo():
    model = models.pyro_models().mixture
    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, Snngm({"lr": _decreasing(200)}), TraceEnum_ELBO(max_plate_nesting=1))
    losses = [svi.step(*_args()) for _ in range(200)]
    assert np.mean(losses[-50:]) < np.mean(losses[:10])
    assert "component" not in guide.median(*_args())


def test_an_autoguidelist_takes_it_beside_another_guide():
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        sigma = pyro.sample("sigma", dist.LogNormal(0.0, 0.1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, sigma), obs=y)

    guide = AutoGuideList(model)
    guide.append(NaturalGaussianGuide(poutine.block(model, hide=["sigma"])))
    guide.append(AutoDelta(poutine.block(model, expose=["sigma"])))
    optimiser = Snngm({"lr": _decreasing(300)}, other=pyro.optim.Adam({"lr": 0.01}))
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(300):
        svi.step(Y)
    median = guide.median(Y)
    assert set(median) == {"mu", "sigma"}
    assert float(median["mu"]) == pytest.approx(3.0, abs=0.2)  # N(0, 100) hardly shrinks


def test_two_natural_guides_in_a_list_move_jointly():
    def model():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(0.0, 1.0))

    guide = AutoGuideList(model)
    guide.append(NaturalGaussianGuide(poutine.block(model, expose=["a"])))
    guide.append(NaturalGaussianGuide(poutine.block(model, expose=["b"]), "diagonal"))
    guide()
    before = torch.cat([p.detach().reshape(-1).clone() for p in guide.parameters()])
    SVI(model, guide, Snngm({"lr": 0.01}), Trace_ELBO()).step()
    after = torch.cat([p.detach().reshape(-1) for p in guide.parameters()])
    # Table 5: the first step has length alpha_0 sqrt(len(lambda)), over both together.
    np.testing.assert_allclose((after - before).norm(), 0.01 * 4**0.5, rtol=1e-10)


def test_a_subsampled_likelihood_finds_the_same_posterior():
    y = torch.as_tensor(np.random.default_rng(0).normal(3.0, 1.0, size=40))

    def model(subsample_size=None):
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        with pyro.plate("data", 40, subsample_size=subsample_size) as index:
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])

    guide = NaturalGaussianGuide(model)
    svi = SVI(model, guide, Snngm({"lr": _decreasing(2000)}), Trace_ELBO())
    for _ in range(2000):
        svi.step(subsample_size=10)
    variance = 1 / (40 + 0.01)
    posterior = guide.get_posterior()
    # Minibatch noise is averaged by a schedule that ends at zero: a third of a deviation.
    assert float(posterior.mean) == pytest.approx(float(variance * y.sum()), abs=0.05)
    assert float(posterior.variance) == pytest.approx(variance, rel=0.4)


def test_init_loc_fn_and_init_scale_are_used():
    start = init_to_value(values={"mu": torch.tensor(2.5)})
    guide = NaturalGaussianGuide(_conjugate, init_loc_fn=start, init_scale=0.2)
    guide(Y)
    posterior = guide.get_posterior()
    np.testing.assert_array_equal(posterior.mean.detach(), [2.5])
    np.testing.assert_allclose(posterior.stddev.detach(), [0.2], rtol=1e-12)


def test_float32_is_followed_where_torch_uses_it():
    torch.set_default_dtype(torch.float32)  # the fixture restores it
    guide = NaturalGaussianGuide(_conjugate)
    svi = SVI(_conjugate, guide, Snngm({"lr": _decreasing(300)}), Trace_ELBO())
    for _ in range(300):
        svi.step(Y.float())
    assert {p.dtype for p in guide.parameters()} == {torch.float32}
    np.testing.assert_allclose(guide.median(Y.float())["mu"], POSTERIOR_MEAN, atol=0.05)


# -- what the user reads --------------------------------------------------------------


def test_repr_tells_the_family_and_why():
    guide = NaturalGaussianGuide(_conjugate)
    assert repr(guide) == "NaturalGaussianGuide(family='auto', not set up yet)"
    guide(Y)
    assert "family='covariance_cholesky'" in repr(guide)
    assert "auto" in repr(guide)
    assert "d=1, one dense block, 2 parameters" in repr(guide)


def test_auto_is_of_low_rank_beyond_a_thousand_latents():
    def model():
        pyro.sample("x", dist.Normal(torch.zeros(1001), 1.0).to_event(1))

    guide = NaturalGaussianGuide(model)
    guide()
    assert isinstance(guide.family, families.LowRankPrecision)
    assert "1001 latents, dense only up to 1000" in repr(guide)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_may_be_given_by_name_class_or_instance(family):
    cls = {"covariance_cholesky": families.CovarianceCholesky, "diagonal": families.Diagonal}
    for requested in (family, cls[family], cls[family]()):
        pyro.clear_param_store()
        guide = NaturalGaussianGuide(_conjugate, requested)
        guide(Y)
        assert hasattr(guide.posterior, SCALE_NAME[family])
