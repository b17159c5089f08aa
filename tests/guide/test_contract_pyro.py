"""Of the guide's contract, what only Pyro has: parameters in a store, modules, and outer plates."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest

from tests import models
from tests.models import LOCATION_MEAN, Y
from tests.reference import FAMILIES

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample

from pyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide


@pytest.fixture(autouse=True)
def ppl(pyro_backend):
    return pyro_backend


@pytest.fixture(params=FAMILIES)
def guide(ppl, request):
    """A guide of the hierarchy, set up."""
    guide = NaturalGaussianGuide(models.hierarchy(ppl), request.param)
    guide(*map(ppl.argument, models.data()))
    return guide


def test_guides_are_replayed_in_outer_plates(ppl, guide):
    with pyro.plate("outer", 6, dim=-2):
        trace = poutine.trace(guide).get_trace(*map(ppl.argument, models.data()))
    assert trace.nodes["effect"]["value"].shape == (6, 4)


# -- saving ---------------------------------------------------------------------------


def module_level_model():
    pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))


@pytest.fixture
def small(ppl):
    guide = NaturalGaussianGuide(module_level_model)
    guide()
    ppl.move_to(guide, ppl.family("covariance_cholesky", [1.0, 2.0], [[1.0, 0.0], [0.5, 2.0]]))
    return guide


def test_a_guide_survives_torch_save(small):
    median, covariance = small.median()["x"], small.get_posterior().covariance_matrix
    buffer = io.BytesIO()
    torch.save(small, buffer)
    pyro.clear_param_store()
    buffer.seek(0)
    back = torch.load(buffer, weights_only=False)
    np.testing.assert_array_equal(back.median()["x"], median)
    np.testing.assert_array_equal(
        back.get_posterior().covariance_matrix.detach(), covariance.detach()
    )


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


def one_step(model, guide, *args):
    SVI(model, guide, BLR({"lr": 1.0}), NaturalELBO()).step(*args)


@pytest.mark.parametrize("local", [False, True])
def test_module_local_params_on_and_off(ppl, local):
    model, y = models.location(ppl), torch.as_tensor(Y)
    with pyro.settings.context(module_local_params=local):
        guide = NaturalGaussianGuide(model)
        one_step(model, guide, y)
        assert len(pyro.get_param_store()) == (0 if local else 2)
        np.testing.assert_allclose(guide.median(y)["mu"], LOCATION_MEAN, rtol=1e-10)


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
    model, x, y = Regression(), torch.arange(4.0), torch.as_tensor(Y)
    guide = NaturalGaussianGuide(model)
    one_step(model, guide, x, y)
    slope = float((x * y).sum() / ((x * x).sum() + 0.01))
    assert float(guide.median(x, y)["slope"]) == pytest.approx(slope, rel=1e-10)
    assert float(model.scale.detach()) != 1.0
    assert not any("model" in name for name, _ in guide.named_parameters())


@pytest.mark.parametrize("loss", [Trace_ELBO, NaturalELBO])
def test_a_model_may_write_to_its_latents(loss):
    """The latent vector has what was drawn all the same: the other site's posterior is exact."""

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        w[0] = 0.0
        v = pyro.sample("v", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(v, 0.5**0.5), obs=torch.tensor(3.0))

    guide = NaturalGaussianGuide(model, "diagonal")
    svi = SVI(model, guide, BLR({"lr": 1.0}), loss())
    assert np.isfinite(svi.step())
    if loss is NaturalELBO:
        np.testing.assert_allclose(guide.median()["v"].item(), 2.0, rtol=1e-4)
