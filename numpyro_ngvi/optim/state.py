"""The state of all natural-gradient optimisers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax


class JointState(NamedTuple):
    """State of a natural-gradient optimiser."""

    count: jax.Array  # type: ignore[assignment]  #: Steps taken.
    num_skipped: jax.Array  #: Steps not taken, or taken back.
    rule: Any  #: State of the natural-gradient rule.
    other: Any  #: State of the optimiser of model parameters.
