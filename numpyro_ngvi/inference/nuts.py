"""NumPyro's NUTS in the coordinates of a fitted Gaussian; see :mod:`ngvi.inference.nuts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from numpyro.infer import MCMC, NUTS

from ngvi.inference.nuts import Chains, NutsPlan, NutsRequest, WhitenedDensity
from numpyro_ngvi.families import Family
from numpyro_ngvi.tracing import LogDensity, latent_site

#: Statistics of NumPyro that a verdict wants.
FIELDS = ("diverging", "energy", "num_steps")


class CountingNUTS(NUTS):
    """NumPyro's NUTS, of which ``num_steps`` are those of all transitions of a chain."""

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        new = super().sample(state, model_args, model_kwargs)
        return new._replace(num_steps=state.num_steps + new.num_steps)


def whitened_density(
    model: Callable,
    guide: Any,
    family: Family,
    params: dict[str, Any],
    args: tuple,
    kwargs: dict[str, Any],
) -> WhitenedDensity:
    """The density of a fit.

    :param family: the guide's, with these parameters.
    """
    density = LogDensity(model, guide, args, kwargs, random.key(0))
    site, log_det = latent_site(guide._parameter_name), family.log_det_scale()

    def theta(z: jax.Array) -> jax.Array:
        return family.sample(z[None])[0]

    def log_density(z: jax.Array) -> jax.Array:
        if jnp.ndim(z) > 1:
            return jax.vmap(log_density)(z)
        return density({site: theta(z)}, params, random.key(0)) + log_det

    def constrain(z: jax.Array) -> dict[str, jax.Array]:
        if jnp.ndim(z) > 1:
            return guide._unpack_and_constrain(family.sample(z), params)
        return guide._unpack_and_constrain(theta(z), params)

    return WhitenedDensity(family.dim, log_density, constrain)


def chain_method_of(asked: str, num_chains: int) -> str:
    """On devices of their own, if there are so many, or at once on one."""
    if asked != "auto":
        return asked
    return "parallel" if 1 < num_chains <= jax.local_device_count() else "vectorized"


def run(
    density: WhitenedDensity,
    starts: jax.Array,
    plan: NutsPlan,
    num_warmup: int,
    request: NutsRequest,
    chain_method: str,
    rng_key: jax.Array,
) -> Chains:
    """Chains of NumPyro's NUTS.

    :param starts: shape ``(chains, d)``.
    :param num_warmup: transitions before the draws.
    """
    kernel = CountingNUTS(
        # Compiled once, though it is traced in many places.
        potential_fn=jax.jit(lambda z: -density.log_density(z)),
        adapt_mass_matrix=plan.adapts_metric,
        target_accept_prob=plan.accept_prob(request.target_accept_prob),
    )
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=request.num_samples,
        num_chains=request.num_chains,
        chain_method=chain_method_of(chain_method, request.num_chains),
        progress_bar=request.progress_bar,
        postprocess_fn=density.constrain,
    )
    init_params = starts if request.num_chains > 1 else starts[0]
    mcmc.run(rng_key, init_params=init_params, extra_fields=FIELDS)
    found = jax.device_get(mcmc.get_extra_fields(group_by_chain=True))
    draws = jax.device_get(mcmc.get_samples(group_by_chain=True))
    num_gradients = int(found["num_steps"][:, -1].sum())
    return Chains(mcmc, draws, found["diverging"], found["energy"], num_gradients)
