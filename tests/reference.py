"""Answers computed in another way, against which both packages are checked.

Nothing here imports ``ngvi``; everything is numpy, scipy and ``torch.func`` in float64.

- :func:`fisher`: the dense Fisher information of a Gaussian in given coordinates, by
  automatic differentiation of ``log q``.
- :class:`Glm`: the Gaussian variational bound of a generalised linear model with a Gaussian
  prior, by Gauss-Hermite quadrature in the linear predictor, and its optimum.
- :func:`linear_regression_posterior`: a conjugate posterior in closed form.

A Gaussian is given by its coordinates ``(loc, scale)``, of which the second is

========================  =================================================  ============
family                    ``scale``                                          a gradient
========================  =================================================  ============
``covariance_cholesky``   ``C``, lower triangular, ``Sigma = C C^T``         its lower triangle
``precision_cholesky``    ``T``, lower triangular, ``Sigma^-1 = T T^T``      its lower triangle
``precision``             ``S = Sigma^-1``, symmetric                        its symmetric part
``diagonal``              standard deviations, a vector                      all of it
========================  =================================================  ============

The *free* coordinates are one vector: ``loc``, followed by the lower triangle of ``scale`` row
by row, or by the standard deviations. Of a symmetric matrix an off-diagonal free coordinate
moves two elements, so that its gradient is ``G_ij + G_ji``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.special import gammaln

#: The families that the tests of guides and optimisers run through.
FAMILIES = ("covariance_cholesky", "diagonal")

#: Families by the form of their second coordinate.
TRIANGULAR = ("covariance_cholesky", "precision_cholesky")
SYMMETRIC = ("precision",)
DENSE_FAMILIES = (*TRIANGULAR, *SYMMETRIC)
ALL_FAMILIES = (*DENSE_FAMILIES, "diagonal")

#: Name of the second coordinate of each family.
SCALE_NAME = {
    "covariance_cholesky": "scale_tril",
    "precision_cholesky": "precision_tril",
    "precision": "precision",
    "diagonal": "scale",
}

# -- coordinates ----------------------------------------------------------------------


def flatten(family: str, loc, scale) -> np.ndarray:
    """The free coordinates ``(loc, vech scale)`` or ``(loc, scale)`` as one vector."""
    loc, scale = np.asarray(loc, float), np.asarray(scale, float)
    if family != "diagonal":
        scale = scale[np.tril_indices(loc.size)]
    return np.concatenate([loc, scale])


def unflatten(family: str, free: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of :func:`flatten`, with zeros or the mirror image above the diagonal."""
    loc, rest = free[:dim], free[dim:]
    if family == "diagonal":
        return loc, rest
    scale = np.zeros((dim, dim))
    scale[np.tril_indices(dim)] = rest
    return loc, _mirrored(scale) if family in SYMMETRIC else scale


def flatten_gradient(family: str, loc, scale) -> np.ndarray:
    """The gradient in the free coordinates, of one in the arrays' elements."""
    scale = np.asarray(scale, float)
    if family in SYMMETRIC:
        scale = scale + scale.T - np.diag(np.diag(scale))
    return flatten(family, loc, scale)


