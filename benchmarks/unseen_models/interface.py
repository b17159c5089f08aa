"""All that comes from the gauntlet; nothing else here says where it is."""

from benchmarks.gauntlet_models.check import log_densities
from benchmarks.gauntlet_models.ppl import Ppl
from benchmarks.gauntlet_models.registry import Entry
from benchmarks.gauntlet_models.search import best
from benchmarks.gauntlet_models.target import Target

__all__ = ["Entry", "Ppl", "Target", "best", "log_densities"]
