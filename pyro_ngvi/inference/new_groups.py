"""Predictions for groups that a fit has not seen; see :mod:`ngvi.inference.new_groups`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from ngvi._foreign import note_foreign_arguments
from ngvi.inference.hooks import Run
from ngvi.inference.new_groups import Asked, NewGroups, beyond, latent_names, new_groups
from ngvi.latents.layout import Site
from pyro_ngvi.guide import NaturalGaussianGuide
from pyro_ngvi.guide.checks import quiet_trace, sites_of_run
from pyro_ngvi.workflow.runs import Unobserved, by_draw, sampled, stacked


class KnownElements(Messenger):
    """Give the fit's draws to those elements of a site that the fit has; draw the others."""

    def __init__(self, new: NewGroups, draws: dict[str, Tensor]) -> None:
        super().__init__()
        self._new, self._draws = new, draws

    def _pyro_post_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name in self._draws and name in self._new.sites:
            where = self._new.where(name, tuple(msg["value"].shape))
            if where is not None:
                value = msg["value"].clone()
                value[tuple(torch.as_tensor(axis) for axis in where)] = self._draws[name]
                msg["value"] = value


def predictions(
    result: Any, asked: Asked, run: Run | None, num_samples: int, key: None
) -> dict[str, Tensor]:
    """Run the model at draws of its latents; see :meth:`ngvi.inference.hooks.Hooks.predictions`.

    :raises ValueError: as :func:`~ngvi.inference.new_groups.new_groups`.
    """
    model, names, of_fit = result.model, latent_names(result), (result.args, result.kwargs)
    own, at = str(torch.get_default_dtype()), run or of_fit
    with note_foreign_arguments(*at, "torch.as_tensor", own, of_fit):
        fitted, found = _sites(model, names, *of_fit), _sites(model, names, *at)
        new = new_groups(asked, fitted, found)
        if run is None:
            model = Unobserved()(model)
        if new is None and result._latents(num_samples, key) is None:
            traces = replayed(model, result.guide, num_samples, *at)
        else:
            new, draws = new or NewGroups({}, {}), result.sample(num_samples).items()
            traces = predicted(model, new, {k: v for k, v in draws if k in names}, *at)
        return stacked(map(sampled, explained(traces, found or fitted)))


def predicted(
    model: Callable, new: NewGroups, draws: dict[str, Tensor], args: tuple, kwargs: dict
) -> Iterator[poutine.Trace]:
    """Run the model once for each draw of the fit's latents."""
    for latents in by_draw(draws):
        given, own = new.split(latents)
        with poutine.block(), KnownElements(new, own):
            trace = poutine.trace(poutine.condition(model, given)).get_trace(*args, **kwargs)
        yield trace


def replayed(
    model: Callable, guide: Callable, num_samples: int, args: tuple, kwargs: dict
) -> Iterator[poutine.Trace]:
    """Run the model at draws of the guide, which makes them all at once if it can."""
    is_ours = isinstance(guide, NaturalGaussianGuide)
    if is_ours and not (guide._has_plates or guide._dynamic):
        if guide._model is not None:  # a copy has none
            guide._latent_shapes.check(guide.model, args, kwargs)
        for latents in by_draw(guide._sample(guide._family().detach(), num_samples)):
            yield poutine.trace(poutine.condition(model, latents)).get_trace(*args, **kwargs)
        return
    for _ in range(num_samples):
        draw = poutine.trace(guide).get_trace(*args, **kwargs)
        yield poutine.trace(poutine.replay(model, trace=draw)).get_trace(*args, **kwargs)


def explained(runs: Iterator[poutine.Trace], sites: list[Site]) -> Iterator[poutine.Trace]:
    """Yield the runs; for a group beyond the last one, say which that is.

    :raises ValueError: naming the plate.
    """
    try:
        yield from runs
    except IndexError as error:
        what = beyond(str(error).partition("\n")[0], sites)
        if what is None:
            raise
        raise ValueError(what) from error


def _sites(model: Callable, names: Collection[str], args: tuple, kwargs: dict) -> list[Site]:
    """Return the latents of these names, with their plates; none if the model does not run."""
    try:
        trace = quiet_trace(model, args, kwargs)
    except Exception:  # noqa: BLE001  the prediction fails as well, and says why
        return []
    return [site for site in sites_of_run(trace) if site.name in names]
