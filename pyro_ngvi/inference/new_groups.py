"""Predictions for groups that a fit has not seen; see :mod:`ngvi.inference.new_groups`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from ngvi.inference.new_groups import NewGroups, beyond
from ngvi.latents.layout import Site
from pyro_ngvi.guide.checks import sites_of_run
from pyro_ngvi.tracing.messengers import quiet_trace, repeatable_noise


class KnownElements(Messenger):
    """Gives the fit's draws to those elements of a site that the fit has; the others are drawn."""

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


def latent_sites(model: Callable, names: Collection[str], args: tuple, kwargs: dict) -> list[Site]:
    """The latents of these names, with their plates; none if the model does not run."""
    try:
        with repeatable_noise(), poutine.block():
            trace = quiet_trace(poutine.trace(model), args, kwargs)
    except Exception:  # noqa: BLE001  the prediction fails as well, and says why
        return []
    return [site for site in sites_of_run(trace) if site.name in names]


@contextlib.contextmanager
def indices_explained(sites: list[Site]) -> Iterator[None]:
    """Say of a group beyond the last one which it is.

    :param sites: the latents.
    :raises ValueError: naming the plate.
    """
    try:
        yield
    except IndexError as error:
        what = beyond(str(error).partition("\n")[0], sites)
        if what is None:
            raise
        raise ValueError(what) from error
