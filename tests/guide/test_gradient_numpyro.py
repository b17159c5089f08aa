"""``jax.grad`` of any stock ELBO leaves the natural gradient on the guide.

The Euclidean gradient is that of the same ELBO with a plain guide, whose parameters are the
same coordinates as raw arrays and whose draws use the same noise; it is multiplied by the
inverse of the dense Fisher matrix of :mod:`tests.reference`.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests import backends
from tests.models import SUBSAMPLE, data, numpyro_models
from tests.reference import natural_gradient, random_gaussian, relative_error

pytest.importorskip("numpyro")

import jax
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro import handlers
from numpyro.infer import (
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from numpyro.infer.autoguide import AutoContinuous

#: The bar of the issue; rounding measures about 1e-14.
TOLERANCE = 1e-10

ELBOS = {
    "Trace": Trace_ELBO,
    "TraceMeanField": TraceMeanField_ELBO,
    "TraceGraph": TraceGraph_ELBO,
    "TraceEnum": TraceEnum_ELBO,
}

PARTICLES = {
    "1": {},
    "5": {"num_particles": 5, "vectorize_particles": False},
    "5 vectorised": {"num_particles": 5, "vectorize_particles": True},
}


class PlainGuide(AutoContinuous):
    """The Euclidean counterpart: raw coordinates, stock distributions."""

    def __init__(self, model, family_name, coordinates, detach_log_prob=False):
        super().__init__(handlers.block(model, hide=["component"]))
        self.family_name, self.coordinates = family_name, coordinates
        self.detach_log_prob = detach_log_prob

    def _get_posterior(self):
        loc = numpyro.param("loc", self.coordinates[0])
        scale = numpyro.param("scale", self.coordinates[1])
        if self.detach_log_prob:
            return _Detached(self._distribution(loc, scale), self._distribution)
        return self._distribution(loc, scale)

    def _distribution(self, loc, scale):
        if self.family_name == "diagonal":
            return dist.Normal(loc, scale).to_event(1)
        return dist.MultivariateNormal(loc, scale_tril=scale)


class _Detached(dist.Distribution):
    """``base``, whose ``log_prob`` does not see the parameters' derivative."""

    support = dist.constraints.real_vector
    has_rsample = True

    def __init__(self, base, make):
        self.base, self.make = base, make
        super().__init__(base.batch_shape, base.event_shape)

    def sample(self, key, sample_shape=()):
        return self.base.sample(key, sample_shape)

    def log_prob(self, value):
        base = self.base
        if isinstance(base, dist.Independent):
            loc, scale = base.base_dist.loc, base.base_dist.scale
        else:
            loc, scale = base.loc, base.scale_tril
        return self.make(lax.stop_gradient(loc), lax.stop_gradient(scale)).log_prob(value)


@functools.cache
def _guides(model_name, family_name, sticking_the_landing, plain_sticks):
    """Our guide and the plain one, set up, at the same point: compiled once, used often."""
    backend = backends.load("numpyro")
    model = getattr(numpyro_models(), model_name)
    options = {"sticking_the_landing": sticking_the_landing}
    guide = backend.package.NaturalGaussianGuide(model, family_name, **options)
    args = _arguments(backend)
    with handlers.seed(rng_seed=0), handlers.trace():
        guide(*args)
    loc, scale = random_gaussian(family_name, guide.latent_dim, np.random.default_rng(2))
    loc, scale = 0.3 * loc, 0.3 * scale
    plain = PlainGuide(
        model,
        family_name,
        (backend.array(loc), backend.array(scale)),
        detach_log_prob=plain_sticks,
    )
    with handlers.seed(rng_seed=0), handlers.trace():
        plain(*args)
    return model, guide, plain, loc, scale


_PLAIN_GRADIENTS = {}


def _arguments(backend):
    X, group, y = data()
    return backend.array(X), backend.array(group, "int32"), backend.array(y)


def gradients(
    backend,
    elbo,
    model_name,
    family_name,
    subsample_size,
    sticking_the_landing=False,
    plain_sticks=None,
):
    """``(natural gradient of our guide, dense F^-1 times the plain guide's gradient)``."""
    if plain_sticks is None:
        plain_sticks = bool(sticking_the_landing)
    model, guide, plain, loc, scale = _guides(
        model_name, family_name, sticking_the_landing, plain_sticks
    )

    def gradient(guide, params):
        def loss(params):
            return elbo.loss(
                jax.random.key(3),
                params,
                model,
                guide,
                *_arguments(backend),
                subsample_size=subsample_size,
            )

        # Compiling one loss takes longer than running it operation by operation.
        with jax.disable_jit():
            return jax.value_and_grad(loss)(params)

    ours_loss, ours = gradient(guide, {"auto_posterior": backend.family(family_name, loc, scale)})
    # Particles in sequence and vectorised have the same noise: once is enough.
    key = (id(plain), type(elbo), elbo.num_particles, subsample_size)
    if key not in _PLAIN_GRADIENTS:
        params = dict(zip(("loc", "scale"), plain.coordinates, strict=True))
        _PLAIN_GRADIENTS[key] = gradient(plain, params)
    plain_loss, euclidean = _PLAIN_GRADIENTS[key]
    # Same noise, same minibatch: else the comparison below would mean nothing.
    assert np.isclose(float(ours_loss), float(plain_loss), rtol=1e-12)
    expected = natural_gradient(
        family_name, loc, scale, np.asarray(euclidean["loc"]), np.asarray(euclidean["scale"])
    )
    return backend.coordinates(ours["auto_posterior"]), expected


@pytest.mark.parametrize("subsample_size", [None, SUBSAMPLE], ids=["full batch", "subsampled"])
@pytest.mark.parametrize(
    "particles",
    # A loop over particles, operation by operation, takes several times as long.
    ["1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("5", "5 vectorised"))],
)
@pytest.mark.parametrize("elbo", ELBOS)
def test_the_gradient_of_a_stock_elbo_is_the_natural_gradient(
    numpyro_backend, elbo, particles, subsample_size, family_name
):
    model = "mixture" if elbo == "TraceEnum" else "hierarchy"
    actual, expected = gradients(
        numpyro_backend, ELBOS[elbo](**PARTICLES[particles]), model, family_name, subsample_size
    )
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("elbo", ELBOS)
def test_by_default_the_landing_sticks_in_every_linear_elbo(numpyro_backend, elbo, family_name):
    """Then the plain guide's ``log q`` has its parameters detached as well."""
    model = "mixture" if elbo == "TraceEnum" else "hierarchy"
    actual, expected = gradients(
        numpyro_backend, ELBOS[elbo](), model, family_name, None, sticking_the_landing="auto"
    )
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


def test_by_default_the_landing_does_not_stick_in_an_elbo_that_weights_its_draws(
    numpyro_backend, family_name
):
    elbo = RenyiELBO(alpha=0.5, num_particles=5)
    default, expected = gradients(
        numpyro_backend, elbo, "hierarchy", family_name, None, "auto", plain_sticks=False
    )
    for a, e in zip(default, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE
