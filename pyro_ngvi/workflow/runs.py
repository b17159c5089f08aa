"""Runs of a model at draws of its latent sites: log likelihoods, replications, the prior."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ngvi.latents.layout import Plate
from ngvi.workflow.arviz import Draws, Observed
from pyro_ngvi.host import to_numpy
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.sites import is_subsampled

Sites = dict[str, dict[str, Any]]


class Unobserved(UnconditionMessenger):
    """Draws observed sites, and leaves computed ones as they are."""

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["infer"].get("_deterministic"):
            super()._pyro_sample(msg)


def observed(sites: Sites) -> dict[str, Observed]:
    """The data in a run; a factor is an observed site, and has none."""
    found = {}
    for name, site in sites.items():
        if site["is_observed"] and has_data(site):
            num_axes = len(site["fn"].batch_shape)
            frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
            plates = (Plate(f.name, int(f.size), num_axes + f.dim) for f in frames)
            found[name] = Observed(to_numpy(site["value"]), tuple(plates))
    return found


def run(model: Callable, latents: dict[str, Tensor], args: tuple, kwargs: dict) -> Sites:
    """The sample sites of a run with these latents, which do not count as observed."""
    with quiet(), poutine.block():
        conditioned = poutine.condition(model, latents)
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


def drawn_besides(sites: Sites) -> list[str]:
    """What a run draws at random though it is given the latents: enumerated sites, minibatches."""
    return [
        name
        for name, site in sites.items()
        if (
            is_subsampled(site)
            if site_is_subsample(site)
            else not (site["is_observed"] or site["is_given"])
        )
    ]


def log_likelihood(
    model: Callable, draws: dict[str, Tensor], args: tuple, kwargs: dict
) -> Iterator[dict[str, Tensor]]:
    """Of each draw, by observed site, without the plates' scale."""
    for latents in by_draw(draws):
        sites = run(model, latents, args, kwargs)
        with quiet():
            yield {
                name: scale_and_mask(site["fn"].log_prob(site["value"]), mask=site["mask"])
                for name, site in sites.items()
                if site["is_observed"] and has_data(site)
            }


def replicated(
    model: Callable, draws: dict[str, Tensor], args: tuple, kwargs: dict
) -> Iterator[dict[str, Tensor]]:
    """At each draw all sites, the observed ones drawn anew."""
    for latents in by_draw(draws):
        yield _values(run(Unobserved()(model), latents, args, kwargs))


def prior(model: Callable, count: int, args: tuple, kwargs: dict) -> Iterator[dict[str, Tensor]]:
    """Draws of all sites, none of them observed."""
    for _ in range(count):
        yield _values(run(Unobserved()(model), {}, args, kwargs))


def by_draw(draws: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The values of one draw after the other."""
    for index in range(len(next(iter(draws.values())))):
        yield {name: value[index] for name, value in draws.items()}


def stacked(runs: Iterator[dict[str, Tensor]]) -> Draws:
    """The sites of the same shape in all runs, with a leading axis of these."""
    found = list(runs)
    shared = set.intersection(*({(k, v.shape) for k, v in one.items()} for one in found))
    names = [name for name, value in found[0].items() if (name, value.shape) in shared]
    return {name: to_numpy(torch.stack([one[name] for one in found])) for name in names}


def has_data(site: dict[str, Any]) -> bool:
    """Whether a site may be data: no factor, nothing computed."""
    is_computed = site["infer"].get("_deterministic") or site_is_subsample(site)
    return not is_computed and site["value"].numel() > 0


def _values(sites: Sites) -> dict[str, Tensor]:
    kept = {k: s["value"] for k, s in sites.items() if not site_is_subsample(s)}
    return {name: value for name, value in kept.items() if value.numel()}
