"""Natural-gradient optimisers."""

from pyro_ngvi.optim.blr import BLR
from pyro_ngvi.optim.nadam import NAdam
from pyro_ngvi.optim.nagm import Nagm
from pyro_ngvi.optim.plain_ivon import PlainIVON, initial_hess
from pyro_ngvi.optim.prox_gen_adam import ProxGenAdam
from pyro_ngvi.optim.snngm import Snngm
from pyro_ngvi.optim.von import IVON, VOGN, VON

__all__ = [
    "BLR",
    "IVON",
    "VOGN",
    "VON",
    "NAdam",
    "Nagm",
    "PlainIVON",
    "ProxGenAdam",
    "Snngm",
    "initial_hess",
]
