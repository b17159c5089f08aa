"""The model as a function of the guides' latent vectors: ``theta -> log p(y, theta)``.

The function is what NumPyro's own ELBO computes, for a guide whose Gaussian draws are given
instead of sampled and whose ``log q`` is hidden: the model's log density, with the
log-Jacobians of the constraints, the partners of an ``AutoGuideList``, the minibatch of the key
and, by ``TraceEnum_ELBO``, sums over enumerated latents.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
from jax import random
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.elbo import TraceEnum_ELBO
from numpyro.infer.initialization import init_to_uniform
from numpyro.primitives import Messenger

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.sites import is_enumerated

_SUFFIX = "_posterior"

#: Draws of the latent vectors by the name of the guide's sample site.
Latents = dict[str, jax.Array]


def latent_site(parameter: str) -> str:
    """The site that a ``NaturalGaussianGuide`` draws its latent vector at.

    :param parameter: the name of the guide's parameter, ``"{prefix}_posterior"``.
    """
    return f"_{parameter.removesuffix(_SUFFIX)}_latent"


def posteriors_in(params: dict[str, Any]) -> dict[str, Family]:
    """The families among the parameters, by the name of the site that draws from them.

    :raises ValueError: if there is none.
    """
    found = {
        latent_site(name): value for name, value in params.items() if isinstance(value, Family)
    }
    if not found:
        names = ", ".join(repr(name) for name in params) or "no parameters"
        raise ValueError(
            f"NaturalELBO found no NaturalGaussianGuide behind the guide's parameters ({names}). "
            "Use that guide, or a stock ELBO with this one."
        )
    return found


class RefuseVisits(Messenger):
    """A guide, refusing latent vectors of which a minibatch visits a part.

    :raises NotImplementedError: when run, naming the alternative.
    """

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "sample" and site["infer"].get("is_visited"):
            raise NotImplementedError(
                f"NaturalELBO does not support latents inside a subsampled plate ('{site['name']}' "
                "holds all elements of one): use a stock ELBO such as Trace_ELBO, with which the "
                "guide has first-order natural gradients."
            )


class SharePlates(Messenger):
    """A guide whose subsampled plates (``create_plates=``) are those of ``key`` in every run.

    Its own draws may differ from run to run.

    :param key: a JAX random key.
    """

    def __init__(self, guide: Callable, key: jax.Array) -> None:
        super().__init__(guide)
        self.key = key

    def process_message(self, site: dict[str, Any]) -> None:
        if site["type"] == "plate" and site["kwargs"]["rng_key"] is None:
            number = zlib.crc32(site["name"].encode())
            site["kwargs"]["rng_key"] = random.fold_in(self.key, number)


class LogDensity:
    """``log p(y, theta)`` of a model, for one minibatch.

    :param model: a NumPyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide`` in it.
    :param args: arguments of both.
    :param kwargs: keyword arguments of both.
    :param model_key: the key that the model runs with; it chooses the minibatch.
    """

    def __init__(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict, model_key: jax.Array
    ) -> None:
        self.model, self.guide = model, guide
        self.args, self.kwargs, self.model_key = args, kwargs, model_key
        self.is_enumerated = _has_enumerated_latents(model, args, kwargs)

    def __call__(self, latents: Latents, params: dict[str, Any], guide_key: jax.Array) -> jax.Array:
        """The log density in nats, a scalar.

        :param latents: unconstrained latent vectors by site, each of shape ``(d,)``.
        :param params: all parameters of model and guide.
        :param guide_key: the key that the rest of the guide draws with.
        """
        return self.with_mutable_state(latents, params, guide_key)[0]

    def with_mutable_state(
        self, latents: Latents, params: dict[str, Any], guide_key: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The log density, and the model's mutable state after the run."""
        guide = self.conditioned_guide(latents, guide_key)
        run = self.model_key, params, self.model, guide
        if self.is_enumerated:  # which knows no mutable state
            return -TraceEnum_ELBO().loss(*run, *self.args, **self.kwargs), None
        result = Trace_ELBO().loss_with_mutable_state(*run, *self.args, **self.kwargs)
        return -result["loss"], result.get("mutable_state")

    def conditioned_guide(self, latents: Latents, guide_key: jax.Array) -> Callable:
        """The guide with its Gaussian draws given and their ``log q`` hidden."""
        # As the stock ELBOs split their key: the first half is the model's.
        guide = SharePlates(RefuseVisits(self.guide), random.split(self.model_key)[1])
        guide = handlers.substitute(handlers.seed(guide, guide_key), data=latents)
        return handlers.block(guide, hide=list(latents))


def _has_enumerated_latents(model: Callable, args: tuple, kwargs: dict) -> bool:
    found = []

    def run() -> None:
        # Improper priors cannot be sampled, but their supports have points.
        started = handlers.substitute(
            handlers.seed(model, rng_seed=0), substitute_fn=init_to_uniform
        )
        with handlers.block():
            trace = handlers.trace(started).get_trace(*args, **kwargs)
        found.extend(site for site in trace.values() if is_enumerated(site))

    jax.eval_shape(run)
    return bool(found)
