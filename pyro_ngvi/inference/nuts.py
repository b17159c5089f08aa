"""The density in the coordinates of a fitted Gaussian; see :mod:`ngvi.inference.draws.nuts`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from ngvi.inference.draws.nuts import WhitenedDensity
from pyro_ngvi.estimators import make_plan
from pyro_ngvi.families import Family
from pyro_ngvi.tracing.messengers import repeatable_noise


def whitened_density(
    model: Callable,
    guide: Any,
    family: Family,
    args: tuple,
    kwargs: dict[str, Any],
    parameters: Callable[[], AbstractContextManager],
) -> WhitenedDensity:
    """Return the density of a fit.

    :param parameters: a context in which the parameter store is that of the fit.
    """
    with parameters(), repeatable_noise(), poutine.block():
        _, density = make_plan(model, guide, args, kwargs, validate=False)
    (site,), log_det = density.posteriors, family.log_det_scale()

    def log_density(z: Tensor) -> Tensor:
        rows = torch.atleast_2d(z)
        with parameters(), repeatable_noise(), poutine.block():
            found = density({site: family.sample(rows)}, is_first_order=True) + log_det
        return found if z.dim() > 1 else found[0]

    @torch.no_grad()
    def constrain(z: Tensor) -> dict[str, Tensor]:
        with parameters(), poutine.block():
            found = guide._constrained(family.sample(torch.atleast_2d(z)))
        return found if z.dim() > 1 else {name: value[0] for name, value in found.items()}

    return WhitenedDensity(family.dim, log_density, constrain)
