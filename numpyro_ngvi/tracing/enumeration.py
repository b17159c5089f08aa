"""Log densities with discrete latents summed out, by ``numpyro.contrib.funsor``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from numpyro import handlers
from numpyro.primitives import Messenger

from ngvi.errors import unequal_scales
from numpyro_ngvi.tracing.sites import is_enumerated, scale_of


def enumerated_log_density(
    model: Callable, run: tuple, scales: tuple[float | None, ...], max_plate_nesting: int
) -> jax.Array:
    """Return the log density of a model, with its enumerated latents summed out.

    Latents that are independent of each other may count differently often.

    :param model: seeded, with values for all other latents.
    :param run: its arguments.
    :param scales: how many times its sites count, as :func:`scale_of` has it.
    :raises ValueError: for a site that counts differently often from an enumerated latent that it
        depends on.
    """
    from numpyro.contrib.funsor import enum, log_density

    first = -1 - max_plate_nesting
    if len(scales) > 1:
        _check_scales(enum(model, first), *run)
    total = 0.0
    for scale in scales:
        summed = enum(model if scales == (1.0,) else SitesOfScale(model, scale), first)
        total = total + (scale or 1.0) * log_density(summed, *run, {})[0]
    return total


class SitesOfScale(Messenger):
    """Count the sites of a model with one scale once.

    NumPyro's sum over enumerated values would scale its terms.

    :param scale: as :func:`scale_of` has it.
    """

    def __init__(self, model: Callable, scale: float | None) -> None:
        super().__init__(model)
        self.scale = scale

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] != "sample":
            return
        if scale_of(site) != self.scale:
            site["fn"] = site["fn"].mask(False)
            site["infer"] = {**site["infer"], "enumerate": None}
        elif self.scale is not None:
            site["scale"] = None


def _check_scales(model: Callable, args: tuple, kwargs: dict) -> None:
    """Refuse a site that counts differently often from an enumerated latent that it depends on.

    :param model: enumerated.
    :raises ValueError: naming both.
    """
    from numpyro.contrib.funsor import plate_to_enum_plate
    from numpyro.contrib.funsor.enum_messenger import trace as packed_trace

    with handlers.block(), plate_to_enum_plate():
        trace = packed_trace(model).get_trace(*args, **kwargs)
    latents = {name: scale_of(site) for name, site in trace.items() if is_enumerated(site)}
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        for dim in site["infer"]["dim_to_name"].values():
            latent = dim.rpartition("_PREV_")[-1]  # as NumPyro calls it in the step after
            if latent in latents and latents[latent] != scale_of(site):
                raise ValueError(unequal_scales(latent, name))
