"""What a new family must write, and what follows from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.optim.runs import kl_divergence


def sphere(backend):
    """``N(mu, exp(2 a) I)``, with what a family must write and nothing else."""
    base = backend.module("families.base")
    lib = base.jnp if backend.name == "numpyro" else base.torch

    @dataclasses.dataclass(frozen=True, eq=False)
    class Sphere(base.Family):
        loc: object = None
        log_scale: object = None

        def initial(self, loc, scale):
            return Sphere(loc, backend.array(np.log(scale)))

        @property
        def num_parameters(self):
            return self.dim + 1

        @property
        def stddev(self):
            return lib.exp(self.log_scale) * lib.ones_like(self.loc)

        def sample(self, noise):
            return self.loc + lib.exp(self.log_scale) * noise

        def whiten(self, value):
            return (value - self.loc) * lib.exp(-self.log_scale)

        def log_det_scale(self):
            return self.dim * self.log_scale

        def natural_gradient(self, gradient):
            loc = lib.exp(2 * self.log_scale) * gradient.loc
            return Sphere(loc, gradient.log_scale / (2 * self.dim))

        def euclidean_gradient(self, natural_gradient):
            loc = lib.exp(-2 * self.log_scale) * natural_gradient.loc
            return Sphere(loc, natural_gradient.log_scale * (2 * self.dim))

        def bonnet_price(self, gradient, hessian):
            variance = lib.exp(2 * self.log_scale)
            curvature = variance * lib.trace(hessian) / self.dim
            return Sphere(variance * gradient, 0.5 * (curvature + 1.0))

        def natural_step(self, direction, step_size):
            ratio = 1.0 - 2.0 * step_size * direction.log_scale
            loc = self.loc + step_size * direction.loc / ratio
            return Sphere(loc, self.log_scale - 0.5 * lib.log(ratio))

        def retract(self, step):
            return Sphere(self.loc + step.loc, self.log_scale + step.log_scale)

    if backend.name == "numpyro":
        from numpyro_ngvi.pytree import register

        register(Sphere)
    return Sphere


@pytest.fixture
def family(backend, rng):
    return sphere(backend)(backend.array(rng.normal(size=3)), backend.array(-0.4))


def test_moments_and_divergences_follow(backend, family, rng):
    sigma = np.exp(-0.8) * np.eye(3)
    np.testing.assert_allclose(backend.numpy(family.covariance_matrix), sigma, rtol=1e-14)
    np.testing.assert_allclose(
        backend.numpy(family.precision_matrix), np.linalg.inv(sigma), rtol=1e-14
    )
    other = type(family)(backend.array(rng.normal(size=3)), backend.array(0.3))
    means = backend.numpy(family.mean), backend.numpy(other.mean)
    expected = kl_divergence((means[0], sigma), (means[1], np.exp(0.6) * np.eye(3)))
    assert float(family.kl_divergence(other)) == pytest.approx(expected)


def test_the_derivatives_of_a_draw_follow(backend, family, rng):
    """Along ``F^-1 change`` a draw ``mu + exp(a) z`` moves by ``dmu + exp(a) z da``."""
    change = type(family)(backend.array(rng.normal(size=3)), backend.array(rng.normal()))
    noise = rng.normal(size=(2, 3))
    natural = family.natural_gradient(change)
    amount = float(natural.log_scale)
    expected = backend.numpy(natural.loc) * np.exp(0.4) + amount * noise
    moved = family.draw_jvp(change, backend.array(noise))
    np.testing.assert_allclose(backend.numpy(moved), expected, rtol=1e-13)
    assert float(family.log_det_jvp(change)) == pytest.approx(3 * amount)
    gradient = backend.grad(lambda q: q.draw(backend.array(noise)).sum(), family)
    np.testing.assert_allclose(backend.numpy(gradient.loc), 2 * np.exp(-0.8), rtol=1e-13)


def test_steps_and_curvature_follow(backend, family, rng):
    assert list(family.hessian_probes()) == [0, 1, 2]
    hessian = family.assemble_hessian(backend.array(-2.0 * np.eye(3)))
    direction = family.bonnet_price(backend.array(-2.0 * backend.numpy(family.mean)), hessian)
    path = family.along(direction)
    attempt = path.at(1.0)
    assert float(path.kl(attempt)) == pytest.approx(float(path.end(attempt).kl_divergence(family)))
    end = path.end(attempt)  # the posterior of a conjugate model
    np.testing.assert_allclose(backend.numpy(end.mean), 0.0, atol=1e-15)
    np.testing.assert_allclose(backend.numpy(end.stddev), np.sqrt(0.5), rtol=1e-14)
