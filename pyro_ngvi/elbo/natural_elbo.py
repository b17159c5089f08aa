"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.estimators import natural_elbo as elbo
from ngvi.estimators.choice import Case, Curvature, is_noisy
from ngvi.estimators.table import EstimateCost
from ngvi.families import direction
from ngvi.guide.subsampled_latents import directions_of_minibatch, log_q_of_minibatch
from pyro_ngvi.estimators import (
    Averages,
    Differentiator,
    Families,
    Plan,
    PointsBySite,
    Quadrature,
    Stein,
    make_estimator,
    make_plan,
    num_products,
    orthogonal_points,
    standard_normal,
    why_not_additive,
)
from pyro_ngvi.estimators.moments import concatenated
from pyro_ngvi.host import Reads, label
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.messengers import SPLIT_OVER_WORKERS, check_gradients, repeatable_noise


@shared_doc(elbo.NaturalELBO)
class NaturalELBO(elbo.NaturalELBO, ELBO):
    """The bound of a model whose marked discrete latents are summed out.

    They are summed out as by ``TraceEnum_ELBO``. The structure of model and guide at the first
    call is assumed not to change.

    The bound in nats is minus the loss; the log evidence of this model is -6.63:

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR(), NaturalELBO(4))
    >>> losses = [svi.step(y) for _ in range(20)]
    >>> f"{-losses[-1]:.2f}"
    '-6.63'

    :param max_plate_nesting: as in Pyro's ELBOs; matters for enumeration only.
    :param vectorize_particles: whether draws may share one run of the model. The first call
        checks that this gives the values of separate runs, and otherwise runs them separately.
    """

    @door
    def __init__(
        self,
        num_particles: int = 10,
        curvature: Curvature = "auto",
        *,
        num_gradients: int | None = None,
        antithetic: bool = True,
        max_plate_nesting: float = float("inf"),
        vectorize_particles: bool = True,
    ) -> None:
        self._set_options(num_particles, curvature, num_gradients, antithetic)
        # Ours is not Pyro's vectorisation, for which it would add a plate to the nesting.
        super().__init__(num_particles=num_particles, max_plate_nesting=max_plate_nesting)
        self.vectorize_particles = vectorize_particles
        self._set_up: _SetUp | None = None
        self._losses = elbo.WatchedLosses()

    #: True if it gives guides the values of conjugate sites.
    gives_conjugate_sites = True

    # -- what SVI calls ---------------------------------------------------------------

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Minus the bound in nats, from the draws of a step."""
        plan, _, cost = self._set_up_for(model, guide, args, kwargs)
        with torch.no_grad():
            density = plan.density(args, kwargs)
            here = {site: family.detach() for site, family in density.posteriors.items()}
            if not here:
                return -float(density.without_draws())
            points = self._points(here, cost).some(slice(cost.num_hessians))
            passes = Differentiator(density, plan).passes(points)
            values = torch.cat([density(some.of(here)) for some in passes])
            return -float(_bound(values, here, points, values.isfinite(), density.visited))

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Return minus the bound in nats, and add gradients to the parameters' ``grad``.

        Those of a ``NaturalGaussianGuide`` are natural gradients.
        """
        loss, number = self._loss(model, guide, args, kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return self._losses.seen(float(loss.detach()) if number is None else number)

    def differentiable_loss(
        self, model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Minus the bound in nats, whose ``backward`` is that of :meth:`loss_and_grads`.

        Gradients are computed here, and cannot be differentiated again.

        :return: a scalar.
        """
        return self._loss(model, guide, args, kwargs)[0]

    def _loss(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> tuple[Tensor, float | None]:
        """Return :meth:`differentiable_loss`, and its number if it has been read."""
        check_gradients("A step of NaturalELBO", "Draws of the guide, and svi.evaluate_loss,")
        plan, estimator, cost = self._set_up_for(model, guide, args, kwargs)
        density = plan.density(args, kwargs)
        if not density.posteriors:
            return -density.without_draws(), None
        directions, bound, number, others = self._estimated(plan, density, estimator, cost)
        leaves, gradients = [leaf for leaf, _ in others], [gradient for _, gradient in others]
        for site, family in density.posteriors.items():
            leaves += family.coordinates().values()
            gradients += directions[site].coordinates().values()
        return _WithGradients.apply(-bound, *gradients, *leaves), -number

    def _estimated(
        self, plan: Plan, density: LogDensity, estimator: Any, cost: EstimateCost
    ) -> tuple:
        """Natural gradients, the bound as a tensor and read, and gradients of other parameters.

        Batches of points follow until their mean has little noise
        (:func:`ngvi.estimators.choice.is_noisy`); the last gradients are those of the first batch.
        """
        here = {site: family.detach() for site, family in density.posteriors.items()}
        # Workers with a part of the rows each would not agree on how noisy a step is.
        adapts = cost.max_batches > 1 and not SPLIT_OVER_WORKERS.get()
        noise, square, number, num_dropped = 0.0, 0.0, 0.0, 0.0
        estimates, bounds = list[Averages](), list[Tensor]()
        while not estimates or (adapts and is_noisy(len(estimates), noise, square)):
            evaluate = Differentiator(density, plan, [] if estimates else None)
            points, visited = self._points(here, cost), density.visited
            with label("moments"):
                estimate = estimator(evaluate, here, points)
            # Those of quadrature have the whole entropy in them, without noise.
            counts = {} if isinstance(estimator, Quadrature) else visited
            bounds.append(_bound(estimate.values, here, points, estimate.kept, counts))
            drawn = points if isinstance(estimator, Stein) else None
            directions = directions_of_minibatch(
                here, estimate, visited, drawn, evaluate.gradient_of
            )
            estimates.append(estimate._replace(directions=directions))
            spread = estimate.spread if adapts else ()
            of_bound, dropped, *of_spread = Reads().now(bounds[-1], (~estimate.kept).sum(), *spread)
            number, num_dropped = number + of_bound, num_dropped + dropped
            if adapts:
                noise, square = noise + of_spread[0], square + of_spread[1]
        count = len(estimates)
        self._count(int(num_dropped))
        of_each = [list(estimate.directions.values()) for estimate in estimates]
        mean = of_each[0]
        if count > 1:
            mean = direction.scale(1 / count, functools.reduce(direction.add, of_each))
        by_site = dict(zip(here, mean, strict=True))
        return by_site, sum(bounds) / count, number / count, estimates[0].params

    def _get_trace(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> tuple[Any, Any]:
        return get_importance_trace("flat", self.max_plate_nesting, model, guide, args, kwargs)

    # -- once -------------------------------------------------------------------------

    def _set_up_for(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> _SetUp:
        if self._set_up is None or not self._set_up.plan.is_for(model, guide):
            # Random numbers of its own, so that a run resumed from a checkpoint goes on as it was.
            with torch.enable_grad(), repeatable_noise():
                self._set_up = self._new_set_up(model, guide, args, kwargs)
            self._losses = elbo.WatchedLosses()
        return self._set_up

    def _new_set_up(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> _SetUp:
        plan, density = make_plan(
            model, guide, args, kwargs, self.max_plate_nesting, self.vectorize_particles
        )
        here = {site: family.detach() for site, family in density.posteriors.items()}
        if not here:
            return _SetUp(plan, None, None)
        dim = sum(family.dim for family in here.values())
        products = max(map(num_products, here.values()))
        obstacle = functools.partial(plan.hessian_obstacle, density)
        partners = plan.facts.is_stochastic
        not_additive = None if partners else functools.partial(why_not_additive, density)
        case = Case(dim, products, obstacle, not_additive, guide, partners)
        name, cost = self._chosen(case, here.values())
        estimator: Any = make_estimator(name, cost, plan)
        if name == "gauss_newton":
            estimator = estimator.prepared(plan, density)
        return _SetUp(plan, estimator, cost)

    # -- draws ------------------------------------------------------------------------

    @label("draws")
    def _points(self, here: Families, cost: EstimateCost) -> PointsBySite:
        """Return the draws of a step; those that have values, and Hessians, come first."""
        like = next(iter(here.values())).loc
        if cost.num_groups:
            dims = [family.dim for family in here.values()]
            joined, weights = orthogonal_points(sum(dims), cost.num_groups, like)
            return PointsBySite(dict(zip(here, joined.split(dims, -1), strict=True)), weights)
        noise: dict[str, list[Tensor]] = {site: [] for site in here}
        for count in (cost.num_hessians, cost.num_gradients - cost.num_hessians):
            for site, family in here.items() if count else ():
                noise[site].append(standard_normal(count, family.loc, antithetic=self.antithetic))
        weights = like.new_full((cost.num_gradients,), 1.0 / cost.num_gradients)
        return PointsBySite({site: concatenated(parts) for site, parts in noise.items()}, weights)


class _SetUp(NamedTuple):
    """Findings of the first call with a model and a guide."""

    plan: Plan
    estimator: Any  #: None, as the cost is, if every latent is a conjugate site.
    cost: Any


def _bound(
    values: Tensor, here: Families, points: PointsBySite, kept: Tensor, visited: dict[str, Tensor]
) -> Tensor:
    """Return the weighted mean of ``log p - log q`` of the first draws, NaN if none is left."""
    first, kept = points.some(slice(len(values))), kept[: len(values)]
    gains = first.weights * (values - log_q_of_minibatch(here, first.noise, visited))
    return torch.where(kept, gains, 0.0).sum() / torch.where(kept, first.weights, 0.0).sum()


class _WithGradients(torch.autograd.Function):
    """A loss with these gradients of minus it: ``apply(loss, *gradients, *leaves)``."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *both: Tensor) -> Tensor:
        ctx.save_for_backward(*both[: len(both) // 2])
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        directions = ctx.saved_tensors
        of_leaves = [-slope.to(one.device) * one for one in directions]
        return slope, *(None for _ in directions), *of_leaves
