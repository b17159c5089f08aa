"""Cavities: posteriors without the site of an element, or of several."""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.workflow.expected import ElementSites, Expected, PredictorSites
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target

#: Leverage of a unit below which the others leave a Gaussian.
MOST_LEVERAGE = 1.0 - DEFAULTS.rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Cavities:
    """Distributions of each element's predictors without its site.

    By block of correlated latents ``V_c = (I - V A)^-1 V``, with the predictors' covariance ``V``
    and the site's curvature ``A``; the predictors' means are ``m - V_c g``, and those of all
    latents ``mu - Sigma J^T t``, ``t = (I - A V)^-1 g``.
    """

    means: np.ndarray  #: Shape ``(P, M)``.
    covariances: np.ndarray  #: Shape ``(P, P, M)``.
    leverage: np.ndarray  #: The largest eigenvalue of ``V A``, shape ``(M,)``.
    shift: np.ndarray  #: Shift of the latents' mean, in standard deviations, shape ``(M,)``.
    pull: np.ndarray  #: ``t``, shape ``(M, B, P)``.
    divergence: np.ndarray  #: ``KL(cavity || q)`` in nats, shape ``(M,)``.
    #: The block of each column of the spreads, shape ``(d,)``.
    labels: np.ndarray

    @property
    def is_proper(self) -> np.ndarray:
        """True where a Gaussian remains, shape ``(M,)``."""
        return self.leverage < MOST_LEVERAGE

    @classmethod
    def of(cls, sites: PredictorSites, q: DenseGaussian, weights: np.ndarray) -> Cavities:
        """Build the cavities of all elements, which count this often each, shape ``(M,)``."""
        of_columns = q.blocks[np.abs(q.factor).argmax(0)]
        blocks, labels = np.unique(of_columns, return_inverse=True)
        count, num = sites.spreads.shape[:2]
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], np.arange(len(blocks)))
        spreads = sites.spreads[..., order]
        V = np.empty((num, len(blocks), count, count))
        for p in range(count):
            for r in range(count):
                V[:, :, p, r] = np.add.reduceat(spreads[p] * spreads[r], starts, 1)
        A = np.moveaxis(weights * sites.curvature, -1, 0)[:, None]
        g = (weights * sites.gradient).T[:, None, :, None]
        eigenvalues = np.linalg.eigvals(V @ A).real
        leverage = eigenvalues.max((1, 2))
        # Where nothing is left the numbers are not used.
        is_left = (leverage < MOST_LEVERAGE)[:, None, None, None]
        safe = np.where(is_left, np.eye(count) - V @ A, np.eye(count))
        left = np.linalg.inv(safe)
        within = left @ V
        t = np.swapaxes(left, 2, 3) @ g
        square = np.maximum((np.swapaxes(t, 2, 3) @ V @ t)[..., 0, 0], 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            sizes = eigenvalues / (1.0 - eigenvalues) + np.log1p(-eigenvalues)
            divergence = 0.5 * (np.maximum(sizes, 0.0).sum((1, 2)) + square.sum(1))
        means = sites.means - (within.sum(1) @ g[:, 0])[..., 0].T
        covariances = np.moveaxis(within.sum(1), 0, -1)
        shift = np.sqrt(square.sum(1))
        return cls(means, covariances, leverage, shift, t[..., 0], divergence, labels)


def log_ratio_without(
    target: Target, q: DenseGaussian, sites: ElementSites, elements: np.ndarray, theta: np.ndarray
) -> tuple[float, np.ndarray | None]:
    """Return the leverage of some elements, and the log density of the rest over ``q``'s at draws.

    Only latents on which the elements depend make a difference.
    """
    site = _site_of(target, sites, elements)
    used = np.flatnonzero(site.gradient)
    if not len(used):
        return 0.0, np.zeros(len(theta))
    own = q.within(site.curvature)[np.ix_(used, used)]
    root = np.linalg.cholesky(q.factor[used] @ q.factor[used].T)
    sizes, axes = np.linalg.eigh(root.T @ own @ root)
    if not sizes[-1] < MOST_LEVERAGE:
        return float(sizes[-1]), None
    shift = axes.T @ (root.T @ site.gradient[used])
    constant = 0.5 * (np.log1p(-sizes) - shift**2 / (1.0 - sizes)).sum()
    steps = theta[:, used] - q.mean[used]
    log_ratio = constant + 0.5 * ((steps @ own) * steps).sum(1) - steps @ site.gradient[used]
    return float(sizes[-1]), log_ratio


def _site_of(target: Target, sites: ElementSites, elements: np.ndarray) -> Expected:
    weights = np.zeros(len(target.weights))
    weights[elements] = target.weights[elements]
    return sites.total(weights)


def cavity_of(
    target: Target, q: DenseGaussian, sites: ElementSites, elements: np.ndarray
) -> DenseGaussian | None:
    """Return the posterior less some sites; None if no Gaussian is left."""
    site = _site_of(target, sites, elements)
    own = q.within(site.curvature)
    leverage = float(np.linalg.eigvalsh(q.factor.T @ own @ q.factor)[-1])
    if leverage >= MOST_LEVERAGE:
        return None
    try:
        cavity = DenseGaussian.of_precision(q.mean, q.precision - own, q.blocks)
    except np.linalg.LinAlgError:
        return None
    step = cavity.factor @ (cavity.factor.T @ site.gradient)
    return dataclasses.replace(cavity, mean=q.mean - step)
