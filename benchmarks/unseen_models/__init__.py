"""Models on which the search is read, not developed; see ``README.md``."""

from . import groups, new_groups, new_hard, new_plain, regressions, shapes  # noqa: F401
from .registry import UNSEEN, UnseenEntry

__all__ = ["UNSEEN", "UnseenEntry"]
