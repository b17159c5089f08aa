"""Groups of draws: how many points they have, what is evaluated there, and where the points are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ngvi.fit.engine import Draws
from ngvi.points import Points, spherical_points

CURVATURES = ("auto", "spherical", "hessian", "stein")

#: ``curvature="auto"`` takes Hessians for structured families, whose Hessians take fewer products
#: than ``d`` over the first number, and fewer than the second.
CHEAP_HESSIAN = 8
MAX_PRODUCTS = 2000
#: Otherwise the ``2 d + 1`` gradients of a group up to this many latents, then gradients at few
#: points.
MAX_SPHERICAL_DIM = 2000

#: Draws in a group with Hessians, in antithetic pairs, and in one with gradients only.
MIN_HESSIANS, MAX_HESSIANS = 4, 64
NUM_STEIN = 10

#: The draws of a group have at most so many times the data between them.
NUMBERS_AT_ONCE = 2**25


def check_curvature(curvature: str) -> None:
    """Raise a ``ValueError`` for a name that is none of :data:`CURVATURES`."""
    if curvature not in CURVATURES:
        known = ", ".join(repr(name) for name in CURVATURES)
        raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {known}.")


def choose(
    curvature: str, dim: int, products: int, obstacle: Callable[[], Exception | None]
) -> str:
    """What ``"auto"`` stands for, and the others themselves.

    :param dim: ``d``.
    :param products: Hessian-vector products that the families' Hessian takes.
    :param obstacle: tries whether there is a Hessian.
    :raises ValueError: if Hessians are asked for, and there are none.
    """
    if curvature in ("spherical", "stein"):
        return curvature
    otherwise = "spherical" if dim <= MAX_SPHERICAL_DIM else "stein"
    if curvature == "auto" and (CHEAP_HESSIAN * products > dim or products > MAX_PRODUCTS):
        return otherwise
    error = obstacle()
    if error is None:
        return "hessian"
    if curvature == "auto":
        return otherwise
    raise ValueError(
        f"There are no Hessians of the log density ({error}). Use curvature='spherical' or "
        "'stein', which need gradients only."
    ) from error


class Groups(NamedTuple):
    """What a group of draws is made of."""

    curvature: str
    dim: int
    num_hessians: int  #: at its first draws, with ``"hessian"``
    num_gradients: int  #: in all
    num_products: int  #: Hessian-vector products in all

    @classmethod
    def of(
        cls,
        curvature: str,
        dim: int,
        products: int,
        data_size: int,
        num_gradients: Callable[[int, int], int],
    ) -> Groups:
        """As many Hessians as cost about what a group of orthogonal points would.

        :param products: Hessian-vector products that a Hessian takes.
        :param data_size: numbers in the model's largest argument.
        :param num_gradients: for so many Hessians, of so many products each.
        """
        if curvature == "spherical":
            return cls(curvature, dim, 0, 2 * dim + 1, 0)
        if curvature == "stein":
            return cls(curvature, dim, 0, NUM_STEIN, 0)
        affordable = min(dim // products, MAX_HESSIANS, NUMBERS_AT_ONCE // data_size)
        hessians = max(MIN_HESSIANS, 2 * (affordable // 2))
        gradients = num_gradients(hessians, products)
        return cls(curvature, dim, hessians, gradients, hessians * products)

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""
        if self.curvature == "spherical":
            points = spherical_points(rng, self.dim, num_groups)
        else:
            points = [self._antithetic(rng) for _ in range(num_groups)]
        seeds = rng.integers(2**31, size=num_groups)
        return [Draws(group, int(seed)) for group, seed in zip(points, seeds, strict=True)]

    def _antithetic(self, rng: np.random.Generator) -> Points:
        parts: list[np.ndarray] = []
        for count in (self.num_hessians, self.num_gradients - self.num_hessians):
            half = rng.standard_normal((-(-count // 2), self.dim))
            parts.extend((half, -half[: count // 2]))
        noise = np.concatenate(parts)
        return Points(noise, np.full(len(noise), 1.0 / len(noise)))
