"""The two-loop recursion of L-BFGS for arrays of any library.

See Nocedal (1980), *Updating quasi-Newton matrices with limited storage*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Pairs(NamedTuple):
    """Steps, and by what the gradient fell along them, ``y``: one pair a row, the newest last."""

    steps: Any  #: Steps that a pair adds to the direction.
    ys: Any  #: Changes that a pair takes off the gradient.
    of_steps: Any  #: The steps, for products with a gradient.
    of_ys: Any  #: The changes ``y``, for products with a direction.
    weights: Any  #: Inverse curvature along the step; zero for a pair that is not used.


def scan(function: Callable, state: Any, rows: tuple, reverse: bool = False) -> tuple[Any, list]:
    """Scan rows as ``jax.lax.scan`` does, one after another."""
    order = list(zip(*rows, strict=True))
    results = []
    for row in reversed(order) if reverse else order:
        state, result = function(state, row)
        results.append(result)
    return state, results[::-1] if reverse else results


def two_loop(
    pairs: Pairs, gradient: Any, metric: Callable[[Any], Any], scan: Callable = scan
) -> Any:
    """Return a quasi-Newton direction from ``gradient``.

    :param metric: the direction that the pairs correct, a linear function of the gradient.
    :param scan: ``jax.lax.scan`` for JAX's arrays.
    """
    rest, amounts = first_loop(pairs, gradient, scan)
    return second_loop(pairs, amounts, metric(rest), scan)


def first_loop(pairs: Pairs, gradient: Any, scan: Callable = scan) -> tuple[Any, Any]:
    """Return the metric's argument, and the pairs' amounts for :func:`second_loop`."""

    def backward(rest: Any, row: tuple) -> tuple[Any, Any]:
        _, y, of_step, _, weight = row
        amount = weight * (of_step @ rest)
        return rest - amount * y, amount

    return scan(backward, gradient, tuple(pairs), reverse=True)


def second_loop(pairs: Pairs, amounts: Any, result: Any, scan: Callable = scan) -> Any:
    """Return the direction, from what the metric made of the first loop's rest."""

    def forward(result: Any, row: tuple) -> tuple[Any, None]:
        step, _, _, of_y, weight, amount = row
        return result + (amount - weight * (of_y @ result)) * step, None

    return scan(forward, result, (*pairs, amounts))[0]
