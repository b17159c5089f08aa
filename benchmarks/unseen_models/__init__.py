"""Models on which the search is read, not developed; see ``README.md``."""

from . import (  # noqa: F401
    everyday_groups,
    everyday_modes,
    everyday_nested,
    everyday_regressions,
    everyday_skewed,
    everyday_tails,
    groups,
    new_groups,
    new_hard,
    new_plain,
    regressions,
    shapes,
)
from .everyday import EVERYDAY
from .registry import UNSEEN, UnseenEntry

__all__ = ["EVERYDAY", "UNSEEN", "UnseenEntry"]
