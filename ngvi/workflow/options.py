"""Every number that decides in the workflow, each with one line of why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class WorkflowOptions:
    """Summaries, sites, leave-one-out, updates."""

    #: Draws of a summary: the error of a mean is then 0.016 standard deviations.
    num_draws: int = 4000


DEFAULTS = WorkflowOptions()
