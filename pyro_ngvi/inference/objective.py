"""The bound of a fit with its natural gradient, many groups of draws in a pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from pyro.distributions.transforms import biject_to
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor

from ngvi.estimators.choice import Case
from ngvi.estimators.points import mixture_in
from ngvi.inference import problem
from ngvi.inference.estimate import Direction, Estimate, Group, Sample
from ngvi.inference.problem import ModelRun, Rows
from ngvi.latents.layout import Site
from pyro_ngvi import estimators
from pyro_ngvi.estimators import PointsBySite, log_q, make_estimator, make_plan, num_products
from pyro_ngvi.estimators.differentiate import values_and_gradients
from pyro_ngvi.estimators.plan import Plan
from pyro_ngvi.families.base import Family
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.host import doubles
from pyro_ngvi.inference.metric import EachRow, flat, gradient_of
from pyro_ngvi.inference.space import State, StateSpace
from pyro_ngvi.parallel.rows import SeesRows
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.arguments import tensors_in
from pyro_ngvi.tracing.messengers import (
    Domains,
    LastLatentError,
    Latents,
    NanCholesky,
    quiet,
    repeatable_noise,
)

#: Draws of a prior that are tried: if these fail, all would.
FEW_DRAWS = 5
#: Runs of a prior that say whether the others, of which nothing but latents is needed, are safe.
WHOLE_RUNS = 20
#: Data of more numbers than these, 256 MiB, are not copied to double precision.
MOST_NUMBERS = 2**25


class Objective(problem.Objective):
    """Runs a model with a guide; see :class:`ngvi.inference.problem.Objective`.

    :param space: of both, which gets the guide's families here.
    :param plan: of both with these arguments, if it is known.
    """

    batch_in_words = "pyro.plate('data', num_rows, subsample=y)"

    def __init__(
        self, run: ModelRun, space: StateSpace, estimator: str = "auto", plan: Plan | None = None
    ) -> None:
        self._model, guide, args, kwargs = run
        self.args, self.kwargs = args, kwargs
        self._space, self._each_row = space, EachRow()
        # As NUTS takes it.
        if plan is None:
            self._plan, self.density = make_plan(*run, validate=False)
        else:
            self._plan, self.density = plan, plan.density(args, kwargs)
        self._leaves = list(space.live.values())
        space.bind(self.density.posteriors)
        products = max(num_products(family) for family in space.initial.families)
        data_size = max([1, *(tensor.numel() for tensor in tensors_in((args, kwargs)))])
        # Nothing is random, and all parameters are the Gaussian's.
        is_plain = type(guide) is NaturalGaussianGuide and not space.has_model_parameters
        not_additive = None
        if is_plain and not self._plan.facts.is_stochastic:
            not_additive = partial(estimators.why_not_additive, self.density)
        obstacle = partial(self._plan.hessian_obstacle, self.density)
        self._choose(estimator, data_size, Case(space.dim, products, obstacle, not_additive, guide))
        self.is_subsampled, self.rows = self._plan.facts.is_subsampled, None
        indices, sizes = self.density.minibatch.indices, self.density.minibatch.sizes
        if len(indices) == 1:
            ((plate, visited),) = indices.items()
            self.rows = Rows(plate, sizes[plate], len(visited))

    @cached_property
    def _estimator(self) -> Any:
        return make_estimator(self.estimator, self.groups.cost, self._plan)

    def _take(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        self.args, self.kwargs, self.is_subsampled = args, kwargs, False
        self.density = self._plan.density(args, kwargs)
        return tuple(tuple(tensor.shape) for tensor in tensors_in((args, kwargs)))

    def _parts(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, tuple[int, int]]:
        seen = SeesRows(self._model)
        with repeatable_noise(), quiet(), poutine.block(), torch.no_grad():
            trace = poutine.trace(self.guide).get_trace(*args, **kwargs)
            poutine.replay(seen, trace=trace)(*args, **kwargs)
        return {name: part for name, part in seen.parts.items() if part[0] < part[1]}

    @property
    def draws_per_pass(self) -> int:
        """Number of draws that are evaluated at once."""
        return self._plan.draws_per_pass(self.args, self.kwargs)

    @property
    def guide_is_enumerated(self) -> bool:
        """Return whether the guide has latents that are summed out."""
        return self._plan.facts.guide_is_enumerated

    @property
    def is_random(self) -> bool:
        return self._plan.facts.is_stochastic or self.is_subsampled

    @torch.no_grad()
    def bound(self, state: State, sample: Sample, rows: np.ndarray | None = None) -> Estimate:
        self.cost.gradients += sum(len(group.points.weights) for group in sample)
        self.cost.products += len(sample) * self.groups.cost.num_products
        self._space.put(state)
        if self.is_random or self._is_single():
            found = [self._seeded(state, group, rows) for group in sample]
        else:
            found = [self._measured(state, self.density, sample)]
        bounds, naturals, parameters = zip(*found, strict=True)
        naturals = torch.cat(naturals)
        mean = naturals.mean(0)
        direction = Direction(
            mean.cpu().numpy(),
            gradient_of(state.families, mean).cpu().numpy(),
            [np.mean(list(map(doubles, parts)), 0) for parts in zip(*parameters, strict=True)],
        )
        return Estimate(doubles(torch.cat(bounds)), naturals.cpu().numpy(), direction)

    @torch.no_grad()
    def gradient(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        self.cost.gradients += len(theta)
        self._space.put(state)
        is_random = self._plan.facts.is_stochastic or (self.is_subsampled and rows is None)
        # What one point gives shall not depend on the others.
        at_once = 1 if is_random else self._plan.draws_per_pass(self.args, self.kwargs)
        parts = [theta[i : i + at_once] for i in range(0, len(theta), at_once)]
        values, gradients = zip(*(self._gradients_at(some, rows) for some in parts), strict=True)
        return np.concatenate(values), np.concatenate(gradients)

    def _gradients_at(
        self, theta: np.ndarray, rows: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        latents = self._space.tensors(theta)
        weights = torch.ones_like(next(iter(latents.values()))[:, 0])
        with repeatable_noise():
            torch.manual_seed(0)
            density = self._new_density(rows)
            values, gradients, _ = values_and_gradients(density, latents, weights, self._leaves)
        by_site = [doubles(part) for part in gradients.values()]
        return doubles(values), np.concatenate(by_site, 1)

    @torch.no_grad()
    def log_density(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        self.cost.values += len(theta)
        self._space.put(state)
        return self._in_passes(self._space.tensors(theta), lambda: self._new_density(rows))

    @torch.no_grad()
    def in_double(self, state: State, theta: np.ndarray) -> np.ndarray | None:
        if self.is_random or isinstance(self.guide, ReparametrizedGaussianGuide):
            return None  # whose modes are found in the precision of the guide
        if sum(tensor.numel() for tensor in tensors_in((self.args, self.kwargs))) > MOST_NUMBERS:
            return None
        self.cost.values += len(theta)
        self._space.put(state)
        latents = self._space.tensors(theta, in_double=True)
        try:
            with repeatable_noise():  # it runs the guide
                density = self._plan.density(*_in_double((self.args, self.kwargs)))
            return self._in_passes(latents, lambda: density)
        except Exception:  # noqa: BLE001  a model need not be one for double precision
            return None

    @torch.no_grad()
    def prior(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray | None, dict[str, float]]:
        guide, domains = self.guide, Domains()
        is_plain = type(guide) is NaturalGaussianGuide and guide.create_plates is None
        sites, is_enumerated = guide.sites if is_plain else [], self._plan.facts.is_enumerated
        self._space.put(self._space.initial)
        draws: list[np.ndarray] = []
        # A draw at which a covariance is singular, or the model raises, takes none from the others.
        with repeatable_noise(), quiet(), NanCholesky():
            torch.manual_seed(int(rng.integers(2**31)) if is_plain else 0)
            while len(draws) < count and not (len(draws) >= FEW_DRAWS and np.isnan(draws).all()):
                is_safe = not (is_enumerated or domains.found or np.isnan(draws).any())
                may_end = is_safe and len(draws) >= WHOLE_RUNS
                draws.append(self._prior_draw(sites, domains, may_end))
        outside = {words: number / len(draws) for words, number in domains.found.items()}
        can_be_sampled = is_plain and not np.isnan(draws).all()
        return np.stack(draws) if can_be_sampled else None, outside

    def _prior_draw(self, sites: list[Site], domains: Domains, may_end: bool) -> np.ndarray:
        """Return one draw; NaN if the model raises.

        :param may_end: whether the run may end at the last latent.
        """
        latents = Latents([site.name for site in sites], may_end)
        try:
            with poutine.block(), latents, contextlib.suppress(LastLatentError):
                domains(InitMessenger(_anywhere)(self._model))(*self.args, **self.kwargs)
        except Exception:  # noqa: BLE001  it is the user's
            return np.full(self.dim, np.nan)
        if not sites:
            return np.zeros(self.dim)
        nodes = [latents.found[site.name] for site in sites]
        parts = [biject_to(node["fn"].support).inv(node["value"]).reshape(-1) for node in nodes]
        return doubles(torch.cat(parts))

    def _in_passes(
        self, latents: dict[str, Tensor], density: Callable[[], LogDensity]
    ) -> np.ndarray:
        """Return the log density at latent vectors by site, shape ``(N,)``."""
        at_once = self._plan.draws_per_pass(self.args, self.kwargs)

        def evaluate(start: int) -> Tensor:
            some = {site: value[start : start + at_once] for site, value in latents.items()}
            with repeatable_noise():
                torch.manual_seed(start)
                return density().values(some, self._leaves)

        starts = range(0, len(next(iter(latents.values()))), at_once)
        return np.concatenate([doubles(evaluate(start)) for start in starts])

    # -- groups -----------------------------------------------------------------------

    def _is_single(self) -> bool:
        """Return whether groups are evaluated one after another."""
        is_mixture = mixture_in(self._space.by_site(self._space.initial)) is not None
        return is_mixture or not isinstance(self._estimator, estimators.BY_GROUPS)

    def _seeded(self, state: State, group: Group, rows: np.ndarray | None) -> tuple:
        with repeatable_noise():
            torch.manual_seed(group.seed)
            return self._measured(state, self._new_density(rows), [group])

    def _new_density(self, rows: np.ndarray | None = None) -> LogDensity:
        """Return the log density of a minibatch of its own, or of these rows."""
        if rows is not None:
            indices = self.density.minibatch.indices
            indices[self.rows.plate] = torch.as_tensor(rows).to(indices[self.rows.plate])
        elif self.is_subsampled:
            return self._plan.density(self.args, self.kwargs)
        return self.density

    def _measured(self, state: State, density: LogDensity, sample: Sample) -> tuple:
        """Return the groups' bounds and directions, and mean gradients of model parameters."""
        here = self._space.by_site(state)
        noise = self._space.tensors(np.concatenate([group.points.noise for group in sample]))
        weights = np.concatenate([group.points.weights for group in sample])
        points = PointsBySite(noise, torch.as_tensor(weights).to(state.families[0].loc))
        evaluate = estimators.Differentiator(density, self._plan, self._leaves)
        if self._is_single():
            estimate = self._estimator(evaluate, here, points)
            first = points.some(slice(len(estimate.values)))
            gains = estimate.values - log_q(here, first.noise)
            bound = (first.weights * gains).sum() / first.weights.sum()
            rows = flat(list(estimate.directions.values()))[None]
            return bound[None], rows, [gradient for _, gradient in estimate.params]
        found, count = evaluate(here, points), len(sample)
        gains = points.weights * (found.values - log_q(here, points.noise))
        rows = [
            estimators.directions_of_groups(
                self._estimator,
                family,
                found.by_site[site].reshape(count, -1, family.dim),
                noise[site].reshape(count, -1, family.dim),
                found.kept.reshape(count, -1),
                self._rows,
            )
            for site, family in here.items()
        ]
        parameters = [gradient / count for _, gradient in found.params]
        return gains.reshape(count, -1).sum(-1), torch.cat(rows, -1), parameters

    def _rows(self, function: Callable[..., Family], *stacks: Tensor) -> Tensor:
        return self._each_row(lambda *rows: flat([function(*rows)]), *stacks)


def _in_double(tree: Any) -> Any:
    """Floating point tensors in double precision, all else as it is."""
    if isinstance(tree, Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {key: _in_double(part) for key, part in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(_in_double, tree))
    return tree


def _anywhere(site: dict[str, Any]) -> Tensor | None:
    """Return a point for sites whose prior is improper, and cannot be sampled."""
    fn = site["fn"]
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    if not isinstance(fn, ImproperUniform):
        return None
    # Pyro's init_to_uniform draws from the prior, to know the shape.
    to_support = biject_to(site["fn"].support)
    return to_support(4.0 * torch.rand(to_support.inverse_shape(site["fn"].shape())) - 2.0)
