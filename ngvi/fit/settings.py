"""What the user of ``fit`` may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The numbers of a fit, checked; see ``fit``.

    :raises ValueError: for a tolerance or a number of steps that is not positive.
    """

    tolerance: float
    max_steps: int
    deterministic: bool = False

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, in nats, got {self.tolerance!r}.")
        if not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise ValueError(f"max_steps must be an integer, at least 1, got {self.max_steps!r}.")
