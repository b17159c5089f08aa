"""The model as a function of the guides' latent vectors: ``theta -> log p(y, theta)``.

The function is what Pyro's own ELBOs compute, for a guide whose Gaussian draws are given instead of
sampled and whose ``log q`` is hidden. It is the model's log density, with the log-Jacobians of the
constraints, the partners of an ``AutoGuideList``, one minibatch for all runs and sums over
enumerated latents. Parameters are live.

Several draws share one run under ``torch.vmap``, which asks nothing of the model's shapes, or are
looped over. :func:`~pyro_ngvi.tracing.particles.choose_particles` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.enum import get_importance_trace
from pyro.infer.traceenum_elbo import _compute_dice_elbo
from pyro.poutine.enum_messenger import EnumMessenger
from torch import Tensor
from torch.utils._pytree import tree_map

from ngvi.conjugate.site import num_columns, signs_of_runs
from pyro_ngvi.families.base import Family
from pyro_ngvi.host import label
from pyro_ngvi.tracing.arguments import signature
from pyro_ngvi.tracing.batching import BatchedDerivatives, writing
from pyro_ngvi.tracing.enumeration import enumerated_log_density
from pyro_ngvi.tracing.given_latents import (
    GivenLatents,
    NoNewLatents,
    Posteriors,
    check_no_latent_is_gone,
)
from pyro_ngvi.tracing.inspection import ModelFacts
from pyro_ngvi.tracing.messengers import NanCholesky, quiet, repeatable_noise
from pyro_ngvi.tracing.minibatch import MinibatchMessenger, UnknownMinibatch
from pyro_ngvi.tracing.partly_observed import ProperWhereObserved
from pyro_ngvi.tracing.recording import OfRows, Replays

#: Draws of the latent vectors by the name of the guide's sample site.
Latents = dict[str, Tensor]


class LogDensity:
    """``log p(y, theta)`` of a model, for one minibatch.

    Making one runs the guide up to its families, and the model if it is subsampled in a way that
    is not known yet: their parameters are seen by the handlers around, and the minibatch is fixed.

    :param facts: from :func:`~pyro_ngvi.tracing.inspect`.
    :ivar posteriors: the families, with live coordinates, by the name of the guide's site.
    :ivar conjugate_sites: conjugate sites with live natural parameters, by name.
    :ivar visited: how often the minibatch counts each coordinate, by those sites of which it
        visits a part.
    :raises ValueError: if there is no ``NaturalGaussianGuide``.
    """

    def __init__(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict, facts: ModelFacts
    ) -> None:
        self.model, self.guide = ProperWhereObserved(facts.idle)(model), guide
        self.args, self.kwargs, self.facts = args, kwargs, facts
        self.replays = Replays()
        self.minibatch = MinibatchMessenger()
        self.posteriors = self._record()

    def _record(self) -> dict[str, Family]:
        facts, arguments = self.facts, signature((self.args, self.kwargs))
        known = None
        if facts.drawn_from is not None and facts.drawn_from[0] == arguments:
            known = facts.drawn_from[1]
        with quiet(), self.minibatch.recording(), Posteriors() as posteriors:
            trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
            if known is not None:
                self.minibatch.draw_again(known)
            elif facts.is_subsampled:
                with torch.no_grad():
                    poutine.replay(self.model, trace=trace)(*self.args, **self.kwargs)
                found = self.minibatch.drawn_from
                facts.drawn_from = None if found is None else (arguments, found)
        self.conjugate_sites = posteriors.conjugate_sites
        if not posteriors.found and not posteriors.conjugate_sites:
            names = ", ".join(repr(name) for name in trace.stochastic_nodes) or "nothing"
            raise ValueError(
                f"NaturalELBO found no NaturalGaussianGuide in the guide, which samples {names}. "
                "Use that guide, or a stock ELBO with this one."
            )
        self.visited = posteriors.visited
        return posteriors.found

    # -- values -----------------------------------------------------------------------

    @label("log_density")
    def __call__(
        self, latents: Latents, *, same_noise: bool = False, is_first_order: bool = False
    ) -> Tensor:
        """Return the log density in nats at each of ``K`` draws.

        :param latents: unconstrained latent vectors by site, each of shape ``(K, d)``.
        :param same_noise: whether partner guides draw the same values for all ``K``.
        :param is_first_order: whether it is differentiated once at most: for one draw there is
            then nothing to gain by other operations, whose rewriting costs time.
        :return: shape ``(K,)``.
        """
        loops = len(_first(latents)) == 1 or self.facts.is_stochastic
        return self.over_draws(
            self.particle, latents, same_noise=same_noise, one_by_one=is_first_order and loops
        )

    def values(self, latents: Latents, leaves: Sequence[Tensor] = ()) -> Tensor:
        """Return the log density at each of ``K`` draws, without derivatives."""

        def values(*rows: Tensor) -> tuple[Tensor]:
            return (self(dict(zip(latents, rows, strict=True))),)

        return self.replayed(values, *latents.values(), leaves=leaves)[0]

    def replayed(
        self, function: OfRows, *rows: Tensor, leaves: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return what a function of draws gives, which runs the density; without derivatives.

        :param function: always the same one of this name.
        :param leaves: parameters of the model's own.
        """
        return self.replays(function.__name__, function, *rows, leaves=leaves)

    def over_draws(
        self,
        function: Callable[[Latents], Any],
        latents: Latents,
        *,
        same_noise: bool = False,
        one_by_one: bool = False,
    ) -> Any:
        """Apply a function to each draw, and stack the results along a leading axis.

        :param function: from latent vectors of shape ``(d,)`` to a tensor, or a named tuple or
            dictionary of tensors.
        :param one_by_one: whether each has a run of its own, with the operations as they are.
        """
        is_one = one_by_one or len(_first(latents)) == 1
        if self.facts.particles == "vmap" and not is_one:
            return self._retried(lambda: torch.vmap(function)(latents))
        if self.facts.particles == "writing vmap" and not is_one:
            return self._retried(lambda: torch.vmap(writing(function, _first))(latents))
        return self._retried(lambda: _loop(function, latents, same_noise), rewrites=not one_by_one)

    def without_draws(self) -> Tensor:
        """Return the log density, a scalar, if every latent is a conjugate site."""
        return self._retried(lambda: self.particle({}))

    def of(self, run: Callable[[], Any]) -> Any:
        """Return what runs of the model give, with its minibatch and its operations as they are."""
        return self._retried(run, rewrites=False)

    def of_one(self, latents: Latents) -> Tensor:
        """Return the minibatch's log density at one draw, a scalar, by operations as they are.

        :param latents: unconstrained latent vectors by site, each of shape ``(d,)``.
        """
        return self.of(lambda: self.particle(latents))

    def particle(self, latents: Latents) -> Tensor:
        """Return the log density at one draw, a scalar, averaged over conjugate sites.

        :param latents: unconstrained latent vectors by site, each of shape ``(d,)``.
        """
        if not self.conjugate_sites:
            return self._particle(latents)
        runs = signs_of_runs(num_columns(self.conjugate_sites.values()))
        points = {site: one.at(one.signs(runs)) for site, one in self.conjugate_sites.items()}

        def run(given: Latents) -> Tensor:
            return self._particle({**latents, **given})

        mapped = torch.vmap(run) if self.facts.particles == "vmap" else partial(_loop, run)
        return mapped(points).mean()

    def _particle(self, latents: Latents) -> Tensor:
        facts = self.facts
        if facts.guide_is_enumerated:
            return self._weighted(latents)
        model_trace, guide_trace = self.traces(latents)
        if not facts.is_reparameterized:
            return self._scored(model_trace, guide_trace)
        if facts.is_enumerated:
            return enumerated_log_density(model_trace, guide_trace)
        return model_trace.log_prob_sum() - guide_trace.log_prob_sum()

    def traces(self, latents: Latents) -> tuple[poutine.Trace, poutine.Trace]:
        """Traces of model and guide at one draw; packed if there is something to sum out."""
        model, guide = self.model, self._given(latents)
        max_plate_nesting = self.facts.max_plate_nesting
        is_enumerated = self.facts.is_enumerated or self.facts.guide_is_enumerated
        if is_enumerated:
            # The model's enumeration dimensions come after the guide's, as in TraceEnum_ELBO.
            guide = EnumMessenger(first_available_dim=-1 - max_plate_nesting)(guide)
            model = EnumMessenger()(model)
        model_trace, guide_trace = get_importance_trace(
            "flat", max_plate_nesting, model, guide, self.args, self.kwargs
        )
        check_no_latent_is_gone(model_trace, guide_trace)
        if is_enumerated:
            guide_trace.pack_tensors()
            model_trace.pack_tensors(guide_trace.plate_to_symbol)
        return model_trace, guide_trace

    # -- runs -------------------------------------------------------------------------

    def _retried(
        self, evaluate: Callable[[], Any], is_recorded: bool = False, rewrites: bool = True
    ) -> Any:
        facts = self.facts
        latents = nullcontext() if facts.is_stochastic else NoNewLatents()
        operations = BatchedDerivatives() if facts.rewrites and rewrites else nullcontext()
        factors = NanCholesky() if facts.is_indefinite else nullcontext()
        try:
            with quiet(), operations, factors, self.minibatch, latents:
                return evaluate()
        except UnknownMinibatch:
            if is_recorded:
                raise
            facts.is_subsampled = is_recorded = True
            facts.drawn_from = None
            self._record()
        except torch.linalg.LinAlgError:
            if facts.is_indefinite:
                raise
            facts.is_indefinite = True  # from now on at the price of one more torch mode
        return self._retried(evaluate, is_recorded, rewrites)

    def validate(self, latents: Latents) -> None:
        """Run once with Pyro's validation as the user has set it.

        :param latents: unconstrained latent vectors by site, each of shape ``(d,)``.
        """
        with torch.no_grad(), poutine.block(), self.minibatch:
            self.traces(latents)

    def _given(self, latents: Latents) -> Callable:
        def guide(*args: Any, **kwargs: Any) -> Any:
            with GivenLatents(latents):
                return self.guide(*args, **kwargs)

        return guide

    def _weighted(self, latents: Latents) -> Tensor:
        """Return the log density beside a guide with enumerated sites, from weighted traces."""
        elbo = TraceEnum_ELBO(
            max_plate_nesting=self.facts.max_plate_nesting, strict_enumeration_warning=False
        )
        traces = elbo._get_traces(self.model, self._given(latents), self.args, self.kwargs)
        return sum(_compute_dice_elbo(*pair) for pair in traces)

    def _scored(self, model_trace: poutine.Trace, guide_trace: poutine.Trace) -> Tensor:
        """Return the log density beside a partner's draws, with Pyro's score-function gradient."""
        if self.facts.is_enumerated:
            return _compute_dice_elbo(model_trace, guide_trace)
        loss, surrogate = Trace_ELBO()._differentiable_loss_particle(model_trace, guide_trace)
        return surrogate.detach() - loss - surrogate


def _first(latents: Latents) -> Tensor:
    return next(iter(latents.values()))


def _loop(function: Callable[[Latents], Any], latents: Latents, same_noise: bool = False) -> Any:
    num_draws = len(_first(latents))
    # The derivative of all rows is one stack; that of each by itself has zeros for the others.
    draws = zip(*(value.unbind() for value in latents.values()), strict=True)
    results = []
    for k, values in enumerate(draws):
        draw = dict(zip(latents, values, strict=True))
        with repeatable_noise() if same_noise and k < num_draws - 1 else nullcontext():
            results.append(function(draw))
    return tree_map(lambda *parts: torch.stack(parts), *results)
