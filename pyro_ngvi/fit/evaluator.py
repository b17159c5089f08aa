"""What a fit evaluates: the bound with its natural gradient, many groups of draws in a pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngvi.fit.engine import Direction, Draws, Measured
from ngvi.fit.groups import Groups, choose
from pyro_ngvi.curvature import num_products, stein_direction
from pyro_ngvi.curvature.draws import default_num_gradients
from pyro_ngvi.curvature.moments import finite_draws, map_structure
from pyro_ngvi.curvature.spherical import scores, weighted_direction
from pyro_ngvi.elbo.particles import Noise, evaluate, log_prob
from pyro_ngvi.elbo.plan import Plan, make_plan
from pyro_ngvi.families.base import Family
from pyro_ngvi.fit.geometry import EachRow, covector, flat
from pyro_ngvi.fit.parameters import Parameters, Place
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.messengers import NanCholesky, repeatable_noise


class Evaluator:
    """Runs a model with a guide; see :class:`ngvi.fit.engine.Evaluator`.

    :param model: a Pyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param parameters: of both, which get the guide's families here.
    :param curvature: one of :data:`ngvi.fit.groups.CURVATURES`.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        parameters: Parameters,
        curvature: str = "auto",
    ) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        self._parameters, self._each_row = parameters, EachRow()
        self._has_indefinite = False
        self._plan = self._tolerant(lambda: self._planned("stein"))
        parameters.bind(self._new_density().posteriors)
        products = max(num_products(family) for family in parameters.initial.families)
        curvature = choose(curvature, parameters.dim, products, self._obstacle)
        self._density = self._new_density()  # of the plan that was chosen
        data_size = max([1, *(tensor.numel() for tensor in _tensors((args, kwargs)))])
        self._groups = Groups.of(
            curvature, parameters.dim, products, data_size, default_num_gradients
        )
        self.draws = self._groups.draws
        self.num_gradients = self.num_hessian_products = 0
        self.is_subsampled = self._plan.facts.is_subsampled

    @torch.no_grad()
    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient; not finite where the model is not."""
        self.num_gradients += len(draws) * self._groups.num_gradients
        self.num_hessian_products += len(draws) * self._groups.num_products
        self._parameters.put(place)
        facts = self._plan.facts
        if facts.is_stochastic or self.is_subsampled or self._groups.curvature == "hessian":
            found = [self._tolerant(lambda g=group: self._seeded(place, g)) for group in draws]
        else:
            found = [self._tolerant(lambda: self._measured(place, self._density, draws))]
        bounds, rows, ordinary = zip(*found, strict=True)
        rows = torch.cat(rows)
        mean = rows.mean(0)
        direction = Direction(
            mean.cpu().numpy(),
            covector(place.families, mean).cpu().numpy(),
            [np.mean(list(map(_numpy, parts)), 0) for parts in zip(*ordinary, strict=True)],
        )
        return Measured(_numpy(torch.cat(bounds)), rows.cpu().numpy(), direction)

    @torch.no_grad()
    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density and its gradient at one vector of all latents, shape ``(d,)``."""
        self.num_gradients += 1
        self._parameters.put(self._parameters.initial)
        latents = self._parameters.split(theta[None])
        weights = torch.ones_like(next(iter(latents.values()))[:, 0])

        def evaluate() -> tuple:
            with repeatable_noise():
                torch.manual_seed(0)
                density = self._new_density() if self.is_subsampled else self._density
                return self._gradients(density, latents, weights)

        value, gradients, _ = self._tolerant(evaluate)
        return float(value), np.concatenate([_numpy(g[0]) for g in gradients.values()])

    # -- groups -----------------------------------------------------------------------

    def _seeded(self, place: Place, group: Draws) -> tuple:
        with repeatable_noise():
            torch.manual_seed(group.seed)
            density = self._new_density() if self.is_subsampled else self._density
            return self._measured(place, density, [group])

    def _tolerant(self, evaluate: Callable[[], Any]) -> Any:
        """What is not positive definite at some draw is NaN there, as in other PPLs."""
        if not self._has_indefinite:
            try:
                return evaluate()
            except torch.linalg.LinAlgError:
                self._has_indefinite = True  # from now on at the price of one more torch mode
        with NanCholesky():
            return evaluate()

    def _measured(self, place: Place, density: LogDensity, draws: list[Draws]) -> tuple:
        """The groups' bounds and directions, and the mean gradients of ordinary parameters."""
        here = self._parameters.by_site(place)
        noise = self._parameters.split(np.concatenate([group.points.noise for group in draws]))
        if self._groups.curvature == "hessian":
            return self._second_order(here, density, noise)
        weights = np.concatenate([group.points.weights for group in draws])
        weights = torch.as_tensor(weights).to(place.families[0].loc)
        latents = {site: family.sample(noise[site]) for site, family in here.items()}
        values, weighted, ordinary = self._gradients(density, latents, weights)
        count = len(draws)
        bounds = (weights * (values - log_prob(here, noise))).reshape(count, -1).sum(-1)
        rows = [
            self._directions(
                family,
                *(
                    array.reshape(count, -1, family.dim)
                    for array in (weighted[site], noise[site], latents[site])
                ),
                values.reshape(count, -1),
            )
            for site, family in here.items()
        ]
        return bounds, torch.cat(rows, -1), [gradient / count for gradient in ordinary]

    def _directions(
        self, family: Family, weighted: Tensor, noise: Tensor, latents: Tensor, values: Tensor
    ) -> Tensor:
        """One family's directions, by group; shape ``(groups, n)``."""
        if self._groups.curvature == "spherical":
            return self._each_row(
                lambda w, s: flat([weighted_direction(family, w, s)]),
                weighted,
                scores(family, latents),
            )
        rows = []
        for gradients, z, at in zip(weighted * weighted.shape[1], noise, values, strict=True):
            kept = finite_draws(at, gradients)
            rows.append(flat([stein_direction(gradients[kept], z[kept], family)]))
        return torch.stack(rows)

    def _gradients(
        self, density: LogDensity, latents: dict[str, Tensor], weights: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        """Values, their gradients times the weights, and the weighted sum of ordinary ones."""
        at_once = self._plan.draws_per_pass(self.args, self.kwargs)
        values, gradients = [], []
        leaves = list(self._parameters.ordinary.values())
        ordinary = [torch.zeros_like(leaf) for leaf in leaves]
        for start in range(0, len(weights), at_once):
            some = slice(start, start + at_once)
            at = {site: theta[some].detach().requires_grad_() for site, theta in latents.items()}
            inputs = [*at.values(), *leaves]
            with torch.enable_grad():
                of_draws = density(at)
                total = (weights[some] * of_draws).sum()
            if total.requires_grad:
                found = torch.autograd.grad(total, inputs, materialize_grads=True)
            else:
                found = [torch.zeros_like(value) for value in inputs]
            values.append(of_draws.detach())
            gradients.append(found[: len(at)])
            ordinary = [old + new for old, new in zip(ordinary, found[len(at) :], strict=True)]
        by_site = [torch.cat(parts) for parts in zip(*gradients, strict=True)]
        return torch.cat(values), dict(zip(latents, by_site, strict=True)), ordinary

    def _second_order(self, here: dict[str, Family], density: LogDensity, noise: Noise) -> tuple:
        """One group, with Hessians at its first draws."""
        plan, num_hessians = self._plan, self._groups.num_hessians
        first = {site: z[:num_hessians] for site, z in noise.items()}
        rest = {site: z[num_hessians:] for site, z in noise.items()}
        leaves = self._parameters.ordinary.values()
        ordinary = {id(leaf): torch.zeros_like(leaf) for leaf in leaves}
        gradients: dict[str, list[Tensor]] = {site: [] for site in here}
        values: list[Tensor] = []
        hessians: dict[str, Any] = {}
        num_kept = 0
        at_once = plan.draws_per_pass(self.args, self.kwargs)
        for draws, kinds in ((first, dict.fromkeys(here, "hessian")), (rest, {})):
            for some in _split(draws, at_once) if len(next(iter(draws.values()))) else ():
                latents = {site: family.sample(some[site]) for site, family in here.items()}
                bytes_per_draw = plan.bytes(self.args, self.kwargs)
                particles = evaluate(density, latents, here, kinds, plan.products, bytes_per_draw)
                kept = particles.finite()
                for site in here:
                    gradients[site].append(particles.gradients[site][kept])
                for leaf, gradient in particles.ordinary:
                    ordinary[id(leaf)] += gradient / self._groups.num_gradients
                if not kinds:
                    continue
                values.append(particles.values)
                num_kept += int(kept.sum())
                for site, curvature in particles.curvatures.items():
                    total = curvature.total(kept)
                    if site in hessians:
                        total = map_structure(torch.add, hessians[site], total)
                    hessians[site] = total
        directions = [
            family.bonnet_price(
                torch.cat(gradients[site]).mean(0),
                # Of no draws the mean is NaN, as that of their gradients.
                map_structure(lambda h: h / num_kept if num_kept else h / 0.0, hessians[site]),
            )
            for site, family in here.items()
        ]
        bound = (torch.cat(values) - log_prob(here, first)).mean()
        return bound[None], flat(directions)[None], list(ordinary.values())

    # -- choices ----------------------------------------------------------------------

    def _new_density(self) -> LogDensity:
        return LogDensity(self.model, self.guide, self.args, self.kwargs, self._plan.facts)

    def _planned(self, curvature: str) -> Plan:
        return make_plan(self.model, self.guide, self.args, self.kwargs, curvature, math.inf, True)

    def _obstacle(self) -> Exception | None:
        """Why the log density has no Hessians, or None; the plan is then for them."""
        try:
            self._plan = self._tolerant(lambda: self._planned("hessian"))
        except ValueError as error:
            return error
        return None


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    parts = list(tree.values()) if isinstance(tree, dict) else tree
    if not isinstance(parts, (list, tuple)):
        return []
    return [tensor for part in parts for tensor in _tensors(part)]


def _split(noise: Noise, size: int) -> list[Noise]:
    parts = {site: z.split(size) for site, z in noise.items()}
    return [dict(zip(parts, some, strict=True)) for some in zip(*parts.values(), strict=True)]


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
