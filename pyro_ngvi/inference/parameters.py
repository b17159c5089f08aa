"""The parameters of model and guide: between the parameter store and places."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import transform_to
from torch.distributions.constraints import real

from ngvi.inference.run import check_coordinates
from ngvi.latents.layout import pieces
from pyro_ngvi.estimators import log_q
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.inference.importance import gaussians
from pyro_ngvi.tracing.messengers import NanCholesky, quiet, repeatable_noise


class Place(NamedTuple):
    """Parameters of model and guide, through which no gradient flows."""

    families: list[Family]  #: in the order of ``Parameters.dims``
    ordinary: dict[str, Tensor]  #: unconstrained, by their names in the parameter store


class Parameters:
    """Makes places, and reads them; see :class:`ngvi.inference.engine.Parameters`.

    The parameters in the store stay as they are: only ordinary ones are live, those of the last
    evaluation. :meth:`write` makes a place that of the guide.

    :param model: a Pyro model.
    :param guide: its guide, which is set up here.
    """

    def __init__(self, model: Callable, guide: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        leaves = {name: leaf for name, (leaf, _) in self._all().items()}
        self.ordinary = {
            name: leaf
            for name, leaf in leaves.items()
            if coordinate_of(leaf) is None and leaf.requires_grad
        }
        self.has_ordinary = bool(self.ordinary)

    def bind(self, posteriors: dict[str, Family]) -> None:
        """Take the guide's families.

        :param posteriors: with live coordinates, by the guide's sites.
        """
        self._live = {site: posteriors[site] for site in sorted(posteriors)}
        self.dims = {site: family.detach().dim for site, family in self._live.items()}
        self.dim = sum(self.dims.values())
        self.initial = Place(
            [family.detach().map(torch.clone) for family in self._live.values()],
            {name: leaf.detach().clone() for name, leaf in self.ordinary.items()},
        )
        self.eps = max(torch.finfo(family.loc.dtype).eps for family in self.initial.families)

    # -- places -----------------------------------------------------------------------

    def by_site(self, place: Place) -> dict[str, Family]:
        """The families by the guide's sites."""
        return dict(zip(self.dims, place.families, strict=True))

    def split(self, vectors: np.ndarray) -> dict[str, Tensor]:
        """Vectors of all latents, by the guide's sites; shape ``(..., d)``."""
        parts = np.split(vectors, np.cumsum(list(self.dims.values()))[:-1], -1)
        return {
            site: torch.as_tensor(part).to(family.loc)
            for part, (site, family) in zip(parts, self.by_site(self.initial).items(), strict=True)
        }

    def at(self, mean: np.ndarray | None, scale: float | np.ndarray) -> Place:
        mean = self.mean(self.initial) if mean is None else mean
        locs, scales = self.split(mean), self.split(np.broadcast_to(scale, mean.shape).copy())
        families = self.by_site(self.initial).items()
        return self.initial._replace(
            families=[family.initial(locs[site], scales[site]) for site, family in families]
        )

    def independent(self, place: Place) -> Place:
        return place._replace(families=[Diagonal(q.mean, q.stddev) for q in place.families])

    @torch.no_grad()
    def draws(self, place: Place, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        families, by_site = self.by_site(place), self.split(noise)
        theta = [family.sample(by_site[site]) for site, family in families.items()]
        return _numpy(torch.cat(theta, -1)), _numpy(log_q(families, by_site))

    @torch.no_grad()
    def square_distance(self, place: Place, theta: np.ndarray) -> float:
        latents, families = self.split(theta), self.by_site(place).items()
        return sum(float(family.whiten(latents[s][None]).square().sum()) for s, family in families)

    def mean(self, place: Place) -> np.ndarray:
        return np.concatenate([_numpy(family.mean) for family in place.families])

    def stddevs(self, place: Place) -> dict[str, np.ndarray]:
        stddevs = {site: _numpy(q.stddev) for site, q in self.by_site(place).items()}
        named: dict[str, np.ndarray] = {}
        for part in gaussians(self.guide):
            named.update(pieces(part.sites, stddevs.get(f"_{part._pyro_name}_latent", ())))
        return named or stddevs

    def own(self, place: Place) -> list[np.ndarray]:
        return [value.detach().cpu().numpy() for value in place.ordinary.values()]

    def moved(self, place: Place, steps: list[np.ndarray]) -> Place:
        new = {
            name: value + torch.as_tensor(step).to(value)
            for (name, value), step in zip(place.ordinary.items(), steps, strict=True)
        }
        return place._replace(ordinary=new)

    def arrays(self, place: Place) -> list[np.ndarray]:
        families = [value for q in place.families for value in q.coordinates().values()]
        return [value.detach().cpu().numpy() for value in (*families, *place.ordinary.values())]

    def of_arrays(self, arrays: list[np.ndarray]) -> Place:
        left = iter(arrays)

        def read(like: Tensor) -> Tensor:
            return torch.as_tensor(next(left)).to(like)

        families = [family.map(read) for family in self.initial.families]
        return Place(families, {name: read(v) for name, v in self.initial.ordinary.items()})

    def restored(self, params: dict[str, Tensor], ordinary: bool = False) -> Place:
        """The initial place with the Gaussians of an earlier result's parameters.

        :param ordinary: with its other parameters as well.
        :raises ValueError: if its latents are not this model's.
        """
        families = []
        for family in self._live.values():
            owner = coordinate_of(_leaf(family.loc)).owner
            own = family.coordinates()
            old = {name: params[key] for name in own if (key := f"{owner}.{name}") in params}
            check_coordinates(owner, _shapes(old), _shapes(own), family.dim)
            values = {name: value.detach().to(own[name]) for name, value in old.items()}
            families.append(dataclasses.replace(family, **values))
        others = self.initial.ordinary
        if ordinary:
            constraints = pyro.get_param_store().get_state()["constraints"]
            others = {
                name: transform_to(constraints.get(name, real)).inv(params[name]).to(like)
                for name, like in others.items()
            }
        return Place(families, others)

    # -- the parameter store ----------------------------------------------------------

    @torch.no_grad()
    def put(self, place: Place) -> None:
        """Let the model see the ordinary parameters of a place."""
        for name, value in place.ordinary.items():
            self.ordinary[name].copy_(value)

    @torch.no_grad()
    def write(self, place: Place) -> None:
        self.put(place)
        for live, new in zip(self._live.values(), place.families, strict=True):
            live.map(lambda value, other: _leaf(value).copy_(other), new)

    @torch.no_grad()
    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all parameters, constrained, by their names in the store."""
        with repeatable_noise():
            return {name: value.clone() for name, (_, value) in self._all().items()}

    def _all(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Unconstrained and constrained parameters that guide and model have in a run."""
        with poutine.block(), poutine.trace(param_only=True) as capture:
            trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
            with quiet(), NanCholesky():  # at a draw, where the model may be invalid
                poutine.replay(self.model, trace=trace)(*self.args, **self.kwargs)
        sites = capture.trace.nodes.items()
        return {name: (_leaf(site["value"]), site["value"].detach()) for name, site in sites}


def _shapes(coordinates: dict[str, Tensor]) -> dict[str, tuple]:
    return {name: tuple(value.shape) for name, value in coordinates.items()}


def _leaf(value: Tensor) -> Tensor:
    """The unconstrained tensor in the store, of a parameter's value."""
    return getattr(value, "unconstrained", lambda: value)()


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
