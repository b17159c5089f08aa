"""Linear coordinates of chains, and which ones draws and gradients say are better.

An effective draw costs as many steps as the longest way that a chain has to go is longer than the
shortest step that curvature asks for: ``sqrt(max eig Cov(z) max eig Cov(gradient))``, of a Gaussian
its condition number. Draws of all chains and their gradients estimate it for any linear map. So
coordinates of the fit, a scaling of these or of the model's own, and a full matrix are compared
without a further gradient. Each makes the covariances of draws and of gradients inverse to each
other as far as it can, from half of the chains. The other half judges it, by the Fisher divergence
(Seyboldt et al., 2025, *Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence*).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.problem import Problem

#: Most latents of a full matrix.
MAX_DENSE = 1000
#: Smallest gain, as a factor, for which coordinates change.
WORTH = 1.2
#: Added to both covariances of a full matrix: what few draws do not tell stays as it is.
SHRINKAGE = 0.1


class Coordinates(NamedTuple):
    """The map ``theta = centre + scale z``."""

    centre: np.ndarray  #: Shape ``(d,)``.
    scale: np.ndarray  #: Shape ``(d, d)``, or ``(d,)`` of its diagonal alone.

    @classmethod
    def of_fit(
        cls, problem: Problem, state: State, to_own: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> Coordinates:
        """Return those in which a Gaussian is ``N(0, I)``.

        Very many latents, or a mixture, have scales alone.

        :param to_own: map from the Gaussian's latents to those of the density, of which these are
            the secants.
        :raises ValueError: if rounding has taken the rank of the covariance.
        """
        if problem.space.dim > MAX_DENSE or problem.space.noise_dim > problem.space.dim:
            return cls.of_stddevs(problem, state)
        ends = np.vstack([np.eye(problem.space.dim), -np.eye(problem.space.dim)])
        theta = to_own(problem.space.draw(state, ends)[0])
        ends = theta.reshape(2, len(theta) // 2, -1)
        scale = 0.5 * (ends[0] - ends[1]).T
        rows = scale / np.linalg.norm(scale, axis=1, keepdims=True)  # units do not matter
        if np.linalg.matrix_rank(rows) < len(rows):
            raise ValueError("the covariance of the fit is singular at the numbers' precision")
        return cls(theta.mean(0), scale)

    @classmethod
    def of_stddevs(cls, problem: Problem, state: State) -> Coordinates:
        """Return those in which each latent of a Gaussian is ``N(0, 1)``."""
        sds = map(problem.space.numbers, problem.space.all_stddevs(problem.space.families(state)))
        return cls(problem.space.mean(state), np.concatenate([*sds]))

    def theta(self, z: np.ndarray) -> np.ndarray:
        """Return latent vectors ``(..., d)``."""
        return self.centre + (z @ self.scale.T if self.scale.ndim > 1 else z * self.scale)

    def z(self, theta: np.ndarray) -> np.ndarray:
        """Return the coordinates of latent vectors ``(n, d)``."""
        apart = theta - self.centre
        if self.scale.ndim > 1:
            return np.linalg.solve(self.scale, apart.T).T
        return apart / self.scale

    def slope(self, gradient: np.ndarray) -> np.ndarray:
        """Return gradients in these coordinates."""
        return gradient @ self.scale if self.scale.ndim > 1 else gradient * self.scale

    def natural(self, gradient: np.ndarray) -> np.ndarray:
        """Return natural gradients: the covariance ``scale scale'`` times gradients."""
        slope = self.slope(gradient)
        return slope @ self.scale.T if self.scale.ndim > 1 else slope * self.scale

    def adapted(
        self, z: np.ndarray, slopes: np.ndarray, left: float = 1.0
    ) -> tuple[Coordinates, float]:
        """Return the best coordinates, or these if none are worth a change.

        :param z: deviations of draws from their mean, ``(chains, draws, d)``.
        :param slopes: gradients there.
        :param left: part of all draws that these coordinates still need: a change needs all anew.
        :return: beside them the factor by which steps may be longer.
        """
        z, slopes = (values.reshape(-1, values.shape[-1]) for values in (z, slopes))
        if self.scale.ndim == 1:
            return self._rescaled(np.square(z).mean(0), np.square(slopes).mean(0), left)
        moments, of_slopes = _moments(z), _moments(slopes)
        pairs = zip(np.array_split(z, 2), np.array_split(slopes, 2), strict=True)
        halves = [(_moments(one), _moments(other)) for one, other in pairs]
        eye, ways = np.eye(z.shape[-1]), [_scales, self._of_own, _full]
        with np.errstate(all="ignore"):
            found = [_cost(*halves[0], eye) + _cost(*halves[1], eye)]
            for way in ways:
                found.append(_judged(way, *halves) + _judged(way, *halves[::-1]))
            best = int(np.argmin(found))
            if found[best] * WORTH > found[0] * left:
                return self, 1.0
            change = ways[best - 1](moments, of_slopes)
        return self._changed(change, of_slopes)

    def of_scales(self, z: np.ndarray, slopes: np.ndarray) -> tuple[Coordinates, float]:
        """Return the model's own latents, in standard deviations, and how much longer steps may be.

        A funnel runs along these. Arguments are those of :meth:`adapted`.
        """
        z, slopes = (values.reshape(-1, values.shape[-1]) for values in (z, slopes))
        sds = np.sqrt(np.square(self.theta(z) - self.centre).mean(0))
        change = np.linalg.solve(self.scale, np.diag(sds))
        return self._changed(change, _moments(slopes))

    def _changed(self, change: np.ndarray, of_slopes: np.ndarray) -> tuple[Coordinates, float]:
        before, after = _largest(of_slopes), _largest(change.T @ of_slopes @ change)
        longer = math.sqrt(before / after) if after > 0 else 1.0  # a density that is flat
        return Coordinates(self.centre, self.scale @ change), longer

    def _rescaled(
        self, squares: np.ndarray, curvatures: np.ndarray, left: float
    ) -> tuple[Coordinates, float]:
        is_known = (squares > 0) & (curvatures > 0)
        change = np.where(is_known, squares / np.where(is_known, curvatures, 1.0), 1.0) ** 0.25
        if max(change.max(), 1.0 / change.min()) * left < WORTH:
            return self, 1.0
        longer = np.sqrt(curvatures.max() / (change**2 * curvatures).max())
        return Coordinates(self.centre, self.scale * change), float(longer)

    def _of_own(self, moments: np.ndarray, of_slopes: np.ndarray) -> np.ndarray:
        """Return the change to scaled latents of the model's own."""
        inverse = np.linalg.inv(self.scale)
        squares = np.einsum("ij,jk,ik->i", self.scale, moments, self.scale)
        curvatures = np.einsum("ji,jk,ki->i", inverse, of_slopes, inverse)
        return inverse * (squares / curvatures) ** 0.25


