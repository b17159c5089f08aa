"""Runs of a model at draws of its latent sites: log likelihoods, replications, the prior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import random
from numpyro import handlers
from numpyro.infer.util import compute_log_probs

from ngvi.workflow.arviz import Draws
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled

Sites = dict[str, dict[str, Any]]


def has_data(site: dict[str, Any]) -> bool:
    """Return whether a site is observed data, and no factor."""
    return site["type"] == "sample" and site["is_observed"] and np.size(site["value"]) > 0


def drawn_besides(sites: Sites) -> list[str]:
    """Return what a run draws although it is given the latents: enumerated sites, minibatches."""
    found = []
    for name, site in sites.items():
        if site["type"] == "plate":
            size, subsample_size = site["args"]
            is_drawn = subsample_size is not None and subsample_size < size
        else:
            is_drawn = not (site["is_observed"] or site["is_given"])
        found += [name] * is_drawn
    return found


class ModelRuns:
    """Runs of a model at many draws, each kind of them one program.

    :param keys: of what is drawn, and of the first run.
    """

    has_data, drawn_besides = staticmethod(has_data), staticmethod(drawn_besides)

    def __init__(
        self, model: Callable, params: dict[str, Any], args: tuple, kwargs: dict, keys: jax.Array
    ) -> None:
        self._model, self._params, self._run, self._keys = model, params, (args, kwargs), keys
        self._arguments = Arguments(args, kwargs)

    def first(self, latents: dict[str, Any]) -> Sites:
        """Return the sample sites and plates of a run with these latents."""
        known, (args, kwargs) = {**self._params, **latents}, self._run
        seeded = handlers.seed(handlers.substitute(self._model, data=known), self._keys[1])
        with handlers.block():
            trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        sites = {name: s for name, s in trace.items() if s["type"] in ("sample", "plate")}
        return {name: {**site, "is_given": name in known} for name, site in sites.items()}

    def log_likelihood(self, draws: dict[str, jax.Array]) -> Draws:
        """Return log likelihoods of all draws by observed site, without the plates' scale."""

        def of_one(latents: dict, key: jax.Array, args: tuple, kwargs: dict) -> dict:
            seeded, known = handlers.seed(self._model, key), {**self._params, **latents}
            log_probs, sites = compute_log_probs(seeded, args, kwargs, known, sum_log_prob=False)
            own = {name: p for name, p in log_probs.items() if has_data(sites[name])}
            return {name: unscaled(sites[name], p) for name, p in own.items()}

        return self._mapped(of_one, draws, len(next(iter(draws.values()))))

    def replicated(self, draws: dict[str, jax.Array]) -> Draws:
        """Draw all sites but the given ones at each draw, the observed ones anew."""
        return self._mapped(self._drawn, draws, len(next(iter(draws.values()))))

    def prior(self, count: int) -> Draws:
        """Draw all sites, none of them observed."""
        return self._mapped(self._drawn, {}, count)

    def _drawn(self, latents: dict, key: jax.Array, args: tuple, kwargs: dict) -> dict:
        known = {**self._params, **latents}
        model = handlers.substitute(handlers.uncondition(self._model), data=known)
        with handlers.block():
            trace = handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)
        sites = {k: s for k, s in trace.items() if s["type"] in ("sample", "deterministic")}
        return {k: s["value"] for k, s in sites.items() if k not in latents and np.size(s["value"])}

    def _mapped(self, of_one: Callable[..., dict], draws: dict, count: int) -> Draws:
        def of_all(draws: dict[str, jax.Array], arrays: list) -> dict[str, jax.Array]:
            args, kwargs = self._arguments.rebuilt(arrays)
            keys = random.split(self._keys[0], count)
            return jax.lax.map(lambda one: of_one(*one, args, kwargs), (draws, keys))

        found = self._arguments.call(compiled(of_all, runs_once=True), draws)
        return {name: np.asarray(value) for name, value in found.items()}


def unscaled(site: dict[str, Any], log_prob: jax.Array) -> jax.Array:
    """Return an observed site's log density without its scale, which may be zero."""
    return log_prob if site["scale"] is None else site["fn"].log_prob(site["value"])
