"""``loss_and_grads`` of any stock ELBO leaves the natural gradient on the guide.

The Euclidean gradient is that of the same ELBO with a plain guide, whose parameters are the
same coordinates as raw tensors and whose draws use the same noise; it is multiplied by the
inverse of the dense Fisher matrix of :mod:`tests.reference`.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.models import SUBSAMPLE, data, pyro_models
from tests.reference import SCALE_NAME, natural_gradient, random_gaussian, relative_error

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import pyro.infer
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.nn import PyroParam

#: The bar of the issue; rounding measures about 1e-14.
TOLERANCE = 1e-10

LINEAR_ELBOS = [
    f"{jit}{name}_ELBO"
    for jit in ("", "Jit")
    for name in ("Trace", "TraceGraph", "TraceMeanField", "TraceEnum")
]
ELBOS = [*LINEAR_ELBOS, "RenyiELBO"]

PARTICLES = {
    "1": {"num_particles": 1},
    "5": {"num_particles": 5, "vectorize_particles": False},
    "5 vectorised": {"num_particles": 5, "vectorize_particles": True},
}


class PlainGuide(AutoContinuous):
    """The Euclidean counterpart: raw coordinates, stock distributions."""

    def __init__(self, model, family_name, loc, scale, detach_log_prob):
        super().__init__(poutine.block(model, hide=["component"]))
        self.family_name, self.detach_log_prob = family_name, detach_log_prob
        self.loc = PyroParam(torch.as_tensor(loc).clone())
        self.scale = PyroParam(torch.as_tensor(scale).clone())

    def get_posterior(self, *args, **kwargs):
        return self._distribution(self.loc, self.scale)

    def sample_latent(self, *args, **kwargs):
        posterior = self.get_posterior()
        if self.detach_log_prob:
            posterior = _Detached(
                posterior, self._distribution(self.loc.detach(), self.scale.detach())
            )
        return pyro.sample("_plain_latent", posterior, infer={"is_auxiliary": True})

    def _distribution(self, loc, scale):
        if self.family_name == "diagonal":
            return dist.Normal(loc, scale).to_event(1)
        return dist.MultivariateNormal(loc, scale_tril=scale)


class _Detached(dist.TorchDistribution):
    """``base``, whose ``log_prob`` does not see the parameters' derivative."""

    has_rsample = True
    arg_constraints = {}  # noqa: RUF012

    def __init__(self, base, detached):
        self.base, self.detached = base, detached
        super().__init__(base.batch_shape, base.event_shape)

    @property
    def support(self):
        return self.base.support

    def expand(self, batch_shape, _instance=None):
        return _Detached(self.base.expand(batch_shape), self.detached.expand(batch_shape))

    def rsample(self, sample_shape=()):
        return self.base.rsample(sample_shape)

    def log_prob(self, value):
        return self.detached.log_prob(value)


def gradients(
    backend,
    elbo_name,
    family_name,
    subsample_size,
    particles=PARTICLES["1"],
    sticking_the_landing=False,
    plain_sticks=False,
):
    """``(natural gradient of our guide, dense F^-1 times the plain guide's gradient)``."""
    models = pyro_models()
    model = models.mixture if "Enum" in elbo_name else models.hierarchy
    args = tuple(map(torch.as_tensor, data()))
    kwargs = {"subsample_size": subsample_size}
    guide = backend.package.NaturalGaussianGuide(
        model, family_name, sticking_the_landing=sticking_the_landing
    )
    guide(*args, **kwargs)
    loc, scale = random_gaussian(family_name, guide.latent_dim, np.random.default_rng(2))
    loc, scale = 0.3 * loc, 0.3 * scale
    plain = PlainGuide(model, family_name, loc, scale, plain_sticks)
    plain(*args, **kwargs)
    with torch.no_grad():
        guide.posterior.loc.copy_(torch.as_tensor(loc))
        getattr(guide.posterior, SCALE_NAME[family_name]).copy_(torch.as_tensor(scale))

    def gradient(guide, loc, scale):
        guide.zero_grad()
        nesting = {"max_plate_nesting": 1} if "Enum" in elbo_name or "Jit" in elbo_name else {}
        elbo = getattr(pyro.infer, elbo_name)(**particles, **nesting)
        pyro.set_rng_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit's tracer has much to say
            loss = elbo.loss_and_grads(model, guide, *args, **kwargs)
        return loss, (loc.grad.numpy(), scale.grad.numpy())

    posterior = guide.posterior
    ours_loss, ours = gradient(guide, posterior.loc, getattr(posterior, SCALE_NAME[family_name]))
    plain_loss, euclidean = gradient(plain, plain.loc, plain.scale)
    # Same noise, same minibatch: else the comparison below would mean nothing.
    assert np.isclose(float(ours_loss), float(plain_loss), rtol=1e-12)
    return ours, natural_gradient(family_name, loc, scale, *euclidean)


@pytest.mark.parametrize("subsample_size", [None, SUBSAMPLE], ids=["full batch", "subsampled"])
@pytest.mark.parametrize("particles", PARTICLES)
@pytest.mark.parametrize("elbo", ELBOS)
def test_the_gradient_of_a_stock_elbo_is_the_natural_gradient(
    pyro_backend, elbo, particles, subsample_size, family_name
):
    actual, expected = gradients(
        pyro_backend, elbo, family_name, subsample_size, PARTICLES[particles]
    )
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("elbo", LINEAR_ELBOS)
def test_by_default_the_landing_sticks_in_every_linear_elbo(pyro_backend, elbo, family_name):
    """Then the plain guide's ``log q`` has its parameters detached as well."""
    actual, expected = gradients(
        pyro_backend, elbo, family_name, None, sticking_the_landing="auto", plain_sticks=True
    )
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


def test_by_default_the_landing_does_not_stick_in_an_elbo_that_weights_its_draws(
    pyro_backend, family_name
):
    actual, expected = gradients(
        pyro_backend,
        "RenyiELBO",
        family_name,
        None,
        PARTICLES["5"],
        sticking_the_landing="auto",
        plain_sticks=False,
    )
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE
