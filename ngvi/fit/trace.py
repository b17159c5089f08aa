"""What each step of a fit looked like."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Trace:
    """One entry per step in each list."""

    #: Minus the bound, in nats, as estimated before each step.
    losses: list[float] = dataclasses.field(default_factory=list)
    #: Standard errors of ``losses``, in nats.
    loss_errors: list[float] = dataclasses.field(default_factory=list)
    #: Step sizes ``rho``; 1 is a whole natural-gradient step.
    step_sizes: list[float] = dataclasses.field(default_factory=list)
    #: Estimated distances of the bound to its optimum, in nats.
    distances: list[float] = dataclasses.field(default_factory=list)
    #: How many draws each step averaged over.
    num_draws: list[int] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.losses)

    def cut(self, count: int) -> None:
        """Forget all but the first steps."""
        for values in vars(self).values():
            del values[count:]
