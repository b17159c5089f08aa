"""Natural-gradient optimisers."""

from pyro_ngvi.optim.nagm import Nagm
from pyro_ngvi.optim.snngm import Snngm

__all__ = ["Nagm", "Snngm"]
