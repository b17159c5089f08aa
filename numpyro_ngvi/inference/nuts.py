"""NumPyro's NUTS in the coordinates of a fitted Gaussian; see :mod:`ngvi.inference.draws.nuts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer import MCMC, NUTS

from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.nuts import Chains, NutsPlan, NutsRequest, WhitenedDensity
from numpyro_ngvi.families import Family
from numpyro_ngvi.tracing import LogDensity, latent_site

#: Name of the coordinates among NumPyro's samples.
SITE = "_z"
#: Statistics of NumPyro that a verdict wants.
FIELDS = ("diverging", "energy", "num_steps")


class CountingNUTS(NUTS):
    """NumPyro's NUTS, of which ``num_steps`` are those of all transitions of a chain.

    :param jumps: that follow transitions, after so many of them.
    """

    def __init__(self, *args: Any, jumps: tuple[Jumps, int] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._jumps = jumps

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        new = super().sample(state, model_args, model_kwargs)
        if self._jumps is not None:
            new = (jax.vmap(self._jumped) if jnp.ndim(new.i) else self._jumped)(new)
        return new._replace(num_steps=state.num_steps + new.num_steps)

    def _jumped(self, state: Any) -> Any:
        """Return the state after a jump, if the warm-up is over and it is taken."""
        jumps, num_warmup = self._jumps
        key, *keys = random.split(state.rng_key, 4)
        which = random.categorical(keys[0], jumps.log_weights)
        noise = random.normal(keys[1], state.z.shape, state.z.dtype)
        z = jumps.centres[which] + jumps.factors[which] @ noise
        energy, gradient = jax.value_and_grad(self._potential_fn)(z)
        log_ratio = state.potential_energy - energy
        log_ratio += jumps.log_density(state.z, jnp) - jumps.log_density(z, jnp)
        level = jnp.log(random.uniform(keys[2], dtype=state.z.dtype))
        is_taken = (level < log_ratio) & (state.i > num_warmup)  # of a density of zero it is not
        own = state.z, state.z_grad, state.potential_energy
        found = zip((z, gradient, energy), own, strict=True)
        z, gradient, energy = (jnp.where(is_taken, new, old) for new, old in found)
        return state._replace(
            z=z,
            z_grad=gradient,
            potential_energy=energy,
            num_steps=state.num_steps + 1,
            rng_key=key,
        )


def whitened_density(
    model: Callable,
    guide: Any,
    family: Family,
    params: dict[str, Any],
    args: tuple,
    kwargs: dict[str, Any],
) -> WhitenedDensity:
    """Return the density of a fit.

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
    """Return where chains run: on devices of their own if there are enough, or on one."""
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
    """Run chains of NumPyro's NUTS.

    :param starts: shape ``(chains, d)``.
    :param num_warmup: transitions before the draws.
    """
    jumps = plan.jumps and Jumps(*(jnp.asarray(one, starts.dtype) for one in plan.jumps))
    kernel = CountingNUTS(
        # Compiled once, though it is traced in many places.
        potential_fn=jax.jit(lambda z: -density.log_density(z)),
        adapt_mass_matrix=plan.adapts_metric,
        target_accept_prob=plan.accept_prob(request.target_accept_prob),
        jumps=jumps and (jumps, num_warmup),
    )
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=request.num_samples,
        num_chains=request.num_chains,
        chain_method=chain_method_of(chain_method, request.num_chains),
        progress_bar=request.progress_bar,
        postprocess_fn=lambda z: {**density.constrain(z), SITE: z},
    )
    init_params = starts if request.num_chains > 1 else starts[0]
    mcmc.run(rng_key, init_params=init_params, extra_fields=FIELDS)
    found = jax.device_get(mcmc.get_extra_fields(group_by_chain=True))
    draws = jax.device_get(mcmc.get_samples(group_by_chain=True))
    num_gradients = int(found["num_steps"][:, -1].sum())
    z = np.asarray(draws.pop(SITE))
    return Chains(mcmc, draws, found["diverging"], found["energy"], num_gradients, z)
