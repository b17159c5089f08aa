"""The parameters of model and guide: between the parameter store and states."""

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

from ngvi.families.draws import density_of_draw, has_free_scales, noise_dim
from ngvi.inference import problem
from ngvi.inference.set_up import NO_GAUSSIAN, check_coordinates
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.guide import NaturalGaussianGuide
from pyro_ngvi.host import doubles
from pyro_ngvi.tracing.messengers import NanCholesky, quiet, repeatable_noise


class State(NamedTuple):
    """StateSpace of model and guide, through which no gradient flows."""

    families: list[Family]  #: Families in the order of ``StateSpace.dims``.
    #: The model's own, unconstrained, by name in the parameter store.
    parameters: dict[str, Tensor]


class StateSpace(problem.StateSpace):
    """Makes states, and reads them; see :class:`ngvi.inference.problem.StateSpace`.

    The parameters in the store stay as they are: only those of the model's own are live, those of
    the last evaluation. :meth:`write` makes a state that of the guide.

    :param guide: its guide, which is set up here.
    """

    def __init__(self, model: Callable, guide: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        leaves = {name: leaf for name, (leaf, _) in self._all().items()}
        self.live = {
            name: leaf
            for name, leaf in leaves.items()
            if coordinate_of(leaf) is None and leaf.requires_grad
        }
        self.has_model_parameters = bool(self.live)

    def bind(self, posteriors: dict[str, Family]) -> None:
        """Take the guide's families.

        :param posteriors: with live coordinates, by the guide's sites.
        """
        self._live = {site: posteriors[site] for site in sorted(posteriors)}
        self.initial = State(
            [family.detach().map(torch.clone) for family in self._live.values()],
            {name: leaf.detach().clone() for name, leaf in self.live.items()},
        )
        families = self.initial.families
        self.dims = {site: family.dim for site, family in zip(self._live, families, strict=True)}
        self.dim, self.noise_dim = sum(self.dims.values()), sum(map(noise_dim, families))
        self.has_free_scales = all(map(has_free_scales, families))
        self.eps = max(torch.finfo(family.loc.dtype).eps for family in families)

    # -- states -----------------------------------------------------------------------

    def by_site(self, state: State) -> dict[str, Family]:
        """Return the families by the guide's sites."""
        return dict(zip(self.dims, state.families, strict=True))

    def tensors(self, vectors: np.ndarray, in_double: bool = False) -> dict[str, Tensor]:
        """Vectors of all latents, by the guide's sites; shape ``(..., d)``."""
        parts = zip(self.dims, self.split(vectors), strict=True)
        like = self.initial.families[0].loc
        like = like.double() if in_double else like
        return {site: torch.as_tensor(part).to(like) for site, part in parts}

    def families(self, state: State) -> list[Family]:
        return state.families

    def with_families(self, state: State, families: list[Family]) -> State:
        return state._replace(families=families)

    def array(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values).to(self.initial.families[0].loc)

    def numbers(self, array: Tensor) -> np.ndarray:
        return doubles(array)

    def gaussians(self) -> dict[str, NaturalGaussianGuide]:
        return {f"_{part._pyro_name}_latent": part for part in gaussians(self.guide)}

    def new_families(self, locs: list[Tensor], scales: list[Tensor]) -> list[Family]:
        parts = zip(self.initial.families, locs, scales, strict=True)
        return [family.initial(loc, scale) for family, loc, scale in parts]

    @torch.no_grad()
    def draw(self, state: State, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = list(zip(state.families, self.tensors(noise).values(), strict=True))
        theta = torch.cat([family.sample(z) for family, z in pairs], -1)
        return self.numbers(theta), self.numbers(sum(density_of_draw(*pair) for pair in pairs))

    @torch.no_grad()
    def log_q(self, state: State, theta: np.ndarray) -> np.ndarray:
        pairs = zip(state.families, self.tensors(theta).values(), strict=True)
        return sum(self.numbers(family.log_prob(one)) for family, one in pairs)

    @torch.no_grad()
    def square_distance(self, state: State, theta: np.ndarray) -> float:
        pairs = zip(state.families, self.tensors(theta).values(), strict=True)
        return sum(float(family.whiten(one[None]).square().sum()) for family, one in pairs)

    def model_parameters(self, state: State) -> dict[str, np.ndarray]:
        return {name: value.detach().cpu().numpy() for name, value in state.parameters.items()}

    def moved(self, state: State, steps: list[np.ndarray]) -> State:
        new = {
            name: value + torch.as_tensor(step).to(value)
            for (name, value), step in zip(state.parameters.items(), steps, strict=True)
        }
        return state._replace(parameters=new)

    def restored(self, params: dict[str, Tensor], with_own: bool = False) -> State:
        """Return the initial state with the Gaussians of an earlier result's parameters.

        :param with_own: with the model's own parameters as well.
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
        others = self.initial.parameters
        if with_own:
            constraints = pyro.get_param_store().get_state()["constraints"]
            others = {
                name: transform_to(constraints.get(name, real)).inv(params[name]).to(like)
                for name, like in others.items()
            }
        return State(families, others)

    def with_family(self, params: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
        """Parameters with another Gaussian in the place of the only one."""
        (live,) = self._live.values()
        owner = coordinate_of(_leaf(live.loc)).owner
        new = {f"{owner}.{k}": v.detach().clone() for k, v in family.coordinates().items()}
        return {**params, **new}

    # -- the parameter store ----------------------------------------------------------

    @torch.no_grad()
    def put(self, state: State) -> None:
        """Let the model see the model's own parameters of a state."""
        for name, value in state.parameters.items():
            self.live[name].copy_(value)

    def params(self, state: State) -> dict[str, Tensor]:
        """All parameters of model and guide, constrained, by their names in the store."""
        self.write(state)
        return self.snapshot()

    @torch.no_grad()
    def write(self, state: State) -> None:
        self.put(state)
        for live, new in zip(self._live.values(), state.families, strict=True):
            live.map(lambda value, other: _leaf(value).copy_(other), new)

    @torch.no_grad()
    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of all parameters, constrained, by their names in the store."""
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


def gaussians(guide: Any) -> list[NaturalGaussianGuide]:
    """Return the ``NaturalGaussianGuide`` in a guide: itself, or parts of an ``AutoGuideList``."""
    if not isinstance(guide, torch.nn.Module):
        return []
    return [part for part in guide.modules() if isinstance(part, NaturalGaussianGuide)]


def check_has_gaussian(guide: Any) -> None:
    """Raise a ``ValueError`` if there is no ``NaturalGaussianGuide`` in a guide."""
    if not gaussians(guide):
        raise ValueError(NO_GAUSSIAN.format(guide=type(guide).__name__, library="pyro"))


def _shapes(coordinates: dict[str, Tensor]) -> dict[str, tuple]:
    return {name: tuple(value.shape) for name, value in coordinates.items()}


def _leaf(value: Tensor) -> Tensor:
    """Return the unconstrained tensor in the store, of a parameter's value."""
    return getattr(value, "unconstrained", lambda: value)()
