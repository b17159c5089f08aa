"""L-BFGS in the Fisher metric of the present Gaussians.

:mod:`~ngvi.optim.two_loop` with ``F`` in place of the identity: far from the optimum the natural
gradient is the better direction, and close to it, where the bound is flatter or steeper than the
metric, the pairs say by how much.

All that the recursion needs of its vectors is their inner products. Those of the pairs are computed
once for all directions of a place, and it runs on the coefficients of a sum of vectors.
"""

from __future__ import annotations

import numpy as np

from ngvi.optim.two_loop import Pairs, two_loop

#: A pair counts if the bound's curvature along it is at least this fraction of the Fisher
#: metric's: of flatter ones the noise of the draws decides.
MIN_CURVATURE = 1e-3


class Memory:
    """Pairs of steps and falls of the natural gradient, seen from one place.

    :param steps: changes of the Gaussians, the newest last; shape ``(pairs, n)``.
    :param falls: of the natural gradient along them, shape ``(pairs, n)``.
    :param of_steps: the steps' covectors, shape ``(pairs, n)``.
    :param of_falls: the falls' covectors, shape ``(pairs, n)``.
    :param min_curvature: pairs count that have this fraction of the metric's curvature.
    """

    def __init__(
        self,
        steps: np.ndarray,
        falls: np.ndarray,
        of_steps: np.ndarray,
        of_falls: np.ndarray,
        min_curvature: float = MIN_CURVATURE,
    ) -> None:
        # Rows: the steps, then the falls.
        self._vectors = np.concatenate([steps, falls])
        self._products = self._along(np.concatenate([of_steps, of_falls]).T)
        squares, fall_squares = np.split(self._products.diagonal(), 2)
        curvature = self._products[: len(steps), len(steps) :].diagonal()
        eps = float(np.finfo(steps.dtype).eps) ** 0.5
        used = (curvature > min_curvature * squares) & (
            curvature > eps * np.sqrt(np.abs(squares * fall_squares))
        )
        used &= (squares > 0) & (fall_squares > 0)  # and did not overflow
        #: The least curvature that counts, as a fraction of the metric's; one without pairs.
        self.flattest = float(np.min(curvature[used] / squares[used], initial=1.0))
        self._weights = np.where(used, 1.0 / np.where(used, curvature, 1.0), 0.0)

    def correct(self, vector: np.ndarray, of_vector: np.ndarray) -> np.ndarray:
        """The quasi-Newton direction.

        :param vector: a natural gradient, shape ``(n,)``.
        :param of_vector: its covector, shape ``(n,)``.
        """
        # A vector is its coefficients of the direction, the steps and the falls.
        along = self._along(of_vector)
        unit = np.eye(1 + len(along))
        steps, falls = np.split(unit[1:], 2)
        of_steps, of_falls = np.split(np.column_stack([along, self._products]), 2)
        # Gradients are natural ones already: what the metric makes of a gradient is itself.
        pairs = Pairs(steps, falls, of_steps, of_falls, self._weights)
        amounts = two_loop(pairs, unit[0], lambda rest: rest)[1:].astype(vector.dtype)
        return vector + amounts @ self._vectors

    def _along(self, covectors: np.ndarray) -> np.ndarray:
        """Products of the pairs with covectors.

        Those of a fall over a cliff overflow in single precision. Such a pair does not count, and
        what a weight of zero multiplies must be finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            products = (self._vectors @ covectors).astype(float)
        return np.where(np.isfinite(products), products, 0.0)
