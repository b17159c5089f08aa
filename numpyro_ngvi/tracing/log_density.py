"""The model as a function of the guides' latent vectors: ``theta -> log p(y, theta)``.

The function is what NumPyro's own ELBO computes, for a guide whose Gaussian draws are given
instead of sampled and whose ``log q`` is hidden. It is the model's log density, with the
log-Jacobians of the constraints, the partners of an ``AutoGuideList`` and the minibatch of the key.

Enumerated latents are summed out as NUTS does, by ``numpyro.contrib.funsor.log_density``, which
takes latents in plates and in ``scan``. ``TraceEnum_ELBO`` would need the guide's sites in the
model's plates; it is left for a guide that has enumerated sites of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from numpyro import handlers
from numpyro.infer.elbo import TraceEnum_ELBO
from numpyro.infer.util import compute_log_probs
from numpyro.util import _validate_model, check_model_guide_match

from ngvi.conjugate.site import ConjugateSite, num_columns, signs_of_runs
from ngvi.latents.partly_observed import is_rest
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.enumeration import enumerated_log_density
from numpyro_ngvi.tracing.given_latents import GivenLatents
from numpyro_ngvi.tracing.partly_observed import ProperWhereObserved, idle_in
from numpyro_ngvi.tracing.sites import abstract_trace, is_enumerated, scale_of

_SUFFIX = "_posterior"

#: Draws of the latent vectors by the name of the guide's sample site.
Latents = dict[str, jax.Array]


def latent_site(parameter: str) -> str:
    """Return the site that a ``NaturalGaussianGuide`` draws its latent vector at.

    :param parameter: the name of the guide's parameter, ``"{prefix}_posterior"``.
    """
    return f"_{parameter.removesuffix(_SUFFIX)}_latent"


def posteriors_in(params: dict[str, Any]) -> dict[str, Family]:
    """Return the Gaussians among the parameters, by the name of the site that draws from them.

    :raises ValueError: if there is none, and no conjugate site.
    """
    found = {
        latent_site(name): value for name, value in params.items() if isinstance(value, Family)
    }
    if not found and not conjugate_sites_in(params):
        names = ", ".join(repr(name) for name in params) or "no parameters"
        raise ValueError(
            f"NaturalELBO found no NaturalGaussianGuide behind the guide's parameters ({names}). "
            "Use that guide, or a stock ELBO with this one."
        )
    return found


def conjugate_sites_in(params: dict[str, Any]) -> dict[str, ConjugateSite]:
    """Return the conjugate sites among the parameters, by parameter."""
    return {name: value for name, value in params.items() if isinstance(value, ConjugateSite)}


class LogDensity:
    """``log p(y, theta)`` of a model, for one minibatch.

    :param model_key: the key that the model runs with; it chooses the minibatch.
    :ivar sites: the names of the model's sample sites.
    """

    def __init__(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict, model_key: jax.Array
    ) -> None:
        found = abstract_trace(model, args, kwargs).values()
        trace = [site for site in found if site["type"] == "sample"]
        self.sites = frozenset(site["name"] for site in trace)
        idle = idle_in(guide)
        if idle or any(is_rest(name, self.sites) for name in self.sites):
            model = ProperWhereObserved(model, idle)
        self.model, self.guide = model, guide
        self.args, self.kwargs, self.model_key = args, kwargs, model_key
        self.is_enumerated = any(map(is_enumerated, trace))
        dims = [frame.dim for site in trace for frame in site["cond_indep_stack"]]
        self.max_plate_nesting = -min(dims, default=0)
        self._scales = tuple(dict.fromkeys(map(scale_of, trace)))

    def __call__(self, latents: Latents, params: dict[str, Any], guide_key: jax.Array) -> jax.Array:
        """Return the log density in nats, a scalar.

        :param latents: unconstrained latent vectors by site, each of shape ``(d,)``.
        :param params: all parameters of model and guide.
        :param guide_key: the key that the rest of the guide draws with.
        """
        return self.with_mutable_state(latents, params, guide_key)[0]

    @jax.named_scope("log_density")
    def with_mutable_state(
        self, latents: Latents, params: dict[str, Any], guide_key: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return the log density, and the model's mutable state after the run.

        Averaged over conjugate sites, see :mod:`ngvi.conjugate.site`.
        """
        conjugate = conjugate_sites_in(params)
        if not conjugate:
            return self._run(latents, params, guide_key, {})
        runs = signs_of_runs(num_columns(conjugate.values()))
        points = {one.site: one.at(one.signs(runs)) for one in conjugate.values()}
        fixed = jax.lax.stop_gradient(conjugate)

        def run(points: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
            return self._run(latents, params, guide_key, {**fixed, **points})

        values, states = jax.vmap(run)(points)
        return values.mean(), jax.tree.map(lambda state: state[0], states)

    def visited(self, here: dict[str, Family], params: dict[str, Any], guide_key: jax.Array) -> Any:
        """Return how often the minibatch counts each coordinate, by sites that it visits in part.

        :param here: the families, by the name of the guide's sample site.
        """
        trace = handlers.trace(self.guide)
        means = {site: family.mean for site, family in here.items()}
        guide = handlers.block(self.conditioned_guide(means, guide_key, guide=trace))
        handlers.substitute(guide, data=params)(*self.args, **self.kwargs)
        return {
            name: site["fn"].family.weights
            for name, site in trace.trace.items()
            if site["type"] == "sample" and site["infer"].get("is_minibatch")
        }

    def _run(
        self, latents: Latents, params: dict[str, Any], guide_key: jax.Array, given: dict[str, Any]
    ) -> tuple[jax.Array, Any]:
        guide = self.conditioned_guide(latents, guide_key, given)
        if self.is_enumerated:  # which knows no mutable state
            return self._summed_out(params, guide), None
        return self._summed(params, guide)

    def _summed(self, params: dict[str, Any], guide: Callable) -> tuple[jax.Array, Any]:
        """Return the negative loss of ``Trace_ELBO``, with the sites in the model's order.

        NumPyro's is the order of a set, which is another one in each process: the bound would be
        rounded otherwise in a run that goes on from a checkpoint, and compiled again.
        """
        model_key, guide_key = random.split(self.model_key)
        log_q, guide_trace = compute_log_probs(
            handlers.seed(guide, guide_key), self.args, self.kwargs, params
        )
        mutable = _mutable(guide_trace)
        model = handlers.replay(handlers.seed(self.model, model_key), guide_trace)
        log_p, trace = compute_log_probs(model, self.args, self.kwargs, {**params, **mutable})
        check_model_guide_match(trace, guide_trace)
        _validate_model(trace, plate_warning="loose")
        mutable |= _mutable(trace)
        total = sum(log_p.values(), start=jnp.array(0.0)) - sum(log_q.values())
        return total, mutable or None

    def _summed_out(self, params: dict[str, Any], guide: Callable) -> jax.Array:
        log_q, trace = compute_log_probs(guide, self.args, self.kwargs, params)
        if any(is_enumerated(site) for site in trace.values() if site["type"] == "sample"):
            run = self.model_key, params, self.model, guide
            return -TraceEnum_ELBO().loss(*run, *self.args, **self.kwargs)
        draws = {name: site["value"] for name, site in trace.items() if name not in params}
        run_key, _ = random.split(self.model_key)  # as the stock ELBOs do
        model = handlers.substitute(handlers.seed(self.model, run_key), data={**params, **draws})
        run = self.args, self.kwargs
        found = enumerated_log_density(model, run, self._scales, self.max_plate_nesting)
        return found - sum(log_q.values())

    def conditioned_guide(
        self,
        latents: Latents,
        guide_key: jax.Array,
        given: dict[str, Any] | None = None,
        guide: Callable | None = None,
    ) -> Callable:
        """Return the guide with its Gaussian draws given and their ``log q`` hidden.

        :param given: conjugate sites by parameter, and values of these sites.
        :param guide: in place of the density's.
        """
        given = given or {}
        # As the stock ELBOs split their key: the first half is the model's.
        plates_key = random.split(self.model_key)[1]
        guide = GivenLatents(guide or self.guide, plates_key, latents, given)
        guide = handlers.substitute(handlers.seed(guide, guide_key), data={**latents, **given})
        # The families, which the draws do without, are no arrays, as scan wants of what it replays.
        families = [f"{site[1:].removesuffix('_latent')}{_SUFFIX}" for site in latents]
        return handlers.block(guide, hide=[*latents, *families, *conjugate_sites_in(given)])


def site_log_probs(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, Any], jax.Array]:
    """Log densities of the model's sites, elementwise and scaled.

    :return: log densities by site, the model's trace, and the log density of the guide's own
        sites, to be subtracted.
    """
    guide = density.conditioned_guide(latents, guide_key)
    of_guide, guide_trace = compute_log_probs(guide, density.args, density.kwargs, params)
    # The stock ELBOs split their key so: the minibatch is that of the bound's value.
    run_key, _ = random.split(density.model_key)
    model = handlers.replay(handlers.seed(density.model, run_key), guide_trace)
    of_model, model_trace = compute_log_probs(
        model, density.args, density.kwargs, params, sum_log_prob=False
    )
    return of_model, model_trace, sum(of_guide.values())


def _mutable(trace: dict[str, Any]) -> dict[str, Any]:
    return {name: site["value"] for name, site in trace.items() if site["type"] == "mutable"}
