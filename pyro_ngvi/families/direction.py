"""The algebra of directions.

A *place* is a list of Gaussians. A *direction* at it is a list of the same families, whose
coordinates are a change of the Gaussians', a natural gradient, or a momentum of such. What
``F``, the Fisher information of the place, makes of a direction is its *dual*: a Euclidean
gradient, whose plain products with directions are Fisher inner products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_ngvi.families.base import Family

Families = list[Family]


def each(function: Callable[..., Tensor], *directions: Families) -> Families:
    """``function`` of the same coordinate of all directions."""
    return [one.map(function, *others) for one, *others in zip(*directions, strict=True)]


def add(left: Families, right: Families) -> Families:
    """``left + right``."""
    return each(torch.add, left, right)


def subtract(left: Families, right: Families) -> Families:
    """``left - right``."""
    return each(torch.sub, left, right)


def negate(direction: Families) -> Families:
    """``-direction``."""
    return each(torch.neg, direction)


def scale(factor: float, direction: Families) -> Families:
    """``factor`` times a direction."""
    return each(lambda x: factor * x, direction)


def combine(amount: float, one: Families, other_amount: float, other: Families) -> Families:
    """``amount * one + other_amount * other``, as a moving average takes it."""
    return each(lambda x, y: (amount * x).add_(y, alpha=other_amount), one, other)


def scale_parts(of_mean: float, of_scale: float, direction: Families) -> Families:
    """The means times one number, all other coordinates times another."""
    scaled = scale(of_scale, direction)
    return with_means(scaled, [of_mean * one.loc for one in direction])


def zeros(like: Families) -> Families:
    """No change at all."""
    return each(torch.zeros_like, like)


def with_means(direction: Families, means: Sequence[Tensor]) -> Families:
    """A direction with other means."""
    return [dataclasses.replace(one, loc=loc) for one, loc in zip(direction, means, strict=True)]


def retract(families: Families, steps: Families) -> Families:
    """Every family at the end of its step, still a Gaussian."""
    return [family.retract(step) for family, step in zip(families, steps, strict=True)]


# -- the Fisher metric ----------------------------------------------------------------


def dual(families: Families, direction: Families) -> Families:
    """``F`` times a direction: two triangular solves for a dense family."""
    return [f.euclidean_gradient(one) for f, one in zip(families, direction, strict=True)]


def natural(families: Families, gradient: Families) -> Families:
    """``F^-1`` times a Euclidean gradient, the inverse of :func:`dual`."""
    return [f.natural_gradient(one) for f, one in zip(families, gradient, strict=True)]


def dot(dual: Families, direction: Families) -> Tensor:
    """The sum of products of all coordinates, a Fisher inner product of a dual; in nats."""
    return sum(value.sum() for value in values(each(torch.mul, dual, direction)))


def inner(families: Families, left: Families, right: Families) -> Tensor:
    """The Fisher inner product of two directions, in nats.

    Of a natural gradient of the bound, and a change: the derivative of the bound along it.
    """
    return dot(dual(families, left), right)


def products(
    families: Families, directions: Sequence[Families], others: Sequence[Families] = ()
) -> tuple[Tensor, Tensor]:
    """Fisher inner products of ``k`` directions with each other and with ``n`` others.

    :return: of their means and of their scales, both of shape ``(k, k + n)``, in nats.
    """
    results = [
        family.fisher_products(
            [direction[i] for direction in directions], [direction[i] for direction in others]
        )
        for i, family in enumerate(families)
    ]
    return tuple(sum(part) for part in zip(*results, strict=True))


# -- the joint vector of all coordinates ----------------------------------------------


def values(direction: Families) -> list[Tensor]:
    """All coordinates of all families."""
    return [value for one in direction for value in one.coordinates().values()]


def joint_norm(direction: Families) -> float:
    """Euclidean norm of the joint vector of all free coordinates."""
    tensors = [tensor for one in direction for tensor in one.free_coordinates()]
    norm = _norm(tensors)
    if norm.isfinite():
        return norm.item()
    # Squares of a float32 overflow from 1e19 on.
    largest = torch.stack([tensor.abs().max() for tensor in tensors]).max()
    return (largest * _norm([tensor / largest for tensor in tensors])).item()


def _norm(tensors: list[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms))
