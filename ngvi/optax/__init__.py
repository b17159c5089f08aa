"""IVON, VOGN and SLANG as plain optax transformations, for a training loop without a PPL."""

from ngvi.networks.optax.loop import IvonState, IvonTransformation, predict, sample
from ngvi.networks.optax.rules import initial_hess, ivon, vogn
from ngvi.networks.optax.slang import slang

__all__ = [
    "IvonState",
    "IvonTransformation",
    "initial_hess",
    "ivon",
    "predict",
    "sample",
    "slang",
    "vogn",
]
