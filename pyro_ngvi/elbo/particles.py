"""One pass over some draws: values, gradients, and the curvature that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_ngvi.curvature import GaussNewton, HessianProducts, Hessians
from pyro_ngvi.curvature.gauss_newton import example_gradients
from pyro_ngvi.curvature.moments import Curvature, finite_draws
from pyro_ngvi.families.base import Family, standard_normal_log_prob
from pyro_ngvi.tracing import LogDensity, NoiseState, examples

#: By site: families, noise, latent vectors, kinds of curvature.
Families = dict[str, Family]
Noise = dict[str, Tensor]
Kinds = dict[str, str]


@dataclasses.dataclass
class Particles:
    """What is known of ``K`` draws.

    :ivar values: the log density at each, shape ``(K,)``.
    :ivar gradients: of the log density, by site, shapes ``(K, d)``.
    :ivar curvatures: of the log density, by the sites whose Hessian was asked for.
    :ivar ordinary: the sum of the draws' gradients for each ordinary parameter.
    """

    values: Tensor
    gradients: dict[str, Tensor]
    curvatures: dict[str, Curvature]
    ordinary: list[tuple[Tensor, Tensor]]

    def finite(self) -> Tensor:
        """Which draws have nothing in them that is not finite, shape ``(K,)``."""
        kept = finite_draws(self.values, *self.gradients.values())
        for curvature in self.curvatures.values():
            kept = kept & curvature.finite()
        return kept


def log_prob(families: Families, noise: Noise) -> Tensor:
    """``log q`` of the draws, summed over sites; shape ``(K,)``."""
    return sum(
        standard_normal_log_prob(noise[site]) - family.log_det_scale()
        for site, family in families.items()
    )


def evaluate(
    density: LogDensity,
    latents: dict[str, Tensor],
    families: Families,
    kinds: Kinds,
    products: HessianProducts,
    bytes_per_draw: float,
) -> Particles:
    """Differentiate the log density once or twice.

    :param latents: the draws by site, shapes ``(K, d)``.
    :param families: whose parts of the Hessians are needed, by site.
    :param kinds: ``"hessian"``, ``"gauss_newton"`` or something else, for no Hessian, by site.
    :param products: computes Hessian-vector products.
    :param bytes_per_draw: of the intermediate results of one draw.
    """
    latents = {site: value.detach().requires_grad_() for site, value in latents.items()}
    noise = NoiseState() if density.facts.is_stochastic else None
    with torch.enable_grad():
        if "gauss_newton" in kinds.values():
            split = examples(density, latents)
            values = (split.scale * split.log_likelihood).sum(-1) + split.rest
            differentiated = split.rest
        else:
            split = None
            values = differentiated = density(latents)
        twice = "hessian" in kinds.values()
        ordinary = ordinary_leaves(values, latents)
        gradients = sum_gradients(values, [*latents.values(), *ordinary], create_graph=twice)
        by_site = dict(zip(latents, gradients, strict=False))
        curvatures: dict[str, Curvature] = {}
        bytes_per_product = bytes_per_draw * len(values)
        for site, kind in kinds.items():
            if kind not in ("hessian", "gauss_newton"):
                continue
            theta, family = latents[site], families[site]
            gradient = by_site[site]
            if kind == "gauss_newton":
                (gradient,) = sum_gradients(differentiated, [theta], create_graph=True)
            again = as_function_of(density, latents, site, noise, rest_only=kind == "gauss_newton")
            hessians = Hessians(
                products(
                    gradient,
                    theta,
                    family.hessian_probes(),
                    again,
                    bytes_per_product=bytes_per_product,
                ),
                family,
            )
            curvatures[site] = hessians
            if kind == "gauss_newton":
                rows = example_gradients(
                    split.log_likelihood, theta, bytes_per_product=bytes_per_product
                )
                curvatures[site] = GaussNewton(hessians, rows, split.scale, family)
    return Particles(
        values.detach(),
        {site: gradient.detach() for site, gradient in by_site.items()},
        curvatures,
        [
            (leaf, gradient.detach())
            for leaf, gradient in zip(ordinary, gradients[len(latents) :], strict=True)
        ],
    )


def ordinary_leaves(values: Tensor, latents: dict[str, Tensor]) -> list[Tensor]:
    """The tensors besides the latents that ``values`` can be differentiated for."""
    known = {id(value) for value in latents.values()}
    leaves: dict[int, Tensor] = {}
    nodes, seen = [values.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            leaves[id(leaf)] = leaf
        nodes.extend(following for following, _ in node.next_functions)
    return list(leaves.values())


def sum_gradients(values: Tensor, leaves: list[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """The gradients of the sum of ``values``, zero where there are none."""
    if not values.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(
        values.sum(), leaves, create_graph=create_graph, retain_graph=True, materialize_grads=True
    )


def as_function_of(
    density: LogDensity,
    latents: dict[str, Tensor],
    site: str,
    noise: NoiseState | None,
    *,
    rest_only: bool = False,
) -> Callable[[Tensor], Tensor]:
    """The same log density as a function of one site's draws.

    :param noise: what the first evaluation drew its random numbers from, if any.
    :param rest_only: whether the likelihood of the examples is left out.
    """
    others = {name: value.detach() for name, value in latents.items() if name != site}

    def at(theta: Tensor) -> Any:
        draws = {**others, site: theta}
        return examples(density, draws).rest if rest_only else density(draws)

    def again(theta: Tensor) -> Tensor:
        if noise is None:
            return at(theta)
        with noise.again():
            return at(theta)

    return again
