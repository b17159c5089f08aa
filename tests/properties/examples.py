"""How many models the properties are tried on, and how they are found."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

#: ``NGVI_EXAMPLES=10`` tries so many times as many, for an hour in which nobody waits.
TIMES = int(os.environ.get("NGVI_EXAMPLES", "1"))


def examples(count: int) -> Any:
    """So many, the same in every run."""
    return settings(
        max_examples=TIMES * count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
