"""What is found out on the first call with a model and a guide, and kept."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_ngvi.curvature import HessianProducts, num_products
from pyro_ngvi.elbo.particles import Kinds, as_function_of, sum_gradients
from pyro_ngvi.tracing import (
    LogDensity,
    ModelFacts,
    NoiseState,
    examples,
    hessian_misses_curvature,
    inspect,
    sites_without_hessian,
)

#: ``curvature="auto"`` takes exact Hessians up to this many Hessian-vector products a draw.
MAX_PRODUCTS = 2000

#: Draws share a pass as long as their intermediate results stay below.
BYTES_PER_PASS = 2**28

#: Half the length of the segment on which the Hessian is compared with the gradient, in
#: standard deviations: long enough to meet the kinks of a likelihood, if it has any.
STEP = 0.5


@dataclasses.dataclass
class Plan:
    """How to evaluate a model and its guide.

    :ivar kinds: the curvature of each guide's site, ``"auto"`` resolved.
    :ivar products: computes Hessian-vector products, in the way that was found to work.
    :ivar bytes_per_draw: of intermediate results.
    :ivar bytes_of_rows: of one draw's gradients by example, where they are wanted.
    :ivar num_elements: of the arguments that both were measured with.
    """

    model: Callable
    guide: Callable
    facts: ModelFacts
    kinds: Kinds
    products: HessianProducts
    bytes_per_draw: float
    num_elements: int
    bytes_of_rows: float = 0.0

    def is_for(self, model: Callable, guide: Callable) -> bool:
        """Whether the plan was made for these two."""
        return self.model == model and self.guide == guide

    def bytes(self, args: tuple, kwargs: dict) -> float:
        """Of one draw's intermediate results, for arguments of this size."""
        return self.bytes_per_draw * self._growth(args, kwargs)

    def draws_per_pass(self, args: tuple, kwargs: dict) -> int:
        """How many draws to evaluate at once."""
        kept = (self.bytes_per_draw + self.bytes_of_rows) * self._growth(args, kwargs)
        return max(1, int(BYTES_PER_PASS // max(kept, 1.0)))

    def _growth(self, args: tuple, kwargs: dict) -> float:
        return max(_num_elements((args, kwargs)), 1) / self.num_elements


def make_plan(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict,
    curvature: str,
    max_plate_nesting: float,
    vectorize_particles: bool,
) -> Plan:
    """Run model and guide a few times and find out.

    :raises ValueError: as :class:`~pyro_ngvi.NaturalELBO`.
    """
    facts = inspect(model, guide, args, kwargs, max_plate_nesting)
    density = LogDensity(model, guide, args, kwargs, facts)
    families = {site: family.detach() for site, family in density.posteriors.items()}
    centre = {site: family.mean for site, family in families.items()}
    density.validate(centre)
    step = {site: _step(family.mean, family.sample) for site, family in families.items()}
    if vectorize_particles:
        density.choose_particles(_line(centre, step, 2))
    # The difference leaves out the data, which all draws share.
    few, many = (_saved_bytes(density, _line(centre, step, num)) for num in (2, 7))
    bytes_per_draw = (many - few) / 5
    plan = Plan(
        model,
        guide,
        facts,
        {site: _by_cost(curvature, num_products(family)) for site, family in families.items()},
        HessianProducts(),
        bytes_per_draw,
        max(_num_elements((args, kwargs)), 1),
    )
    if curvature == "gauss_newton":
        with torch.no_grad():
            split = examples(density, _line(centre, step, 1))
        largest = max(theta.numel() for theta in centre.values())
        plan.bytes_of_rows = split.scale[0].nbytes * largest
    if any(kind in ("hessian", "mean") for kind in plan.kinds.values()):
        _check_hessian(plan, density, centre, step, curvature)
    return plan


def _by_cost(curvature: str, products: int) -> str:
    if curvature != "auto":
        return curvature
    return "hessian" if products <= MAX_PRODUCTS else "stein"


def _check_hessian(
    plan: Plan,
    density: LogDensity,
    centre: dict[str, Tensor],
    step: dict[str, Tensor],
    curvature: str,
) -> None:
    """Fall back to ``"stein"``, or raise, where there is no Hessian."""
    reason, error = None, None
    try:
        try:
            _try_one_product(plan, density, centre)
        except (RuntimeError, NotImplementedError):
            if plan.facts.particles == "loop":
                raise
            # An operation may be differentiable twice, but not in a batch.
            plan.facts.particles = "loop"
            _try_one_product(plan, density, centre)
    except (RuntimeError, NotImplementedError) as raised:
        reason, error = f"cannot be differentiated twice ({raised})", raised
    if reason is None and plan.products.reverse:
        if hessian_misses_curvature(density, centre, step):
            reason = (
                "has a curvature that its Hessian misses, by automatic differentiation (a kink, "
                "a step, or a backward pass that is not itself differentiable)"
            )
    if reason is None:
        return
    names = ", ".join(repr(name) for name in sites_without_hessian(density, centre, step))
    reason = f"The log density {f'of {names} ' if names else ''}{reason}"
    if curvature != "auto":
        advice = "Use curvature='stein', which needs gradients only."
        raise ValueError(f"{reason}. {advice}") from error
    warnings.warn(f"{reason}: curvature='stein' is used instead.", stacklevel=5)
    plan.kinds = dict.fromkeys(plan.kinds, "stein")


def _try_one_product(plan: Plan, density: LogDensity, centre: dict[str, Tensor]) -> None:
    """Let ``plan.products`` find a way that works; raises if there is none."""
    noise = NoiseState()
    latents = {site: theta[None].clone().requires_grad_() for site, theta in centre.items()}
    values = density(latents)
    gradients = sum_gradients(values, list(latents.values()), create_graph=True)
    for (site, theta), gradient in zip(latents.items(), gradients, strict=True):
        all_ones = np.zeros(theta.shape[-1], int)
        plan.products(gradient, theta, all_ones, as_function_of(density, latents, site, noise))


def _step(mean: Tensor, sample: Callable[[Tensor], Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
    return STEP * (sample(noise) - mean)


def _line(centre: dict[str, Tensor], step: dict[str, Tensor], num: int) -> dict[str, Tensor]:
    return {
        site: theta + torch.linspace(-1, 1, num).to(theta)[:, None] * step[site]
        for site, theta in centre.items()
    }


def _saved_bytes(density: LogDensity, latents: dict[str, Tensor]) -> int:
    """What autograd keeps of one evaluation."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    latents = {site: value.requires_grad_() for site, value in latents.items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        density(latents)
    return sum(sizes.values())


def _num_elements(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel()
    if isinstance(tree, dict):
        tree = tree.values()
    if isinstance(tree, (list, tuple, type({}.values()))):
        return sum(map(_num_elements, tree))
    return 0
