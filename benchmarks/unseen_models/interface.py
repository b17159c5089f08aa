"""All that comes from the gauntlet; nothing else here says where it is."""

from benchmarks.gauntlet.check import log_densities
from benchmarks.gauntlet.models.ppl import Ppl
from benchmarks.gauntlet.models.registry import Entry
from benchmarks.gauntlet.search import best
from benchmarks.gauntlet.target import Target

__all__ = ["Entry", "Ppl", "Target", "best", "log_densities"]
