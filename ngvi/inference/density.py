"""A log density of one vector in place of a model."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ngvi.errors import check_count, check_function, shown


class DensityModel:
    """Fit a Gaussian to a log density, without a model of the PPL.

    The result is that of ``fit`` for a model with one latent, ``"theta"``, of shape ``(dim,)``:
    ``sample``, ``summary``, ``posterior``, ``nuts`` and files work the same. There are no rows or
    data, so ``predictive`` is empty and ``loo`` raises an error.

    :param log_density: a function from a real vector, shape ``(dim,)``, to its log density up to a
        constant, a scalar; differentiable by the library.
    :param dim: the number of latents.
    :raises TypeError: if ``log_density`` is not a function of one argument.
    :raises ValueError: if it does not return a scalar, and as ``fit``.
    """

    def __init__(self, log_density: Callable, dim: int, ppl: str) -> None:
        example = "lambda theta: -0.5 * (theta**2).sum()"
        check_function(log_density, "log_density", example, not hasattr(log_density, "log_prob"))
        try:
            inspect.signature(log_density).bind(None)
        except TypeError:
            raise TypeError(f"log_density must take one vector, as {example} does.") from None
        except ValueError:  # a function of C
            pass
        self.log_density, self.dim, self.ppl = log_density, check_count(dim, "dim"), ppl

    def __call__(self) -> Any:
        ppl = importlib.import_module(self.ppl)
        space = ppl.distributions.constraints.real_vector
        theta = ppl.sample("theta", ppl.distributions.ImproperUniform(space, (), (self.dim,)))
        value = self.log_density(theta)
        if value is None or tuple(getattr(value, "shape", ())):
            must = f"must give a scalar for a vector of shape ({self.dim},), such as a sum"
            raise ValueError(f"log_density {must}, got {shown(value)}.")
        ppl.factor("log_density", value)
