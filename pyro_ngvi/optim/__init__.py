"""Natural-gradient optimisers."""

from pyro_ngvi.optim.blr import BLR
from pyro_ngvi.optim.nagm import Nagm
from pyro_ngvi.optim.snngm import Snngm
from pyro_ngvi.optim.von import IVON, VOGN, VON

__all__ = ["BLR", "IVON", "VOGN", "VON", "Nagm", "Snngm"]
