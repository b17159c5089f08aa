"""Natural-gradient optimisers."""

from numpyro_ngvi.optim.blr import BLR
from numpyro_ngvi.optim.nagm import Nagm
from numpyro_ngvi.optim.snngm import Snngm
from numpyro_ngvi.optim.von import IVON, VOGN, VON

__all__ = ["BLR", "IVON", "VOGN", "VON", "Nagm", "Snngm"]
