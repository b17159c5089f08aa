"""What a fit evaluates: the bound with its natural gradient, and steps of the posterior.

The search (:mod:`~ngvi.fit.search`) sees this class and numpy's numbers, nothing of the
PPL, so that it is the same in both packages. A *place* is the parameters of model and guide, a
*direction* a change of all Gaussians among them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from ngvi.fit.engine import Draws, Measured, Step
from ngvi.points import Points, spherical_points
from pyro_ngvi.curvature import num_products, stein_direction
from pyro_ngvi.curvature.draws import default_num_gradients
from pyro_ngvi.curvature.moments import finite_draws, map_structure
from pyro_ngvi.curvature.spherical import scores, weighted_direction
from pyro_ngvi.elbo.particles import Families, Noise, evaluate, log_prob
from pyro_ngvi.elbo.plan import Plan, make_plan
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.fit.definite import NanCholesky
from pyro_ngvi.fit.flat import EachRow, flat, unflat
from pyro_ngvi.fit.memory import Memory, covector
from pyro_ngvi.optim.trust_region import longest_within
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.messengers import repeatable_noise

Direction = list[Family]

CURVATURES = ("auto", "spherical", "hessian", "stein")

#: ``curvature="auto"`` takes Hessians for structured families, whose Hessians take fewer products
#: than ``d`` over the first number, and fewer than the second.
CHEAP_HESSIAN = 8
MAX_PRODUCTS = 2000
#: Otherwise the ``2 d + 1`` gradients of a group up to this many latents, then gradients at few
#: points.
MAX_SPHERICAL_DIM = 2000

#: Draws in a group with Hessians, in antithetic pairs, and in one with gradients only.
MIN_HESSIANS, MAX_HESSIANS = 4, 64
NUM_STEIN = 10

#: The draws of a group have at most so many times the data between them.
NUMBERS_AT_ONCE = 2**25

#: Pairs of the quasi-Newton memory, fewer if they have more than so many numbers.
MAX_PAIRS = 6
MAX_NUMBERS = 20_000_000

#: A standard deviation of an unconstrained latent that tells of an improper posterior.
TOO_WIDE = 1e7


class Place(NamedTuple):
    """Parameters of model and guide, through which no gradient flows."""

    families: list[Family]  #: in the order of ``Engine.dims``
    ordinary: dict[str, Tensor]  #: unconstrained, by their names in the parameter store


class Engine:
    """Evaluates a model and a guide, whose parameters in the store stay as they are.

    Only ordinary parameters are live: they are those of the last evaluation.
    :meth:`write` makes a place that of the guide.

    :param model: a Pyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param seed: for the initial parameters. Pyro's own random numbers are left as they are.
    :param curvature: one of :data:`CURVATURES`.
    :ivar initial: the parameters before the first step.
    :ivar dim: the number of latents of all Gaussians.
    :ivar eps: the precision of the floating point numbers.
    :ivar has_ordinary: whether there are parameters that are not Gaussian.
    :ivar num_gradients: gradients of the log density so far.
    :ivar num_hessian_products: Hessian-vector products so far.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        seed: int = 0,
        curvature: str = "auto",
    ) -> None:
        if curvature not in CURVATURES:
            known = ", ".join(repr(name) for name in CURVATURES)
            raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {known}.")
        self.model, self.guide = model, guide
        self.args, self.kwargs = args, kwargs
        self._has_indefinite = False
        with repeatable_noise(), torch.enable_grad():
            torch.manual_seed(seed)
            self._leaves = {name: leaf for name, (leaf, _) in self._parameters().items()}
            self._plan = self._tolerant(lambda: self._planned("stein"))
            self._density = self._new_density()
            self._live = {s: self._density.posteriors[s] for s in sorted(self._density.posteriors)}
            families = [family.detach() for family in self._live.values()]
            self.dims = {
                site: family.dim for site, family in zip(self._live, families, strict=True)
            }
            self.dim = sum(self.dims.values())
            self.curvature = self._choose(curvature, families)
            self._density = self._new_density()  # of the plan that was chosen
        self._ordinary = {
            name: leaf
            for name, leaf in self._leaves.items()
            if coordinate_of(leaf) is None and leaf.requires_grad
        }
        self.has_ordinary = bool(self._ordinary)
        self.initial = Place(
            [family.map(torch.clone) for family in families],
            {name: leaf.detach().clone() for name, leaf in self._ordinary.items()},
        )
        self.eps = max(torch.finfo(family.loc.dtype).eps for family in families)
        products = max(num_products(family) for family in families)
        self.num_hessians = self._hessians_per_group(products)
        self._num_gradients_per_group = {
            "spherical": 2 * self.dim + 1,
            "hessian": default_num_gradients(self.num_hessians, products),
            "stein": NUM_STEIN,
        }[self.curvature]
        if self.curvature != "hessian":
            products = 0
        self._num_products_per_group = self.num_hessians * products
        self.num_gradients = self.num_hessian_products = 0
        self._adam: torch.optim.Adam | None = None
        self.max_pairs = int(min(MAX_PAIRS, MAX_NUMBERS // (2 * flat(families).numel())))
        self._each_row = EachRow()
        # What the last calls found, of objects that the search holds on to.
        self._memory = Memory(families, [], self._each_row)
        self._covectors: deque[tuple] = deque(maxlen=3)
        self._last_mean: tuple[Any, Any] = (None, None)

    @property
    def is_subsampled(self) -> bool:
        """Whether the model sees minibatches."""
        return self._plan.facts.is_subsampled

    # -- draws ------------------------------------------------------------------------

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""
        if self.curvature == "spherical":
            points = spherical_points(rng, self.dim, num_groups)
        else:
            points = [self._antithetic(rng) for _ in range(num_groups)]
        seeds = rng.integers(2**31, size=num_groups)
        return [Draws(group, int(seed)) for group, seed in zip(points, seeds, strict=True)]

    def _antithetic(self, rng: np.random.Generator) -> Points:
        first = self.num_hessians if self.curvature == "hessian" else 0
        rest = self._num_gradients_per_group - first
        noise = []
        for count in (first, rest):
            half = rng.standard_normal((-(-count // 2), self.dim))
            noise.extend((half, -half[: count // 2]))
        noise = np.concatenate(noise)
        return Points(noise, np.full(len(noise), 1.0 / len(noise)))

    # -- evaluations ------------------------------------------------------------------

    @torch.no_grad()
    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient, by group."""
        self.num_gradients += len(draws) * self._num_gradients_per_group
        self.num_hessian_products += len(draws) * self._num_products_per_group
        self._put(place)
        facts = self._plan.facts
        one_by_one = facts.is_stochastic or facts.is_subsampled or self.curvature == "hessian"
        if not one_by_one:
            return self._tolerant(lambda: self._groups(place, self._density, draws))
        parts = [self._tolerant(lambda g=group: self._seeded(place, g)) for group in draws]
        values = np.concatenate([part.values for part in parts])
        return Measured(values, [direction for part in parts for direction in part.directions])

    def _seeded(self, place: Place, group: Draws) -> Measured:
        with repeatable_noise():
            torch.manual_seed(group.seed)
            density = self._new_density() if self.is_subsampled else self._density
            return self._groups(place, density, [group])

    def _tolerant(self, evaluate: Callable[[], Any]) -> Any:
        """What is not positive definite at some draw is NaN there, as in other PPLs."""
        if not self._has_indefinite:
            try:
                return evaluate()
            except torch.linalg.LinAlgError:
                self._has_indefinite = True  # from now on at the price of one more torch mode
        with NanCholesky():
            return evaluate()

    def _groups(self, place: Place, density: LogDensity, draws: list[Draws]) -> Measured:
        here = self._by_site(place)
        noise = self._split(np.concatenate([group.points.noise for group in draws]))
        weights = np.concatenate([group.points.weights for group in draws])
        weights = torch.as_tensor(weights).to(place.families[0].loc)
        if self.curvature == "hessian":
            return self._second_order(here, density, noise)
        latents = {site: family.sample(noise[site]) for site, family in here.items()}
        values, weighted, ordinary = self._gradients(density, latents, weights)
        bounds = (weights * (values - log_prob(here, noise))).reshape(len(draws), -1).sum(-1)
        by_group = [
            self._directions(
                family,
                *(
                    array.reshape(len(draws), -1, family.dim)
                    for array in (weighted[site], noise[site], latents[site])
                ),
                values.reshape(len(draws), -1),
            )
            for site, family in here.items()
        ]
        if ordinary is not None:
            # Of groups that are evaluated together only the mean is known; no more is needed.
            ordinary = {name: gradient / len(draws) for name, gradient in ordinary.items()}
        directions = [(list(parts), ordinary) for parts in zip(*by_group, strict=True)]
        return Measured(bounds.double().cpu().numpy(), directions)

    def _directions(
        self, family: Family, weighted: Tensor, noise: Tensor, latents: Tensor, values: Tensor
    ) -> list[Family]:
        """One family's directions, by group."""
        if self.curvature == "spherical":
            rows = self._each_row(
                lambda w, s: flat([weighted_direction(family, w, s)]),
                weighted,
                scores(family, latents),
            )
            return [unflat(row, [family])[0] for row in rows]
        directions = []
        for gradients, z, at in zip(weighted * weighted.shape[1], noise, values, strict=True):
            kept = finite_draws(at, gradients)
            directions.append(stein_direction(gradients[kept], z[kept], family))
        return directions

    def _gradients(
        self, density: LogDensity, latents: dict[str, Tensor], weights: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor] | None]:
        """Values, their gradients times the weights, and the weighted sum of ordinary ones."""
        at_once = self._plan.draws_per_pass(self.args, self.kwargs)
        values, gradients = [], []
        ordinary = [torch.zeros_like(leaf) for leaf in self._ordinary.values()]
        for start in range(0, len(weights), at_once):
            some = slice(start, start + at_once)
            leaves = {
                site: theta[some].detach().requires_grad_() for site, theta in latents.items()
            }
            inputs = [*leaves.values(), *self._ordinary.values()]
            with torch.enable_grad():
                at = density(leaves)
                total = (weights[some] * at).sum()
            if total.requires_grad:
                found = torch.autograd.grad(total, inputs, materialize_grads=True)
            else:
                found = [torch.zeros_like(value) for value in inputs]
            values.append(at.detach())
            gradients.append(found[: len(leaves)])
            ordinary = [old + new for old, new in zip(ordinary, found[len(leaves) :], strict=True)]
        by_site = [torch.cat(parts) for parts in zip(*gradients, strict=True)]
        return (
            torch.cat(values),
            dict(zip(latents, by_site, strict=True)),
            dict(zip(self._ordinary, ordinary, strict=True)) if self.has_ordinary else None,
        )

    def _second_order(self, here: Families, density: LogDensity, noise: Noise) -> Measured:
        """One group, with Hessians at its first draws."""
        plan = self._plan
        first = {site: z[: self.num_hessians] for site, z in noise.items()}
        rest = {site: z[self.num_hessians :] for site, z in noise.items()}
        ordinary = self._no_gradients()
        gradients: dict[str, list[Tensor]] = {site: [] for site in here}
        values: list[Tensor] = []
        hessians: dict[str, Any] = {}
        num_kept = 0
        at_once = plan.draws_per_pass(self.args, self.kwargs)
        names = {id(leaf): name for name, leaf in self._ordinary.items()}
        for draws, kinds in ((first, dict.fromkeys(here, "hessian")), (rest, {})):
            for some in _split(draws, at_once) if len(next(iter(draws.values()))) else ():
                latents = {site: family.sample(some[site]) for site, family in here.items()}
                bytes_per_draw = plan.bytes(self.args, self.kwargs)
                particles = evaluate(density, latents, here, kinds, plan.products, bytes_per_draw)
                kept = particles.finite()
                for site in here:
                    gradients[site].append(particles.gradients[site][kept])
                for leaf, gradient in particles.ordinary:
                    ordinary[names[id(leaf)]] += gradient / self._num_gradients_per_group
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
        return Measured(np.array([float(bound)]), [(directions, ordinary)])

    def _no_gradients(self) -> dict[str, Tensor] | None:
        if not self.has_ordinary:
            return None
        return {name: torch.zeros_like(leaf) for name, leaf in self._ordinary.items()}

    # -- directions -------------------------------------------------------------------

    def mean(self, measured: Measured) -> Any:
        """The average direction over all groups."""
        if self._last_mean[0] is measured:
            return self._last_mean[1]
        families, ordinary = zip(*measured.directions, strict=True)
        average = [
            parts[0].map(lambda *values: torch.stack(values).mean(0), *parts[1:])
            for parts in zip(*families, strict=True)
        ]
        of_ordinary = None
        if self.has_ordinary:
            of_ordinary = {
                name: torch.stack([gradients[name] for gradients in ordinary]).mean(0)
                for name in self._ordinary
            }
        self._last_mean = measured, (average, of_ordinary)
        return self._last_mean[1]

    def deviations(self, measured: Measured, mean: Any) -> list[Any]:
        """The groups' directions minus their mean."""
        return [self.difference(one, mean) for one in measured.directions]

    def difference(self, left: Any, right: Any) -> Any:
        """``left - right``."""
        families = [a.map(torch.sub, b) for a, b in zip(left[0], right[0], strict=True)]
        if not self.has_ordinary:
            return families, None
        return families, {name: left[1][name] - right[1][name] for name in self._ordinary}

    @torch.no_grad()
    def slope(self, place: Place, direction: Any, change: Direction) -> float:
        """The derivative of the bound along a change of the Gaussians, in nats."""
        return float(self._covector(place, direction[0]) @ flat(change))

    @torch.no_grad()
    def corrected(
        self, place: Place, direction: Any, pairs: list[tuple[Direction, Any]]
    ) -> tuple[Any, float, float]:
        """The quasi-Newton direction, from what earlier steps did to the natural gradient.

        :param pairs: changes of the Gaussians, and the falls of the direction along them.
        :return: the direction, the gain that a quadratic bound would have along it, and the gain
            that the Fisher metric predicts, both in nats.
        """
        pairs = pairs[-self.max_pairs :] if self.max_pairs else []
        if not self._memory.is_of(place.families, pairs):
            self._memory = Memory(place.families, pairs, self._each_row)
        vector, of_vector = flat(direction[0]), self._covector(place, direction[0])
        result, of_result = self._memory.correct(vector, of_vector)
        gains = torch.stack([of_vector @ result, of_vector @ vector]).double().tolist()
        corrected = unflat(result, place.families) if pairs else direction[0]
        self._covectors.append((place.families, corrected, of_result))
        return (corrected, direction[1]), 0.5 * gains[0], 0.5 * gains[1]

    def _covector(self, place: Place, direction: Direction) -> Tensor:
        """``F`` times a direction, which is asked for several times in a step."""
        for families, one, known in self._covectors:
            if families is place.families and one is direction:
                return known
        result = covector(place.families, flat(direction))
        self._covectors.append((place.families, direction, result))
        return result

    # -- steps ------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, place: Place, direction: Any, rho: float, radius: float) -> Step | None:
        """The step ``rho`` along a direction, shorter if it would leave the trust region.

        :param radius: the largest ``KL(new || old)``, in nats.
        :return: None if no step leads to a finite Gaussian.
        """
        families = place.families

        def advance(rho: float) -> list[Family]:
            return [f.natural_step(d, rho) for f, d in zip(families, direction[0], strict=True)]

        moved, length, rho = longest_within(radius, families, advance, rho)
        change = [new.map(torch.sub, old) for new, old in zip(moved, families, strict=True)]
        slope = self.slope(place, direction, change)
        if not (math.isfinite(slope) and length <= radius):
            return None
        backward = sum(
            float(old.kl_divergence(new)) for new, old in zip(moved, families, strict=True)
        )
        return Step(place._replace(families=moved), change, slope, length, backward, rho)

    @torch.no_grad()
    def update_ordinary(self, place: Place, direction: Any, step_size: float) -> Place:
        """Move the parameters that are not Gaussian, by Adam with this learning rate."""
        if not self.has_ordinary:
            return place
        if self._adam is None:
            own = [value.clone().requires_grad_() for value in place.ordinary.values()]
            self._adam = torch.optim.Adam(own)
        (group,) = self._adam.param_groups
        group["lr"] = step_size
        for (name, value), own in zip(place.ordinary.items(), group["params"], strict=True):
            own.copy_(value)
            own.grad = -direction[1][name]
        self._adam.step()
        moved = (own.detach().clone() for own in group["params"])
        return place._replace(ordinary=dict(zip(place.ordinary, moved, strict=True)))

    # -- places -----------------------------------------------------------------------

    def at(self, locs: dict[str, np.ndarray] | None, scale: float) -> Place:
        """The initial parameters with ``N(loc, scale^2 I)``.

        :param locs: by site; by default the guide's.
        """
        new = []
        for site, family in self._by_site(self.initial).items():
            loc = family.loc if locs is None else torch.as_tensor(locs[site]).to(family.loc)
            new.append(family.initial(loc, scale))
        return self.initial._replace(families=new)

    def locs(self, place: Place) -> dict[str, np.ndarray]:
        """The Gaussians' means by site."""
        return {site: _numpy(family.mean) for site, family in self._by_site(place).items()}

    def stddevs(self, place: Place) -> dict[str, np.ndarray]:
        """The Gaussians' marginal standard deviations by site."""
        return {site: _numpy(family.stddev) for site, family in self._by_site(place).items()}

    def is_too_wide(self, place: Place) -> bool:
        """Whether a standard deviation is one that hardly any proper posterior has."""
        return any(np.max(sd) > TOO_WIDE for sd in self.stddevs(place).values())

    @torch.no_grad()
    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density and its gradient at one joint latent vector."""
        self.num_gradients += 1
        self._put(self.initial)
        latents = self._split(theta[None])
        weights = torch.ones_like(next(iter(latents.values()))[:, 0])

        def evaluate() -> tuple:
            with repeatable_noise():
                torch.manual_seed(0)
                density = self._new_density() if self.is_subsampled else self._density
                return self._gradients(density, latents, weights)

        value, gradients, _ = self._tolerant(evaluate)
        return float(value), np.concatenate([_numpy(g[0]) for g in gradients.values()])

    def joint(self, locs: dict[str, np.ndarray]) -> np.ndarray:
        """One vector of the latents of all sites."""
        return np.concatenate([locs[site] for site in self.dims])

    def split(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """The latents by site: the inverse of :meth:`joint`."""
        ends = np.cumsum(list(self.dims.values()))[:-1]
        return dict(zip(self.dims, np.split(theta, ends, -1), strict=True))

    def _split(self, noise: np.ndarray) -> dict[str, Tensor]:
        return {
            site: torch.as_tensor(part).to(family.loc)
            for (site, part), family in zip(
                self.split(noise).items(), self.initial.families, strict=True
            )
        }

    def _by_site(self, place: Place) -> dict[str, Family]:
        return dict(zip(self.dims, place.families, strict=True))

    # -- the parameter store ----------------------------------------------------------

    def restored(self, params: dict[str, Tensor]) -> Place:
        """The place of a snapshot of all parameters, as :meth:`snapshot` gives it.

        :raises ValueError: if its latents are not this model's.
        """
        families = []
        for family in self._live.values():
            of = coordinate_of(_leaf(family.loc))
            values = {}
            for name, own in family.coordinates().items():
                values[name] = params.get(f"{of.owner}.{name}")
                if values[name] is None or values[name].shape != own.shape:
                    loc = params.get(f"{of.owner}.loc")
                    raise ValueError(
                        f"init= holds {'no' if loc is None else len(loc)} latents for "
                        f"'{of.owner}', and the model has {family.dim}: it must be the result of "
                        "a model with the same latents, and of the same family."
                    )
                values[name] = values[name].detach().to(own)
            families.append(dataclasses.replace(family, **values))
        return self.initial._replace(families=families)

    @torch.no_grad()
    def write(self, place: Place) -> None:
        """Make a place the parameters of the guide and of the store."""
        self._put(place)
        for live, new in zip(self._live.values(), place.families, strict=True):
            live.map(lambda value, other: _leaf(value).copy_(other), new)

    @torch.no_grad()
    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all parameters, constrained, by their names in the store."""
        with repeatable_noise():
            return {name: value.clone() for name, (_, value) in self._parameters().items()}

    def _put(self, place: Place) -> None:
        for name, value in place.ordinary.items():
            self._ordinary[name].copy_(value)

    def _parameters(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Unconstrained and constrained parameters that guide and model have in a run."""
        with poutine.block(), poutine.trace(param_only=True) as capture:
            trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
            poutine.replay(self.model, trace=trace)(*self.args, **self.kwargs)
        sites = capture.trace.nodes.items()
        return {name: (_leaf(site["value"]), site["value"].detach()) for name, site in sites}

    # -- choices ----------------------------------------------------------------------

    def _new_density(self) -> LogDensity:
        return LogDensity(self.model, self.guide, self.args, self.kwargs, self._plan.facts)

    def _planned(self, curvature: str) -> Plan:
        return make_plan(self.model, self.guide, self.args, self.kwargs, curvature, math.inf, True)

    def _choose(self, curvature: str, families: list[Family]) -> str:
        if curvature in ("spherical", "stein"):
            return curvature
        products = max(num_products(family) for family in families)
        otherwise = "spherical" if self.dim <= MAX_SPHERICAL_DIM else "stein"
        if curvature == "auto" and (CHEAP_HESSIAN * products > self.dim or products > MAX_PRODUCTS):
            return otherwise
        try:
            self._plan = self._tolerant(lambda: self._planned("hessian"))
        except ValueError as error:
            if curvature == "auto":
                return otherwise
            raise ValueError(f"{error} curvature='spherical' needs gradients only, too.") from error
        return "hessian"

    def _hessians_per_group(self, products: int) -> int:
        """As many Hessians as cost about what a group of orthogonal points would."""
        size = max([1, *(tensor.numel() for tensor in _tensors((self.args, self.kwargs)))])
        affordable = min(self.dim // products, MAX_HESSIANS, NUMBERS_AT_ONCE // size)
        return max(MIN_HESSIANS, 2 * (affordable // 2))


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


def _leaf(value: Tensor) -> Tensor:
    """The unconstrained tensor in the store, of a parameter's value."""
    return getattr(value, "unconstrained", lambda: value)()


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
