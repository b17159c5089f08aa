"""``fit_density``; see :mod:`ngvi.inference.density`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.inference.density import DensityModel
from pyro_ngvi.inference.driver import fit
from pyro_ngvi.inference.result import FitResult


@door
@shared_doc(DensityModel)
def fit_density(log_density: Callable, dim: int, **options: Any) -> FitResult:
    """Fit a Gaussian density, for instance.

    >>> precision = torch.tensor([[2.0, 0.9], [0.9, 1.0]])
    >>> result = fit_density(lambda theta: -0.5 * theta @ precision @ theta, 2, progress_bar=False)
    >>> result.verdict, f"{result.posterior.variance[0]:.3f}"
    ('certified', '0.840')

    :param options: options of ``fit``.
    :return: the result, which ``FitResult.load(path, result.model)`` reads from a file.
    """
    return fit(DensityModel(log_density, dim, "pyro"), **options)