def unflatten_gradient(family: str, free: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of :func:`flatten_gradient` that has no part that is not felt."""
    loc, scale = unflatten(family, free, dim)
    if family in SYMMETRIC:
        scale = 0.5 * (scale + np.diag(np.diag(scale)))
    return loc, scale


def felt(family: str, scale) -> np.ndarray:
    """The part of a gradient that is felt, which is also the form of a direction."""
    if family in SYMMETRIC:
        return 0.5 * (scale + scale.T)
    return np.tril(scale) if family in TRIANGULAR else scale


def covariance(family: str, scale) -> np.ndarray:
    """``Sigma`` of a Gaussian in any family."""
    scale = np.asarray(scale, float)
    if family == "diagonal":
        return np.diag(scale**2)
    if family == "precision":
        return np.linalg.inv(scale)
    inverse = np.linalg.inv(scale)
    return scale @ scale.T if family == "covariance_cholesky" else inverse.T @ inverse


def root(family: str, scale) -> np.ndarray:
    """``C`` of a draw ``theta = mu + C z``."""
    scale = np.asarray(scale, float)
    return {
        "covariance_cholesky": lambda: scale,
        "precision_cholesky": lambda: np.linalg.inv(scale).T,
        "precision": lambda: np.linalg.inv(np.linalg.cholesky(scale)).T,
        "diagonal": lambda: np.diag(scale),
    }[family]()


def random_gaussian(family: str, dim: int, rng: np.random.Generator):
    """``(loc, scale)`` well away from degenerate: condition number of Sigma below ~1e3."""
    loc = rng.normal(size=dim)
    scale = rng.uniform(0.5, 2.0, size=dim)
    if family == "diagonal":
        return loc, scale
    below = np.tril(rng.normal(size=(dim, dim)), -1) / math.sqrt(dim)
    scale = np.diag(scale) + 0.5 * below
    return loc, _mirrored(np.tril(scale @ scale.T)) if family in SYMMETRIC else scale


def gaussian_from_covariance(family: str, sigma) -> np.ndarray:
    """The second coordinate of the Gaussian with covariance ``Sigma`` (its diagonal)."""
    return {
        "covariance_cholesky": lambda: np.linalg.cholesky(sigma),
        "precision_cholesky": lambda: np.linalg.cholesky(np.linalg.inv(sigma)),
        "precision": lambda: np.linalg.inv(sigma),
        "diagonal": lambda: np.sqrt(np.diag(sigma)),
    }[family]()


def _mirrored(tril: np.ndarray) -> np.ndarray:
    return tril + np.tril(tril, -1).T


# -- Fisher information ---------------------------------------------------------------


def log_q(family: str, free: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """``log q(theta)``, written out with a dense covariance and no Cholesky algebra.

    :param theta: points, shape ``(m, d)``.
    """
    dim = theta.shape[-1]
    loc, rest = free[:dim], free[dim:]
    if family == "diagonal":
        sigma = torch.diag(rest**2)
    else:
        rows, cols = torch.tril_indices(dim, dim)
        scale = torch.zeros(dim, dim, dtype=free.dtype).index_put((rows, cols), rest)
        if family in SYMMETRIC:
            scale = scale + scale.tril(-1).T
        square = scale @ scale.T if family in TRIANGULAR else scale
        sigma = torch.linalg.inv(square) if family.startswith("precision") else square
    residual = theta - loc
    return -0.5 * (
        dim * math.log(2 * math.pi)
        + torch.linalg.slogdet(sigma).logabsdet
        + (residual * torch.linalg.solve(sigma, residual.mT).mT).sum(-1)
    )


def fisher(family: str, loc, scale) -> np.ndarray:
    """``F = E_q[-Hessian log q]`` in the free coordinates, dense.

    ``log q`` is quadratic in ``theta`` whatever the coordinates, so that its expectation is
    exact with the ``2 d`` points ``mu +- sqrt(d) C e_i`` of equal weight, a cubature of
    degree three.
    """
    dim = np.asarray(loc).size
    free = torch.as_tensor(flatten(family, loc, scale))
    tril = np.linalg.cholesky(covariance(family, scale))
    points = np.concatenate([loc + math.sqrt(dim) * tril.T, loc - math.sqrt(dim) * tril.T])

    def expected_log_q(coordinates: torch.Tensor) -> torch.Tensor:
        return log_q(family, coordinates, torch.as_tensor(points)).mean()

    return -torch.func.hessian(expected_log_q)(free).numpy()


def natural_gradient(family: str, loc, scale, gradient_loc, gradient_scale):
    """``F^-1 g`` with the dense ``F``; ``g`` is the gradient in the arrays' elements."""
    dim = np.asarray(loc).size
    gradient = flatten_gradient(family, gradient_loc, gradient_scale)
    return unflatten(family, np.linalg.solve(fisher(family, loc, scale), gradient), dim)


def euclidean_gradient(family: str, loc, scale, natural_loc, natural_scale):
    """``F n`` with the dense ``F``."""
    dim = np.asarray(loc).size
    natural = flatten(family, natural_loc, natural_scale)
    return unflatten_gradient(family, fisher(family, loc, scale) @ natural, dim)


def bonnet_price_gradient(family: str, scale, gradient, hessian):
    """The bound's gradient in the arrays' elements from ``E[grad l]`` and ``E[hess l]``.

    By Bonnet and Price ``dL/dSigma = (E[hess l] + Sigma^-1) / 2``, and the chain rule.
    """
    scale, sigma = np.asarray(scale, float), covariance(family, scale)
    slope = 0.5 * (hessian + np.linalg.inv(sigma))  # dL/dSigma
    if family == "diagonal":
        return gradient, 2 * np.diag(slope) * scale
    if family == "covariance_cholesky":
        return gradient, np.tril(2 * slope @ scale)
    of_precision = -sigma @ slope @ sigma
    if family == "precision":
        return gradient, of_precision
    return gradient, np.tril(2 * of_precision @ scale)


def relative_error(actual, expected) -> float:
    """``|actual - expected| / |expected|`` in the Euclidean norm."""
    actual, expected = np.asarray(actual, float), np.asarray(expected, float)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


# -- exact variational bounds ---------------------------------------------------------


def _hermite(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_points)
    return nodes, weights / weights.sum()


def _bernoulli(eta, y, noise_scale):
    p = 1 / (1 + np.exp(-eta))
    return y * eta - np.logaddexp(0, eta), y - p, -p * (1 - p)


def _poisson(eta, y, noise_scale):
    rate = np.exp(eta)
    return y * eta - rate - gammaln(y + 1), y - rate, -rate


def _gaussian(eta, y, noise_scale):
    precision = noise_scale**-2
    constant = -0.5 * np.log(2 * np.pi / precision)
    residual = y - eta
    slope = np.full_like(eta, -precision)
    return constant - 0.5 * precision * residual**2, precision * residual, slope


LIKELIHOODS = {"bernoulli": _bernoulli, "poisson": _poisson, "gaussian": _gaussian}


@dataclass
class Glm:
    """``y_i ~ likelihood(x_i' theta)`` (canonical link), ``theta ~ N(0, prior_scale^2 I)``.

    The bound needs the log likelihood's expectation only under the linear predictor
    ``x_i' theta ~ N(x_i' mu, x_i' Sigma x_i)``: one-dimensional integrals.

    :param X: design, shape ``(n, d)``.
    :param y: responses, shape ``(n,)``.
    :param likelihood: ``"bernoulli"``, ``"poisson"`` or ``"gaussian"``.
    :param prior_scale: standard deviation of the prior.
    :param noise_scale: standard deviation of a Gaussian response.
    :param num_points: of the quadrature.
    """

    X: np.ndarray
    y: np.ndarray
    likelihood: str
    prior_scale: float = 10.0
    noise_scale: float = 1.0
    num_points: int = 60
    _rule: tuple = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.X, self.y = np.asarray(self.X, float), np.asarray(self.y, float)
        self._rule = _hermite(self.num_points)

    @property
    def dim(self) -> int:
        return self.X.shape[1]

    def expectations(self, mu, sigma):
        """``E_q[l]``, ``E_q[grad l]`` and ``E_q[hess l]`` of ``l = log p(y, theta)``."""
        nodes, weights = self._rule
        spread = np.sqrt(np.einsum("ni,ij,nj->n", self.X, sigma, self.X))
        eta = (self.X @ mu)[:, None] + spread[:, None] * nodes
        value, slope, curvature = LIKELIHOODS[self.likelihood](
            eta, self.y[:, None], self.noise_scale
        )
        precision = self.prior_scale**-2
        expected = (value @ weights).sum() - 0.5 * (
            self.dim * math.log(2 * math.pi / precision) + precision * (mu @ mu + np.trace(sigma))
        )
        gradient = self.X.T @ (slope @ weights) - precision * mu
        hessian = self.X.T @ ((curvature @ weights)[:, None] * self.X)
        return expected, gradient, hessian - precision * np.eye(self.dim)

    def bound(self, mu, sigma) -> float:
        """``E_q[l] + H(q)`` in nats."""
        entropy = 0.5 * (
            self.dim * (1 + math.log(2 * math.pi)) + np.linalg.slogdet(np.asarray(sigma))[1]
        )
        return float(
            self.expectations(np.asarray(mu, float), np.asarray(sigma, float))[0] + entropy
        )

    def gradient(self, family: str, mu, scale):
        """The bound's Euclidean gradient in the coordinates ``(loc, scale)``."""
        sigma = covariance(family, scale)
        _, gradient, hessian = self.expectations(np.asarray(mu, float), sigma)
        return bonnet_price_gradient(family, scale, gradient, hessian)

    def optimum(
        self, family: str, tolerance: float = 1e-12
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """``(bound, mu, Sigma)`` at the maximum over one family.

        A fixed point of Bonnet and Price: ``Sigma^-1 = -E[hess l]`` (its diagonal for
        ``"diagonal"``) and Newton's step in ``mu``, halved while the bound falls.

        :param tolerance: on the Newton decrement, in nats.
        """
        mu = np.zeros(self.dim)
        sigma = np.eye(self.dim) / max(1.0, np.linalg.norm(self.X, 2) ** 2)
        best = self.bound(mu, sigma)
        for _ in range(500):
            _, gradient, hessian = self.expectations(mu, sigma)
            precision, target = np.linalg.inv(sigma), -hessian
            if family == "diagonal":
                target = np.diag(np.diag(target))
            newton = np.linalg.solve(-hessian, gradient)
            decrement = gradient @ newton + np.abs(target @ sigma - np.eye(self.dim)).sum() ** 2
            if decrement < tolerance:
                return best, mu, sigma
            rho = 1.0
            while True:
                proposal = mu + rho * newton, np.linalg.inv((1 - rho) * precision + rho * target)
                value = self.bound(*proposal)
                # Rounding of a sum of n terms: below this the bound cannot tell.
                if value >= best - 1e-13 * abs(best):
                    break
                rho /= 2
            (mu, sigma), best = proposal, value
        raise RuntimeError("the fixed point did not converge")


# -- conjugate posterior --------------------------------------------------------------


def linear_regression_posterior(X, y, prior_scale: float, noise_scale: float):
    """``(mean, covariance, log evidence)`` for ``y ~ N(X theta, noise_scale^2 I)``."""
    X, y = np.asarray(X, float), np.asarray(y, float)
    n, d = X.shape
    precision = X.T @ X / noise_scale**2 + np.eye(d) / prior_scale**2
    sigma = np.linalg.inv(precision)
    mean = sigma @ X.T @ y / noise_scale**2
    marginal = prior_scale**2 * X @ X.T + noise_scale**2 * np.eye(n)
    log_evidence = -0.5 * (
        n * math.log(2 * math.pi)
        + np.linalg.slogdet(marginal)[1]
        + y @ np.linalg.solve(marginal, y)
    )
    return mean, sigma, float(log_evidence)
