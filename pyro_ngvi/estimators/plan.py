"""Findings of the first call with a model and a guide, which are kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from ngvi._warn import warn
from ngvi.estimators.missed_curvature import half_segment, what_is_missed
from ngvi.estimators.points import Arrays
from pyro_ngvi.estimators.differentiate import Slope
from pyro_ngvi.estimators.hessian import HessianProducts
from pyro_ngvi.estimators.moments import gradients_of, leaves_of
from pyro_ngvi.tracing import (
    LogDensity,
    ModelFacts,
    NoiseState,
    choose_particles,
    hessian_misses_curvature,
    inspect,
    sites_without_hessian,
)
from pyro_ngvi.tracing.arguments import tensors_in
from pyro_ngvi.tracing.messengers import OperationMode

#: Draws share a pass as long as their intermediate results stay below.
BYTES_PER_PASS = 2**28
#: Likewise the largest of them on a CPU, in whose cache it is then for the next operation.
BYTES_OF_RESULT = 2**20
#: Results that a search for modes holds at once, as a guess.
RESULTS_AT_ONCE = 16


@dataclasses.dataclass
class Plan:
    """A way to evaluate a model and its guide.

    :ivar products: computes Hessian-vector products, in the way that was found to work.
    :ivar bytes_per_draw: of intermediate results.
    :ivar num_elements: of the arguments that these were measured with.
    :ivar bytes_of_rows: of one draw's gradients by example, where they are wanted.
    :ivar bytes_of_result: of one draw's largest intermediate result, on a CPU.
    """

    model: Callable
    guide: Callable
    facts: ModelFacts
    products: HessianProducts
    bytes_per_draw: float
    num_elements: int
    bytes_of_rows: float
    bytes_of_result: float

    def is_for(self, model: Callable, guide: Callable) -> bool:
        """Tell whether the plan was made for these two."""
        return self.model == model and self.guide == guide

    def density(self, args: tuple, kwargs: dict) -> LogDensity:
        """Return the log density for these arguments, with a minibatch of its own."""
        return LogDensity(self.model, self.guide, args, kwargs, self.facts)

    def bytes(self, args: tuple, kwargs: dict) -> float:
        """Return the bytes of a draw's intermediate results, for arguments of this size."""
        return self.bytes_per_draw * self._growth(args, kwargs)

    def draws_per_pass(self, args: tuple, kwargs: dict) -> int:
        """Return how many draws to evaluate at once."""
        growth, kept = self._growth(args, kwargs), self.bytes_per_draw + self.bytes_of_rows
        most = BYTES_PER_PASS / max(kept * growth, 1.0)
        return max(1, int(min(most, BYTES_OF_RESULT / max(self.bytes_of_result * growth, 1.0))))

    def _growth(self, args: tuple, kwargs: dict) -> float:
        return max(_num_elements((args, kwargs)), 1) / self.num_elements

    # -- the second derivative --------------------------------------------------------

    def hessian_obstacle(self, density: LogDensity) -> Exception | None:
        """Return why the log density has no Hessian, naming the sites; None if it has one."""
        centre, step = _segment(density)
        reason, error = None, None
        try:
            try:
                self._try_one_product(density, centre)
            except (RuntimeError, NotImplementedError):
                if self.facts.particles == "loop":
                    raise
                # An operation may be differentiable twice, but not in a batch.
                self.facts.particles = "loop"
                self._try_one_product(density, centre)
        except (RuntimeError, NotImplementedError) as raised:
            reason, error = str(raised), raised
        if reason is None:
            if not (self.products.reverse and hessian_misses_curvature(density, centre, step)):
                return None
        names = sites_without_hessian(density, centre, step)
        obstacle = ValueError(what_is_missed(names, reason))
        obstacle.__cause__ = error
        return obstacle

    def _try_one_product(self, density: LogDensity, centre: Arrays) -> None:
        """Let ``products`` find a way that works; raises if there is none."""
        state = NoiseState()
        latents = {site: theta[None].clone().requires_grad_() for site, theta in centre.items()}
        gradients = gradients_of(density(latents).sum(), list(latents.values()), create_graph=True)
        for (site, theta), gradient in zip(latents.items(), gradients, strict=True):

            def again(theta: Tensor, site: str = site) -> Tensor:
                others = {name: value.detach() for name, value in latents.items()}
                with state.again():
                    return density(others | {site: theta})

            self.products(np.zeros(theta.shape[-1], int), Slope(gradient, theta, again, 0.0))


