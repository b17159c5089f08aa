"""Predictions for groups that a fit has not seen; see :mod:`ngvi.inference.new_groups`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import jax
from jax.experimental import checkify
from numpyro import handlers
from numpyro.primitives import Messenger

from ngvi.inference.new_groups import NewGroups, beyond
from ngvi.latents.layout import Site
from numpyro_ngvi.guide.checks import sites_of_run
from numpyro_ngvi.tracing.arguments import Arguments, as_jax
from numpyro_ngvi.tracing.compilation import compiled


class KnownElements(Messenger):
    """Gives the fit's draws to those elements of a site that the fit has; the others are drawn."""

    def __init__(self, fn: Callable, new: NewGroups, draws: dict[str, jax.Array]) -> None:
        super().__init__(fn)
        self._new, self._draws = new, draws

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if msg["type"] == "sample" and name in self._draws and name in self._new.sites:
            where = self._new.where(name, msg["value"].shape)
            if where is not None:
                msg["value"] = msg["value"].at[where].set(self._draws[name])


def latent_sites(model: Callable, names: Collection[str], args: tuple, kwargs: dict) -> list[Site]:
    """The latents of these names, with their plates; none if the model does not run."""
    found: list[Site] = []

    def run() -> None:
        with handlers.block():
            trace = handlers.trace(handlers.seed(model, rng_seed=0)).get_trace(*args, **kwargs)
        found.extend(site for site in sites_of_run(trace) if site.name in names)

    try:
        jax.eval_shape(run)
    except Exception:  # noqa: BLE001  the prediction fails as well, and says why
        return []
    return found


def check_indices(
    model: Callable, sites: list[Site], of_fit: tuple[tuple, dict], of_run: tuple[tuple, dict]
) -> None:
    """Refuse a group beyond the last one, in whose place JAX takes the last one.

    :param sites: the latents.
    :param of_fit: the arguments of the fit, where an index beyond the end may be meant.
    :raises ValueError: naming the plate.
    """
    if not any(site.plates for site in sites):
        return
    message = _beyond(model, *of_run)
    what = beyond(message, sites) if message else None
    if what is not None and not _beyond(model, *of_fit):
        raise ValueError(what)


def _beyond(model: Callable, args: tuple, kwargs: dict) -> str:
    """What a run of the model finds of indices beyond the end of an array, or nothing."""
    arguments = Arguments(args, kwargs)

    def run(arrays: list) -> Any:
        args, kwargs = as_jax(arguments.rebuilt(arrays))
        with handlers.block():
            handlers.seed(model, rng_seed=0)(*args, **kwargs)
        return 0

    checked = checkify.checkify(run, errors=checkify.index_checks)
    try:
        error, _ = arguments.call(compiled(checked, runs_once=True))
    except Exception:  # noqa: BLE001  a model may do with its arguments what cannot be traced
        return ""
    return re.sub(r"\s*\(`?check.*", "", (error.get() or "").partition("\n")[0])
