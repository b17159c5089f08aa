"""A Gaussian by mean and factor, whatever family it is of, or several of them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy


@dataclasses.dataclass(frozen=True)
class DenseGaussian:
    """``N(mean, C C^T)``, or several: then all arrays have a leading axis of them.

    :param mean: shape ``(d,)``.
    :param factor: ``C``, shape ``(d, d)``.
    :param known_blocks: :attr:`blocks`, where they are known.
    """

    mean: np.ndarray
    factor: np.ndarray
    known_blocks: np.ndarray | None = None

    @classmethod
    def of_precision(
        cls, mean: np.ndarray, precision: np.ndarray, blocks: np.ndarray | None = None
    ) -> DenseGaussian:
        """Build Gaussians with lower triangular factors.

        :raises numpy.linalg.LinAlgError: if a precision is not positive definite.
        """
        upper = np.linalg.cholesky(precision[..., ::-1, ::-1])[..., ::-1, ::-1]
        return cls(mean, np.swapaxes(np.triu(np.linalg.inv(upper)), -1, -2), blocks)

    def with_own_factor(self) -> DenseGaussian:
        """Return one Gaussian with the factor that :meth:`of_precision` gives it.

        A Gaussian has many, and averages over points that are not exact differ between them.
        """
        upper = np.linalg.qr(self.factor.T)[1]
        signs = np.where(np.diag(upper) < 0, -1.0, 1.0)
        return DenseGaussian(self.mean, self.within(upper.T * signs), self.blocks)

    def take(self, index: Any) -> DenseGaussian:
        """Return one or some of several."""
        return dataclasses.replace(self, mean=self.mean[index], factor=self.factor[index])

    @classmethod
    def several(cls, found: list[DenseGaussian]) -> DenseGaussian:
        """Return Gaussians of the same blocks together."""
        means, factors = np.stack([q.mean for q in found]), np.stack([q.factor for q in found])
        return cls(means, factors, found[0].blocks)

    @property
    def dim(self) -> int:
        """``d``."""
        return self.mean.shape[-1]

    @functools.cached_property
    def inverse(self) -> np.ndarray:
        """``C^-1``."""
        return np.linalg.inv(self.factor)

    @functools.cached_property
    def precision(self) -> np.ndarray:
        """``C^-T C^-1``."""
        return np.swapaxes(self.inverse, -1, -2) @ self.inverse

    @functools.cached_property
    def stddev(self) -> np.ndarray:
        """The standard deviation of each latent, shape ``(d,)``."""
        return np.sqrt((self.factor**2).sum(-1))

    @functools.cached_property
    def log_det_factor(self) -> Any:
        """``log |det C|``."""
        return np.linalg.slogdet(self.factor)[1]

    @functools.cached_property
    def blocks(self) -> np.ndarray:
        """The number of each latent's block of correlated latents, shape ``(d,)``.

        Of a mean field these are all latents, of a dense family there is one.
        """
        if self.known_blocks is not None:
            return self.known_blocks
        pattern = scipy.sparse.csr_matrix(self.factor != 0)
        # Rows and columns are the two sides of a graph: a column need not have its row's number.
        both = scipy.sparse.kron([[0, 1], [0, 0]], pattern)
        return scipy.sparse.csgraph.connected_components(both, directed=False)[1][: self.dim]

    @functools.cached_property
    def has_one_block(self) -> bool:
        """True if all latents are correlated."""
        return bool((self.blocks == self.blocks[0]).all())

    def within(self, matrix: np.ndarray) -> np.ndarray:
        """Return the part of a ``d`` by ``d`` matrix that this Gaussian's family has."""
        if self.has_one_block:
            return matrix
        return np.where(self.blocks[:, None] == self.blocks, matrix, 0.0)

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return ``mean + C z``, shape ``(N, d)``."""
        return self.mean[..., None, :] + noise @ np.swapaxes(self.factor, -1, -2)

    def log_prob(self, theta: np.ndarray) -> np.ndarray:
        """Return log densities in nats, shape ``(N,)``, for one Gaussian."""
        white = (theta - self.mean) @ self.inverse.T
        constant = 0.5 * self.dim * np.log(2.0 * np.pi) + self.log_det_factor
        return -0.5 * (white**2).sum(-1) - constant

    def entropy(self) -> Any:
        """Return the entropy in nats."""
        return 0.5 * self.dim * (1.0 + np.log(2.0 * np.pi)) + self.log_det_factor

    def kl_divergence(self, other: DenseGaussian) -> float:
        """Return ``KL(self || other)`` in nats."""
        ratio = other.inverse @ self.factor
        shift = other.inverse @ (self.mean - other.mean)
        size = 0.5 * ((ratio**2).sum() - self.dim + shift @ shift)
        return max(float(size + other.log_det_factor - self.log_det_factor), 0.0)
