"""What both packages refuse: each check of an argument returns the value that it lets through.

A schedule, a callable from the number of steps taken, stands for its values, which nobody checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def is_auto(value: Any, name: str, otherwise: str = "a number or a schedule") -> bool:
    """Whether ``value`` is ``"auto"``.

    :param otherwise: what else the option may be, for the error.
    :raises ValueError: for any other string.
    """
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"{name} must be 'auto', {otherwise}, got {value!r}.")
    return isinstance(value, str)


def check_step_size(step_size: Any, name: str = "step_size") -> Any:
    """``step_size``, if it is a positive number or a schedule.

    :raises ValueError: if it is not.
    """
    if not callable(step_size) and not step_size > 0:
        raise ValueError(f"{name} must be positive or a schedule, got {step_size}.")
    return step_size


def check_rho(rho: Any, name: str) -> Any:
    """``rho``, if it is a number in (0, 1] or a schedule.

    :raises ValueError: if it is not.
    """
    if not callable(rho) and not 0 < rho <= 1:
        raise ValueError(f"{name} must be in (0, 1] or a schedule, got {rho}.")
    return rho


def check_momentum(beta: float, name: str = "beta") -> float:
    """``beta``, if it is in [0, 1).

    :raises ValueError: if it is not.
    """
    if not 0 <= beta < 1:
        raise ValueError(f"{name} must be in [0, 1), got {beta}.")
    return beta


def check_positive(value: float, name: str) -> float:
    """``value``, if it is positive.

    :raises ValueError: if it is not.
    """
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}.")
    return value


def check_learning_rule(
    step_size: Any,
    precision_step_size: Any,
    momentum: float,
    max_kl: Any,
    names: tuple[str, str] = ("step_size", "precision_step_size"),
) -> None:
    """Refuse what the Bayesian learning rule cannot take.

    :param names: what the package calls the two step sizes.
    :raises ValueError: naming the option.
    """
    if precision_step_size is not None:
        check_rho(precision_step_size, names[1])
    if not is_auto(step_size, names[0]):
        # A mean with a step size of its own may move as it likes.
        check = check_rho if precision_step_size is None else check_step_size
        check(step_size, names[0])
    check_momentum(momentum, "momentum")
    if max_kl is not None and not is_auto(max_kl, "max_kl", "a number or None"):
        check_positive(max_kl, "max_kl")


def check_init_scale(init_scale: float) -> float:
    """``init_scale``, if it is a positive, finite number.

    :raises ValueError: if it is not.
    """
    if not 0 < init_scale < math.inf:
        raise ValueError(f"Expected init_scale > 0. but got {init_scale}")
    return float(init_scale)


class InvalidStartError(ValueError):
    """The log density is not finite where a guide would start."""


class DiscreteLatentError(ValueError):
    """A discrete latent is not marked for enumeration."""


class LatentShapes:
    """The unconstrained shapes of a model's latents, checked once for every new kind of arguments.

    A guide holds one coordinate per latent. A model whose latents follow the data would be
    replayed with values of the wrong size, and fail far from the cause.

    :param expected: the shapes that the guide was set up with, by site.
    :param signature: what tells the arguments of its set-up from others, hashable.
    """

    def __init__(self, expected: dict[str, tuple[int, ...]], signature: Any) -> None:
        self._expected, self._seen = expected, {signature}

    def compare(self, signature: Any, shapes: Callable[[], dict[str, tuple[int, ...]]]) -> None:
        """Look at the shapes for arguments with a new signature.

        :param shapes: finds them.
        :raises ValueError: naming the site whose size has changed.
        """
        if signature in self._seen:
            return
        for name, shape in shapes().items():
            expected = self._expected.get(name)
            if expected is not None and shape != expected:
                raise ValueError(
                    f"Latent site '{name}' has unconstrained shape {shape} for these arguments, "
                    f"but the guide was set up with {expected}. A guide's latents are fixed by "
                    "its first call: make a new NaturalGaussianGuide for the new size."
                )
        self._seen.add(signature)


def check_rank(rank: int, dim: int | None = None) -> None:
    """Refuse a rank that no factor can have.

    :raises ValueError: if it is below 1 or above the dimension.
    """
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise ValueError(
            f"LowRankPrecision(rank={rank!r}): rank must be an integer of at least 1. Without "
            "correlations use family='diagonal'."
        )
    if dim is not None and rank > dim:
        raise ValueError(
            f"LowRankPrecision(rank={rank}) has a rank above the model's {dim} latents. Use a rank "
            f"of at most {dim}, or family='covariance_cholesky', which holds every covariance."
        )
