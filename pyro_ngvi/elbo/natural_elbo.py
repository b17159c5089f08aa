"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from torch import Tensor

from ngvi.curvature import Cost, check_curvature, choose, cost_of_step
from pyro_ngvi.curvature import (
    Estimator,
    Evaluator,
    Families,
    Plan,
    Points,
    log_q,
    make_estimator,
    make_plan,
    num_products,
    orthogonal_points,
    standard_normal,
)
from pyro_ngvi.families.base import Family


class NaturalELBO(ELBO):
    """The bound on the log evidence, with second-order natural gradients.

    A loss for stock ``SVI`` with a ``NaturalGaussianGuide``. The value is the bound's; the
    gradient with respect to the guide's posterior is the natural gradient that Bonnet's and
    Price's theorems give from the model's own gradients and Hessians,

        dL/dmu = E[grad log p],        dL/dSigma = (E[hess log p] + Sigma^-1) / 2,

    averaged over draws. Any other parameter, of the model or of the partners in an
    ``AutoGuideList``, gets its ordinary gradient. All draws of a step share its minibatch.
    Use it with ``BLR`` (or with ``Snngm``, as Tan's second-order variant)::

        svi = SVI(model, NaturalGaussianGuide(model), BLR(), NaturalELBO())

    Discrete latents that the model marks for enumeration are summed out, as by
    ``TraceEnum_ELBO``. Structure is taken to be static: what the first call finds out about a
    model and a guide holds for later ones.

    :param num_particles: ``K``, how much a step averages over. With Hessians, ``K`` draws, each of
        which takes a gradient and a Hessian; with ``"spherical"``, one group of ``2 d + 1`` points
        for every two particles, which costs about as much as two Hessians; else ``K`` draws with
        a gradient.
    :param num_gradients: how many draws the gradient is averaged over, the ``K`` among them.
        With Hessians, nearly all of a step's noise is the gradient's, and a gradient costs no more
        than one of the Hessian's products: by default ``10 K``, or fewer, so that they add at most
        a quarter to the cost of the Hessians. With ``"spherical"`` it is rounded up to whole
        groups, and with ``"stein"`` and ``"mean"`` it has no meaning.
    :param curvature: where ``E[hess log p]`` comes from. ``"spherical"``: differences of gradients
        at orthogonal points, with far less noise than random draws, whose Hessian is exact for a
        cubic ``log p`` (:mod:`pyro_ngvi.curvature.spherical`). ``"hessian"``: automatic
        differentiation, exactly and only as much as the family needs. ``"gauss_newton"``:
        squared gradients of single examples, which needs the observations in a plate (Tan,
        S5.1). ``"stein"``: gradients alone (Lin, Khan and Schmidt, 2019). ``"mean"``: gradient and
        Hessian at the mean (delta method). ``"auto"``, as in ``fit``: ``"hessian"`` for structured
        families, if the model can be differentiated twice, else ``"spherical"`` up to 2000
        latents, else ``"stein"``; beside partners that draw values of their own, ``"hessian"``
        rather than ``"spherical"`` (:func:`ngvi.curvature.choose`).
    :param antithetic: whether random draws come in pairs ``z, -z``; orthogonal points always do.
    :param quasi_random: whether random draws come from a scrambled Sobol sequence.
    :param max_plate_nesting: as in Pyro's ELBOs; matters for enumeration only.
    :param vectorize_particles: whether draws may share one run of the model. The first call
        checks that it gives the values of separate runs, and does without if not.
    :raises ValueError: for an unknown curvature or a ``num_particles`` below 1; on the first call,
        if the guide holds no ``NaturalGaussianGuide``, if the model has no Hessian and
        ``curvature="hessian"`` asks for it, or no examples for ``"gauss_newton"``.
    """

    def __init__(
        self,
        num_particles: int = 10,
        curvature: str = "auto",
        *,
        num_gradients: int | None = None,
        antithetic: bool = True,
        quasi_random: bool = False,
        max_plate_nesting: float = float("inf"),
        vectorize_particles: bool = True,
    ) -> None:
        check_curvature(curvature)
        if not isinstance(num_particles, int) or num_particles < 1:
            raise ValueError(
                f"num_particles must be an integer, at least 1, got {num_particles!r}."
            )
        if num_gradients is not None and num_gradients < num_particles:
            raise ValueError(
                f"num_gradients must be at least num_particles={num_particles}, got "
                f"{num_gradients}."
            )
        # Ours is not Pyro's vectorisation, for which it would add a plate to the nesting.
        super().__init__(num_particles=num_particles, max_plate_nesting=max_plate_nesting)
        self.vectorize_particles = vectorize_particles
        self.curvature, self.num_gradients = curvature, num_gradients
        self.antithetic, self.quasi_random = antithetic, quasi_random
        #: Draws left out so far because their value, gradient or Hessian was not finite.
        self.num_dropped = 0
        self._set_up: _SetUp | None = None

    # -- what SVI calls ---------------------------------------------------------------

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Minus the bound in nats, from the draws of a step."""
        plan, _, cost = self._set_up_for(model, guide, args, kwargs)
        with torch.no_grad():
            density = plan.density(args, kwargs)
            here = {site: family.detach() for site, family in density.posteriors.items()}
            points = self._points(here, cost).some(slice(cost.num_hessians))
            at_once, values = plan.draws_per_pass(args, kwargs), []
            for start in range(0, len(points.weights), at_once):
                values.append(density(points.some(slice(start, start + at_once)).of(here)))
            values = torch.cat(values)
            return -float(_bound(values, here, points, values.isfinite()))

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Minus the bound in nats; adds gradients to the parameters' ``grad``.

        Those of a ``NaturalGaussianGuide`` are natural.
        """
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return float(loss.detach())

    def differentiable_loss(
        self, model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Minus the bound in nats, whose ``backward`` is that of :meth:`loss_and_grads`.

        Gradients are computed here, and cannot be differentiated again.

        :return: a scalar.
        """
        plan, estimator, cost = self._set_up_for(model, guide, args, kwargs)
        density = plan.density(args, kwargs)
        here = {site: family.detach() for site, family in density.posteriors.items()}
        points = self._points(here, cost)
        estimate = estimator(Evaluator(density, plan), here, points)
        self._count(estimate.num_dropped)
        first = points.some(slice(len(estimate.values)))
        loss = -_bound(estimate.values, here, first, estimate.kept)
        for leaf, gradient in estimate.ordinary:
            loss = loss - _as_gradient(gradient, leaf)
        for site, family in density.posteriors.items():
            for name, value in family.coordinates().items():
                loss = loss - _as_gradient(getattr(estimate.directions[site], name), value)
        return loss

    def _get_trace(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> tuple[Any, Any]:
        return get_importance_trace("flat", self.max_plate_nesting, model, guide, args, kwargs)

    # -- once -------------------------------------------------------------------------

    def _set_up_for(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> _SetUp:
        if self._set_up is None or not self._set_up.plan.is_for(model, guide):
            with torch.enable_grad():
                self._set_up = self._new_set_up(model, guide, args, kwargs)
        return self._set_up

    def _new_set_up(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> _SetUp:
        plan, density = make_plan(
            model, guide, args, kwargs, self.max_plate_nesting, self.vectorize_particles
        )
        here = {site: family.detach() for site, family in density.posteriors.items()}
        dim = sum(family.dim for family in here.values())
        products = max(map(num_products, here.values()))
        obstacle = functools.partial(plan.hessian_obstacle, density)
        partners = plan.facts.is_stochastic
        choice = choose(self.curvature, dim, products, obstacle, partners=partners)
        if choice.obstacle is not None:
            warnings.warn(
                f"{choice.obstacle}: curvature={choice.curvature!r} is used instead.", stacklevel=6
            )
        name = choice.curvature
        if name == "gauss_newton":
            plan.check_examples(density)
        cost = cost_of_step(name, dim, products, self.num_particles, self.num_gradients)
        return _SetUp(plan, make_estimator(name, cost, plan), cost)

    # -- draws ------------------------------------------------------------------------

    def _points(self, here: Families, cost: Cost) -> Points:
        """The draws of a step; those that have values, and Hessians, come first."""
        like = next(iter(here.values())).loc
        if cost.num_groups:
            dims = [family.dim for family in here.values()]
            noise, weights = orthogonal_points(sum(dims), cost.num_groups, like)
            return Points(dict(zip(here, noise.split(dims, -1), strict=True)), weights)
        noise: dict[str, list[Tensor]] = {site: [] for site in here}
        for count in (cost.num_hessians, cost.num_gradients - cost.num_hessians):
            for site, family in here.items() if count else ():
                noise[site].append(
                    standard_normal(
                        count,
                        family.loc,
                        antithetic=self.antithetic,
                        quasi_random=self.quasi_random,
                    )
                )
        weights = like.new_full((cost.num_gradients,), 1.0 / cost.num_gradients)
        return Points({site: torch.cat(parts) for site, parts in noise.items()}, weights)

    def _count(self, num_dropped: int) -> None:
        if num_dropped and not self.num_dropped:
            warnings.warn(
                f"NaturalELBO left out {num_dropped} draws of a step whose "
                "value, gradient or Hessian is not finite. It counts them in num_dropped.",
                stacklevel=5,
            )
        self.num_dropped += num_dropped


class _SetUp(NamedTuple):
    """What the first call with a model and a guide found out."""

    plan: Plan
    estimator: Estimator
    cost: Cost


def _bound(values: Tensor, here: Families, points: Points, kept: Tensor) -> Tensor:
    """The weighted mean of ``log p - log q``, NaN if no draw is left."""
    gains = (points.weights * (values - log_q(here, points.noise)))[kept]
    return gains.sum() / points.weights[kept].sum()


def _as_gradient(direction: Family | Tensor, value: Tensor) -> Tensor:
    """Zero, with ``direction`` as its gradient."""
    total = (direction * value).sum()
    return total - total.detach()
