"""Functions of rules: the mean's metric, corrected directions, steps of some latents.

Functions of a family. One that has another way registers it: ``@covariance_times.register(Mine)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from ngvi.families.gaussian import Array


@singledispatch
def attempts_are_costly(family: Any) -> bool:
    """Tell whether an attempt (:class:`~ngvi.families.path.Path`) is most of a step."""
    return False


@singledispatch
def leaves_out_correlations(family: Any) -> bool:
    """Tell whether the precision leaves out correlations that the log density may have."""
    return False


def relative_scale_step(family: Any) -> float:
    """Return a stable learning rate of the scale, relative to the mean's (Tan, section 6)."""
    return 0.1 if family.couples() == "none" else 0.01


@singledispatch
def corrected(family: Any, direction: Any, step_size: Array | float) -> Any:
    """Return the direction whose step multiplies precisions by ``1 + t + t^2 / 2``, not ``1 + t``.

    The correction of Lin, Schmidt and Khan (2020), of a mean field; most others correct their
    steps (:meth:`ngvi.families.path.WhitenedPath.damped`).
    """
    return direction


def bounded(family: Any, direction: Any, step_size: Array | float, most: float) -> Any:
    """Return the direction whose step changes a mean field's precisions by at most a part.

    That is ``most`` of them. Curvatures that are heavier than the average so far then count as a
    bound on them does. Of other families it is the direction.
    """
    if family.couples() != "none":
        return direction
    limit = 0.5 * most / step_size * family.stddev
    return dataclasses.replace(direction, scale=family.xp.clip(direction.scale, -limit, limit))


# -- steps of some latents alone ------------------------------------------------------


@singledispatch
def has_parts(family: Any) -> bool:
    """Tell whether single latents, or blocks of them, have coordinates of their own."""
    return False


@singledispatch
def moved_latents(family: Any, direction: Any) -> Array:
    """Return 1 for latents whose own coordinates a direction changes, else 0; shape ``(d,)``."""
    return family.xp.ones_like(direction.loc)


@singledispatch
def weighted(family: Any, direction: Any, of_mean: Array, of_scale: Array) -> Any:
    """Return a direction, with each latent's own part times a weight.

    What latents above it, on which its mean depends, make of its mean is no part of that.

    :param of_mean: shape ``(d,)``, equal within each block.
    :param of_scale: the same, of all coordinates but the mean.
    """
    return direction


# -- the Fisher metric ----------------------------------------------------------------


@singledispatch
def covariance_times(family: Any, vector: Array) -> Array:
    """Return ``Sigma x``, the natural gradient of the mean; shape ``(d,)``."""
    still = family.map(family.xp.zeros_like)
    return family.natural_gradient(dataclasses.replace(still, loc=vector)).loc


@singledispatch
def gradient_of_mean(family: Any, natural_gradient: Any) -> Array:
    """Return the mean's part of ``euclidean_gradient``, shape ``(d,)``."""
    return family.euclidean_gradient(natural_gradient).loc


@singledispatch
def mean_products(family: Any, natural_gradient: Any, change: Array) -> tuple[Array, Array]:
    """Return products of :func:`gradient_of_mean` with a change of the mean, and with its own.

    :param change: shape ``(d,)``.
    """
    gradient = gradient_of_mean(family, natural_gradient)
    return (gradient * change).sum(), (gradient * natural_gradient.loc).sum()


def inner(family: Any, left: Any, right: Any) -> Array:
    """Return ``left^T F right``, the Fisher inner product of two directions, in nats."""
    gradient = family.euclidean_gradient(left)
    pairs = zip(gradient.coordinates().values(), right.coordinates().values(), strict=True)
    return sum((a * b).sum() for a, b in pairs)


@singledispatch
def fisher_products(family: Any, directions: Sequence[Any], others: Sequence[Any] = ()) -> Any:
    """Return Fisher inner products of ``k`` directions with each other and with ``n`` others.

    :return: of their means and of all their other coordinates, which are orthogonal; both
        ``k`` rows of ``k + n`` numbers, in nats.
    """
    duals = [family.euclidean_gradient(one) for one in directions]
    rows = [[list(x.coordinates().values()) for x in xs] for xs in (duals, [*directions, *others])]
    of_means = family.ops.products(*([x[:1] for x in xs] for xs in rows))
    return of_means, family.ops.products(*([x[1:] for x in xs] for xs in rows))


@singledispatch
def free_coordinates(family: Any) -> list[Array]:
    """Return tensors that hold every free coordinate once, and nothing else but zeros.

    For the Euclidean norm of a direction over ``lambda`` (Tan's Table 5): of a symmetric matrix it
    counts each off-diagonal element once.
    """
    return list(family.coordinates().values())
