"""The two-loop recursion of L-BFGS in the Fisher metric of the present Gaussians.

Nocedal (1980, *Updating quasi-Newton matrices with limited storage*), with ``F`` in place of the
identity: far from the optimum the natural gradient is the better direction, and close to it, where
the bound is flatter or steeper than the metric, the pairs say by how much.

All that the recursion needs of its vectors is their inner products. Those of the pairs are computed
once for all directions of a place.
"""

from __future__ import annotations

import numpy as np

#: A pair counts if the bound's curvature along it is at least this fraction of the Fisher
#: metric's: of flatter ones the noise of the draws decides.
MIN_CURVATURE = 1e-3


class Memory:
    """Pairs of steps and falls of the natural gradient, seen from one place.

    :param steps: changes of the Gaussians, the newest last; shape ``(pairs, n)``.
    :param falls: of the natural gradient along them, shape ``(pairs, n)``.
    :param of_steps: the steps' covectors, shape ``(pairs, n)``.
    :param of_falls: the falls' covectors, shape ``(pairs, n)``.
    """

    def __init__(
        self, steps: np.ndarray, falls: np.ndarray, of_steps: np.ndarray, of_falls: np.ndarray
    ) -> None:
        self._steps, self._falls, self._of_steps, self._of_falls = steps, falls, of_steps, of_falls
        self._curvatures = (steps @ of_falls.T).astype(float)
        self._fall_products = (falls @ of_falls.T).astype(float)
        squares = np.einsum("ij,ij->i", steps, of_steps).astype(float)
        curvature, fall_squares = self._curvatures.diagonal(), self._fall_products.diagonal()
        eps = float(np.finfo(steps.dtype).eps) ** 0.5
        used = (curvature > MIN_CURVATURE * squares) & (
            curvature > eps * np.sqrt(np.abs(squares * fall_squares))
        )
        self._weights = np.where(used, 1.0 / np.where(used, curvature, 1.0), 0.0)

    def correct(self, vector: np.ndarray, of_vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The quasi-Newton direction, as a vector and as a covector.

        :param vector: a natural gradient, shape ``(n,)``.
        :param of_vector: its covector, shape ``(n,)``.
        """
        of_falls, of_steps = (
            amounts.astype(vector.dtype)
            for amounts in self._amounts(self._steps @ of_vector, self._falls @ of_vector)
        )
        return (
            vector - of_falls @ self._falls + of_steps @ self._steps,
            of_vector - of_falls @ self._of_falls + of_steps @ self._of_steps,
        )

    def _amounts(self, along_steps: np.ndarray, along_falls: np.ndarray) -> tuple:
        """How much of each fall is taken off the direction, and of each step added to it.

        :param along_steps: the direction's inner products with the steps.
        :param along_falls: with the falls.
        """
        count = len(self._weights)
        of_falls, of_steps = np.zeros(count), np.zeros(count)
        for i in reversed(range(count)):
            rest = along_steps[i] - self._curvatures[i] @ of_falls
            of_falls[i] = self._weights[i] * rest
        along_falls = along_falls - self._fall_products @ of_falls
        for i in range(count):
            result = along_falls[i] + self._curvatures[:, i] @ of_steps
            of_steps[i] = of_falls[i] - self._weights[i] * result
        return of_falls, of_steps