def _scales(moments: np.ndarray, of_slopes: np.ndarray) -> np.ndarray:
    """Return a scaling."""
    return np.diag((np.diag(moments) / np.diag(of_slopes)) ** 0.25)


def _full(moments: np.ndarray, of_slopes: np.ndarray) -> np.ndarray:
    """Return a root of the geometric mean of one matrix and the other's inverse."""
    ridge = SHRINKAGE * np.eye(len(moments))
    root = _root(of_slopes + ridge)
    inverse = np.linalg.inv(root)
    return _root(inverse @ _root(root @ (moments + ridge) @ root) @ inverse)


def _root(matrix: np.ndarray) -> np.ndarray:
    """Return the square root of a positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def _moments(rows: np.ndarray) -> np.ndarray:
    return rows.T @ rows / len(rows)


def _largest(matrix: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(matrix)[-1])


def _cost(moments: np.ndarray, of_slopes: np.ndarray, change: np.ndarray) -> float:
    """Return steps for an effective draw after a change of coordinates."""
    inverse = np.linalg.inv(change)
    longest = _largest(inverse @ moments @ inverse.T)
    return float(np.sqrt(longest * _largest(change.T @ of_slopes @ change)))


def _judged(
    way: Callable[[np.ndarray, np.ndarray], np.ndarray],
    own: tuple[np.ndarray, np.ndarray],
    other: tuple[np.ndarray, np.ndarray],
) -> float:
    """Return the cost of a change that is made from one half of the chains, by the others."""
    try:
        found = _cost(*other, way(*own))
    except np.linalg.LinAlgError:  # of chains that have not moved
        return np.inf
    return found if np.isfinite(found) else np.inf
