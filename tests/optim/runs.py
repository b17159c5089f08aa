"""Runs of an optimiser on exact expectations, in both packages."""

from __future__ import annotations

import numpy as np

from tests import reference
from tests.optim.table5 import driver


class Loop:
    """A rule that sees ``E[grad l]`` and ``E[hess l]`` of its own Gaussian.

    :param moments: a function of ``mu`` and ``Sigma``.
    """

    def __init__(self, backend, optimiser, moments, family, loc, sigma, dtype="float64"):
        self.backend, self.moments, self.family = backend, moments, family
        self.dtype = dtype
        scale = reference.gaussian_from_covariance(family, np.asarray(sigma, float))
        self.run = driver(
            backend, optimiser, {"q": (family, np.asarray(loc, float), scale)}, dtype=dtype
        )

    @property
    def gaussian(self):
        """``mu`` and ``Sigma``."""
        loc, scale = self.run.gaussian("q")
        return np.asarray(loc, float), reference.covariance(self.family, scale)

    def step(self):
        """One step, on the natural gradient of the loss."""
        gradient, hessian = self.moments(*self.gaussian)
        self.run.step({"q": (self.family, *self.natural_gradient(gradient, hessian))})
        return self.gaussian

    def natural_gradient(self, gradient, hessian):
        q = self.backend.family(self.family, *self.run.gaussian("q"), dtype=self.dtype)
        hessian = q.assemble_hessian(self.backend.array(hessian, self.dtype))
        direction = q.bonnet_price(self.backend.array(gradient, self.dtype), hessian)
        return tuple(-c for c in self.backend.coordinates(direction))

    def path(self, num_steps):
        """``(mu, Sigma)`` after each of some steps."""
        return [self.step() for _ in range(num_steps)]


def kl_divergence(new, old):
    """``KL(new || old)`` of two ``(mu, Sigma)``, in nats."""
    (a, S), (b, T) = new, old
    precision = np.linalg.inv(T)
    log_dets = np.linalg.slogdet(T)[1] - np.linalg.slogdet(S)[1]
    return 0.5 * (np.trace(precision @ S) - len(a) + (a - b) @ precision @ (a - b) + log_dets)
