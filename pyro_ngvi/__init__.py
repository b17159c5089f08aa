"""Natural-gradient variational inference for Pyro."""

try:
    import pyro as _pyro  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"pyro_ngvi needs {error.name}: pip install 'ngvi[pyro]'", name=error.name
    ) from error

from ngvi import __version__ as __version__
from pyro_ngvi import families
from pyro_ngvi.elbo import NaturalELBO
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.inference import FitOptions, FitResult, fit, fit_density
from pyro_ngvi.optim import BLR, IVON, Snngm
from pyro_ngvi.svi import SVI
from pyro_ngvi.tempering import tempered

__all__ = [
    "BLR",
    "IVON",
    "SVI",
    "FitOptions",
    "FitResult",
    "NaturalELBO",
    "NaturalGaussianGuide",
    "ReparametrizedGaussianGuide",
    "Snngm",
    "families",
    "fit",
    "fit_density",
    "tempered",
]
