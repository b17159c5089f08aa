"""Natural-gradient optimisers."""

from numpyro_ngvi.optim.rules import BLR, IVON, VOGN, VON, Nagm, Snngm

__all__ = ["BLR", "IVON", "VOGN", "VON", "Nagm", "Snngm"]
