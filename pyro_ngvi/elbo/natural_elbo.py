"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from torch import Tensor

from pyro_ngvi.curvature import num_products, standard_normal, stein_direction
from pyro_ngvi.curvature.draws import default_num_gradients
from pyro_ngvi.curvature.moments import map_structure
from pyro_ngvi.elbo.particles import Families, Kinds, Noise, Particles, evaluate, log_prob
from pyro_ngvi.elbo.plan import Plan, make_plan
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing import LogDensity

CURVATURES = ("auto", "hessian", "gauss_newton", "stein", "mean")


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

    :param num_particles: ``K``, how many draws a step averages over; each takes a gradient and
        a Hessian.
    :param num_gradients: how many draws the gradient is averaged over, the ``K`` among them.
        Nearly all of a step's noise is the gradient's, and a gradient costs no more than one of
        the Hessian's products. By default ``10 K``, or fewer, so that they add at most a
        quarter to the cost of the Hessians; ``K`` for ``"stein"``.
    :param curvature: where ``E[hess log p]`` comes from. ``"hessian"``: automatic
        differentiation, exactly and only as much as the family needs. ``"gauss_newton"``:
        squared gradients of single examples, which needs the observations in a plate (Tan,
        S5.1). ``"stein"``: gradients alone (Lin, Khan and Schmidt, 2019). ``"mean"``: gradient and
        Hessian at the mean (delta method). ``"auto"``: ``"hessian"`` up to 2000
        Hessian-vector products if the model can be differentiated twice, else ``"stein"``.
    :param antithetic: whether draws come in pairs ``z, -z``.
    :param quasi_random: whether draws come from a scrambled Sobol sequence.
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
        if curvature not in CURVATURES:
            known = ", ".join(repr(name) for name in CURVATURES)
            raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {known}.")
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
        self._plan: Plan | None = None

    # -- what SVI calls ---------------------------------------------------------------

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Minus the bound in nats, from ``num_particles`` draws."""
        plan = self._plan_for(model, guide, args, kwargs)
        with torch.no_grad():
            density = LogDensity(model, guide, args, kwargs, plan.facts)
            here = {site: family.detach() for site, family in density.posteriors.items()}
            noise = self._noise(here, self.num_particles)
            values = torch.cat(
                [
                    density(_sample(here, some)) - log_prob(here, some)
                    for some in _split(noise, plan.draws_per_pass(args, kwargs))
                ]
            )
        return -float(values[values.isfinite()].mean())

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
        plan = self._plan_for(model, guide, args, kwargs)
        density = LogDensity(model, guide, args, kwargs, plan.facts)
        here = {site: family.detach() for site, family in density.posteriors.items()}
        totals = self._totals(plan, density, here, args, kwargs)
        directions = self._directions(plan, density, here, totals)
        loss = -totals.bound()
        for leaf, gradient in totals.ordinary.values():
            loss = loss - _as_gradient(gradient / totals.count, leaf)
        for site, family in density.posteriors.items():
            for name, value in family.coordinates().items():
                loss = loss - _as_gradient(getattr(directions[site], name), value)
        return loss

    def _get_trace(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> tuple[Any, Any]:
        return get_importance_trace("flat", self.max_plate_nesting, model, guide, args, kwargs)

    # -- draws ------------------------------------------------------------------------

    def _plan_for(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> Plan:
        if self._plan is None or not self._plan.is_for(model, guide):
            with torch.enable_grad():
                self._plan = make_plan(
                    model,
                    guide,
                    args,
                    kwargs,
                    self.curvature,
                    self.max_plate_nesting,
                    self.vectorize_particles and self.num_particles > 1,
                )
        return self._plan

    def _num_gradients(self, plan: Plan, here: Families) -> int:
        """How many draws give a gradient."""
        if not set(plan.kinds.values()) & {"hessian", "gauss_newton"}:
            return self.num_particles
        if self.num_gradients is not None:
            return self.num_gradients
        return default_num_gradients(
            self.num_particles, min(num_products(family) for family in here.values())
        )

    def _noise(self, here: Families, num_draws: int) -> Noise:
        return {
            site: standard_normal(
                num_draws,
                family.loc,
                antithetic=self.antithetic,
                quasi_random=self.quasi_random,
            )
            for site, family in here.items()
        }

    def _totals(
        self, plan: Plan, density: LogDensity, here: Families, args: tuple, kwargs: dict
    ) -> _Totals:
        """Sums over the draws in which everything is finite."""
        totals = _Totals()
        bytes_per_draw = plan.bytes(args, kwargs)

        def at(noise: Noise, kinds: Kinds) -> Particles:
            latents = _sample(here, noise)
            return evaluate(density, latents, here, kinds, plan.products, bytes_per_draw)

        draws_per_pass = plan.draws_per_pass(args, kwargs)
        for noise in _split(self._noise(here, self.num_particles), draws_per_pass):
            particles = at(noise, plan.kinds)
            kept = particles.finite()
            totals.add(particles, kept, noise, log_prob(here, noise))
            while particles.ordinary and not kept.all() and kept.any():
                # The gradient of a sum with a draw in it that is not finite is not either.
                noise = {site: value[kept] for site, value in noise.items()}
                particles = at(noise, {})
                kept = particles.finite()
            if kept.any():
                totals.add_ordinary(particles.ordinary)
        num_dropped = self.num_particles - totals.count
        num_added = self._num_gradients(plan, here) - self.num_particles
        if num_added:
            for noise in _split(self._noise(here, num_added), draws_per_pass):
                particles = at(noise, {})
                kept = particles.finite()
                totals.add_gradients(particles, kept, plan.kinds)
                num_dropped += int((~kept).sum())
        self._count(num_dropped)
        return totals

    def _directions(
        self, plan: Plan, density: LogDensity, here: Families, totals: _Totals
    ) -> Families:
        """The natural gradients of the bound, by site."""
        if "mean" in plan.kinds.values():
            totals = self._at_the_mean(plan, density, here)
        directions = {}
        for site, family in here.items():
            if not totals.count:
                directions[site] = family.map(lambda value: torch.full_like(value, torch.nan))
            elif site in totals.hessians:
                gradient = torch.cat(totals.gradients[site]).mean(0)
                hessian = map_structure(lambda h: h / totals.count, totals.hessians[site])
                directions[site] = family.bonnet_price(gradient, hessian)
            else:
                directions[site] = stein_direction(
                    torch.cat(totals.gradients[site]), torch.cat(totals.noise[site]), family
                )
        return directions

    def _at_the_mean(self, plan: Plan, density: LogDensity, here: Families) -> _Totals:
        # Partners draw their own values, over which the mean's gradient is averaged.
        num = self.num_particles if plan.facts.is_stochastic else 1
        totals = _Totals()
        noise = {site: family.loc.new_zeros(num, family.dim) for site, family in here.items()}
        latents = {site: family.mean.expand(num, -1) for site, family in here.items()}
        kinds = dict.fromkeys(here, "hessian")
        particles = evaluate(density, latents, here, kinds, plan.products, plan.bytes_per_draw)
        totals.add(particles, particles.finite(), noise, particles.values)
        return totals

    def _count(self, num_dropped: int) -> None:
        if num_dropped and not self.num_dropped:
            warnings.warn(
                f"NaturalELBO left out {num_dropped} draws of a step whose "
                "value, gradient or Hessian is not finite. It counts them in num_dropped.",
                stacklevel=5,
            )
        self.num_dropped += num_dropped


class _Totals:
    """Sums over draws."""

    def __init__(self) -> None:
        self.count = 0
        self.values: list[Tensor] = []
        self.gradients: dict[str, list[Tensor]] = {}
        self.noise: dict[str, list[Tensor]] = {}
        self.hessians: dict[str, Any] = {}
        self.ordinary: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, particles: Particles, kept: Tensor, noise: Noise, log_q: Tensor) -> None:
        """Everything but the ordinary gradients, of the draws that are kept."""
        self.count += int(kept.sum())
        self.values.append((particles.values - log_q)[kept])
        for site, gradient in particles.gradients.items():
            self.gradients.setdefault(site, []).append(gradient[kept])
            self.noise.setdefault(site, []).append(noise[site][kept])
        for site, curvature in particles.curvatures.items():
            total = curvature.total(kept)
            if site in self.hessians:
                total = map_structure(torch.add, self.hessians[site], total)
            self.hessians[site] = total

    def add_gradients(self, particles: Particles, kept: Tensor, kinds: Kinds) -> None:
        """More gradients, for the sites that have Hessians."""
        for site in kinds:
            if site in self.hessians:
                self.gradients[site].append(particles.gradients[site][kept])

    def add_ordinary(self, gradients: list[tuple[Tensor, Tensor]]) -> None:
        for leaf, gradient in gradients:
            if id(leaf) in self.ordinary:
                gradient = self.ordinary[id(leaf)][1] + gradient
            self.ordinary[id(leaf)] = (leaf, gradient)

    def bound(self) -> Tensor:
        """The mean of ``log p - log q``, NaN if no draw is left."""
        return torch.cat(self.values).mean()


def _sample(families: Families, noise: Noise) -> dict[str, Tensor]:
    return {site: family.sample(noise[site]) for site, family in families.items()}


def _split(noise: Noise, size: int) -> list[Noise]:
    parts = {site: value.split(size) for site, value in noise.items()}
    return [dict(zip(parts, some, strict=True)) for some in zip(*parts.values(), strict=True)]


def _as_gradient(direction: Family | Tensor, value: Tensor) -> Tensor:
    """Zero, with ``direction`` as its gradient."""
    total = (direction * value).sum()
    return total - total.detach()
