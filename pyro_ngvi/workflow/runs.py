"""Runs of a model at draws of its latent sites: log likelihoods, replications, the prior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ngvi.workflow.arviz import Draws
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.sites import is_subsampled

Sites = dict[str, dict[str, Any]]


class Unobserved(UnconditionMessenger):
    """Draws observed sites, and leaves computed ones as they are."""

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["infer"].get("_deterministic"):
            super()._pyro_sample(msg)


def has_data(site: dict[str, Any]) -> bool:
    """Return whether an observed site is data: no factor, nothing computed."""
    is_computed = site["infer"].get("_deterministic") or site_is_subsample(site)
    return site["is_observed"] and not is_computed and site["value"].numel() > 0


def drawn_besides(sites: Sites) -> list[str]:
    """Return what a run draws although it is given the latents: enumerated sites, minibatches."""
    return [
        name
        for name, site in sites.items()
        if (
            is_subsampled(site)
            if site_is_subsample(site)
            else not (site["is_observed"] or site["is_given"])
        )
    ]


class ModelRuns:
    """Runs of a model, one for each draw."""

    has_data, drawn_besides = staticmethod(has_data), staticmethod(drawn_besides)

    def __init__(self, model: Callable, args: tuple, kwargs: dict) -> None:
        self._model, self._run = model, (args, kwargs)

    def first(self, latents: dict[str, Tensor], model: Callable | None = None) -> Sites:
        """Return the sample sites of a run with these latents, which do not count as observed."""
        args, kwargs = self._run
        with quiet(), poutine.block():
            conditioned = poutine.condition(model or self._model, latents)
            trace = poutine.trace(conditioned).get_trace(*args, **kwargs)
        sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
        return {
            name: {
                **site,
                "is_given": name in latents,
                "is_observed": site["is_observed"] and name not in latents,
            }
            for name, site in sites.items()
        }

    def log_likelihood(self, draws: dict[str, Tensor]) -> Draws:
        """Return log likelihoods of all draws by observed site, without the plates' scale."""
        return _numbers(map(self._log_likelihood, by_draw(draws)))

    def replicated(self, draws: dict[str, Tensor]) -> Draws:
        """Draw all sites at each draw, the observed ones anew."""
        return _numbers(map(self._drawn, by_draw(draws)))

    def prior(self, count: int) -> Draws:
        """Draw all sites, none of them observed."""
        return _numbers(self._drawn({}) for _ in range(count))

    def _log_likelihood(self, latents: dict[str, Tensor]) -> dict[str, Tensor]:
        sites = self.first(latents)
        with quiet():
            return {
                name: scale_and_mask(site["fn"].log_prob(site["value"]), mask=site["mask"])
                for name, site in sites.items()
                if has_data(site)
            }

    def _drawn(self, latents: dict[str, Tensor]) -> dict[str, Tensor]:
        sites = self.first(latents, Unobserved()(self._model))
        kept = {k: s["value"] for k, s in sites.items() if not site_is_subsample(s)}
        return {name: value for name, value in kept.items() if value.numel()}


def by_draw(draws: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the values of one draw after the other."""
    for index in range(len(next(iter(draws.values())))):
        yield {name: value[index] for name, value in draws.items()}


def stacked(runs: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sites of the same shape in all runs, with a leading axis of these."""
    found = list(runs)
    shared = set.intersection(*({(k, v.shape) for k, v in one.items()} for one in found))
    names = [name for name, value in found[0].items() if (name, value.shape) in shared]
    return {name: torch.stack([one[name] for one in found]) for name in names}


def sampled(trace: poutine.Trace) -> dict[str, Tensor]:
    """Return the values of a run's sample sites."""
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    return {name: site["value"] for name, site in sites.items() if not site_is_subsample(site)}


def _numbers(runs: Iterable[dict[str, Tensor]]) -> Draws:
    return {name: value.numpy(force=True) for name, value in stacked(runs).items()}
