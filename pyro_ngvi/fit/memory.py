"""The two-loop recursion of L-BFGS in the Fisher metric of the present Gaussians.

Nocedal (1980, *Updating quasi-Newton matrices with limited storage*), with ``F`` in place of the
identity: far from the optimum the natural gradient is the better direction, and close to it, where
the bound is flatter or steeper than the metric, the pairs say by how much.

All that the recursion needs of its vectors is their inner products. Those of the pairs are computed
once for all directions of a place, so that it takes a few operations a direction, not some for
every pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_ngvi.families.base import Family
from pyro_ngvi.fit.flat import EachRow, flat, unflat

#: A pair counts if the bound's curvature along it is at least this fraction of the Fisher
#: metric's: of flatter ones the noise of the draws decides.
MIN_CURVATURE = 1e-3


class Memory:
    """Pairs of steps and falls of the natural gradient, seen from one place.

    :param families: the Gaussians of the place.
    :param pairs: changes of the Gaussians, and the falls of the direction along them, the oldest
        first; the fall's first part are the families.
    :param each_row: applies a function to many directions.
    """

    def __init__(self, families: list[Family], pairs: list[Any], each_row: EachRow) -> None:
        self.families, self.pairs = families, pairs
        if not pairs:
            return
        # Of vectors, and of covectors, in the same order.
        self._steps = torch.stack([flat(step) for step, _ in pairs])
        self._falls = torch.stack([flat(fall[0]) for _, fall in pairs])
        vectors = torch.cat([self._steps, self._falls])
        covectors = each_row(lambda vector: covector(families, vector), vectors)
        self._of_steps, self._of_falls = covectors.chunk(2)
        self._curvatures = _numbers(self._steps @ self._of_falls.mT)
        self._fall_products = _numbers(self._falls @ self._of_falls.mT)
        squares = _numbers((self._steps * self._of_steps).sum(-1))
        curvature, fall_squares = self._curvatures.diagonal(), self._fall_products.diagonal()
        eps = torch.finfo(vectors.dtype).eps ** 0.5
        with np.errstate(all="ignore"):
            used = (curvature > MIN_CURVATURE * squares) & (
                curvature > eps * np.sqrt(np.abs(squares * fall_squares))
            )
        self._weights = np.where(used, 1.0 / np.where(used, curvature, 1.0), 0.0)

    def is_of(self, families: list[Family], pairs: list[Any]) -> bool:
        """Whether it was made of these."""
        same = self.families is families and len(self.pairs) == len(pairs)
        return same and all(one is other for one, other in zip(self.pairs, pairs, strict=True))

    def correct(self, vector: Tensor, of_vector: Tensor) -> tuple[Tensor, Tensor]:
        """The quasi-Newton direction, as a vector and as a covector.

        :param vector: the direction.
        :param of_vector: its covector.
        """
        if not self.pairs:
            return vector, of_vector
        of_falls, of_steps = self._amounts(
            *_numbers(torch.stack([self._steps @ of_vector, self._falls @ of_vector]))
        )
        of_falls, of_steps = torch.as_tensor(np.stack([of_falls, of_steps])).to(vector)
        return (
            vector - of_falls @ self._falls + of_steps @ self._steps,
            of_vector - of_falls @ self._of_falls + of_steps @ self._of_steps,
        )

    def _amounts(self, along_steps: np.ndarray, along_falls: np.ndarray) -> tuple:
        """How much of each fall is taken off the direction, and of each step added to it.

        :param along_steps: the direction's inner products with the steps.
        :param along_falls: with the falls.
        """
        of_falls, of_steps = np.zeros_like(along_steps), np.zeros_like(along_steps)
        for i in reversed(range(len(self.pairs))):
            rest = along_steps[i] - self._curvatures[i] @ of_falls
            of_falls[i] = self._weights[i] * rest
        along_falls = along_falls - self._fall_products @ of_falls
        for i in range(len(self.pairs)):
            result = along_falls[i] + self._curvatures[:, i] @ of_steps
            of_steps[i] = of_falls[i] - self._weights[i] * result
        return of_falls, of_steps


def covector(families: list[Family], vector: Tensor) -> Tensor:
    """``F`` times a vector, whose products with others are their Fisher inner products."""
    parts = zip(families, unflat(vector, families), strict=True)
    return flat([family.euclidean_gradient(part) for family, part in parts])


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()