def make_plan(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict,
    max_plate_nesting: float = math.inf,
    vectorize_particles: bool = True,
    validate: bool = True,
) -> tuple[Plan, LogDensity]:
    """Run model and guide a few times and find out.

    :param validate: whether to insist, as stock ELBOs do, that batches are in plates.
    :return: the plan, and the log density for these arguments.
    :raises ValueError: if the guide holds no ``NaturalGaussianGuide``.
    """
    facts = inspect(model, guide, args, kwargs, max_plate_nesting)
    density = LogDensity(model, guide, args, kwargs, facts)
    if not density.posteriors:  # every latent is a conjugate site
        return Plan(model, guide, facts, HessianProducts(), 0.0, 1, 0.0, 0.0), density
    centre, step = _segment(density)
    if validate:
        density.validate(centre)
    if vectorize_particles:
        choose_particles(density, _line(centre, step, 2))
    _warn_of_unregistered(density, _line(centre, step, 2))
    # The difference leaves out the data, which all draws share; no more draws than that takes.
    two, three = (_saved_bytes(density, _line(centre, step, num)) for num in (2, 3))
    num_elements = max(_num_elements((args, kwargs)), 1)
    is_cpu = next(iter(centre.values())).is_cpu
    sizes = three[0] - two[0], num_elements, 0.0, is_cpu * (three[1] - two[1])
    return Plan(model, guide, facts, HessianProducts(), *sizes), density


def _warn_of_unregistered(density: LogDensity, latents: Arrays) -> None:
    """Warn of weights that are neither latents nor parameters, so that nothing learns them."""
    latents = {site: value.requires_grad_() for site, value in latents.items()}
    with torch.enable_grad(), poutine.trace(param_only=True) as run:
        leaves = leaves_of(density(latents), latents)
        params = [site["value"] for site in run.trace.nodes.values()]
        registered = {id(p.unconstrained() if hasattr(p, "unconstrained") else p) for p in params}
        found = [leaf for leaf in leaves if id(leaf) not in registered]
        if found:  # what a run makes for itself, as the search for modes does, is another each time
            again = set(map(id, leaves_of(density(latents), latents)))
            found = [leaf for leaf in found if id(leaf) in again]
    shapes = [tuple(leaf.shape) for leaf in found]
    if shapes:
        warn(
            f"The model computes with {sum(map(math.prod, shapes)):,} numbers that require "
            f"gradients (tensors of shapes {', '.join(map(str, shapes[:3]))}"
            f"{', ...' * (len(shapes) > 3)}) and are neither latents nor parameters: no step moves "
            "them. Call pyro.module('name', network) in the model, to_pyro_module_(network) for "
            "latents, or network.requires_grad_(False)."
        )


def _segment(density: LogDensity) -> tuple[Arrays, Arrays]:
    """Return the means, and half a segment through them, by site."""
    families = {site: family.detach() for site, family in density.posteriors.items()}
    centre = {site: family.mean for site, family in families.items()}
    return centre, {site: half_segment(family) for site, family in families.items()}


def _line(centre: Arrays, step: Arrays, num: int) -> Arrays:
    return {
        site: theta + torch.linspace(-1, 1, num).to(theta)[:, None] * step[site]
        for site, theta in centre.items()
    }


def _saved_bytes(density: LogDensity, latents: Arrays) -> tuple[int, int]:
    """Return what autograd keeps of one evaluation, and the largest of it."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided:  # sparse tensors are data
            sizes[tensor.data_ptr()] = tensor.nbytes
        # Of a result its own node would keep it, and with it the graph, for good.
        return tensor.detach()

    latents = {site: value.requires_grad_() for site, value in latents.items()}
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            density(latents)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        # A guide that differentiates the model lets go of most results, one after another.
        with torch.enable_grad(), _Largest() as largest:
            density(latents)
        return RESULTS_AT_ONCE * largest.bytes, largest.bytes
    return sum(sizes.values()), max(sizes.values(), default=0)


class _Largest(OperationMode):
    """Finds the most bytes of a result."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = isinstance(result, Tensor) and not func.is_view  # views are of data
        if is_new and result.layout is torch.strided:
            self.bytes = max(self.bytes, result.nbytes)
        return result


def _num_elements(tree: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_in(tree))
