"""What ``effort=`` of ``fit`` stands for."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class EffortOptions:
    """Gradients for other optima, per gradient that led to the best one, by effort."""

    #: The local optimum alone, from the guide's own start.
    quick: float = 0.0
    #: As much as the way took: twice the time buys the claim.
    standard: float = 1.0
    #: What the search for others took on hard posteriors before it ended by a probability.
    thorough: float = 8.0


QUICK = "quick"
EFFORTS = tuple(one.name for one in dataclasses.fields(EffortOptions))


def check_effort(value: Any, name: str) -> str:
    """One of three words.

    :raises ValueError: if it is another.
    """
    if value not in EFFORTS:
        known = ", ".join(map(repr, EFFORTS))
        raise ValueError(f"{name} must be one of {known}, got {value!r}.")
    return value
