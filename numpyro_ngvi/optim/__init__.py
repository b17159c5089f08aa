"""Natural-gradient optimisers."""

from numpyro_ngvi.optim.nagm import Nagm
from numpyro_ngvi.optim.snngm import Snngm

__all__ = ["Nagm", "Snngm"]
