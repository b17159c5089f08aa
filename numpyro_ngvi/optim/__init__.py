"""Natural-gradient optimisers."""

from numpyro_ngvi.optim.blr import BLR
from numpyro_ngvi.optim.nadam import NAdam
from numpyro_ngvi.optim.nagm import Nagm
from numpyro_ngvi.optim.plain_ivon import PlainIVON, initial_hess
from numpyro_ngvi.optim.prox_gen_adam import ProxGenAdam
from numpyro_ngvi.optim.snngm import Snngm
from numpyro_ngvi.optim.von import IVON, VOGN, VON

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
