"""Latents of a model that interact in the posterior.

:func:`posterior_dependencies` traces the model abstractly, without data passing through it.
:func:`hessian_product` evaluates the model's curvature at one point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.inspect import get_dependencies
from numpyro.infer.util import potential_energy

from ngvi.latents.layout import Pairs, interacting_pairs
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.sites import abstract_trace


def posterior_dependencies(
    model: Callable, args: tuple, kwargs: dict, latents: Iterable[str]
) -> tuple[Pairs, Pairs]:
    """:func:`ngvi.latents.layout.interacting_pairs` by NumPyro's ``get_dependencies``.

    :param latents: names of the sites in question. Other latents are taken to be integrated
        out, as enumerated ones are.
    """
    with handlers.block():
        found = get_dependencies(model, args, kwargs)["posterior_dependencies"]
    return interacting_pairs(found, abstract_trace(model, args, kwargs), latents)


def hessian_product(
    model: Callable, args: tuple, kwargs: dict, unpack: Callable
) -> Callable[[jax.Array], Callable[[np.ndarray], np.ndarray] | None]:
    """Products with the Hessian of the model's log density.

    :param unpack: from a latent vector to unconstrained values by site.
    :return: from the latent vector where it is taken to what maps ``v`` to ``H v``, both of shape
        ``(m, d)``; or to None if the model cannot be differentiated twice or is not finite there.
    """
    arguments = Arguments(args, kwargs)

    @partial(compiled, runs_few=True)
    def product(latent: jax.Array, vector: jax.Array, arrays: list) -> jax.Array:
        energy = energy_of(model, *arguments.rebuilt(arrays))
        gradient = jax.grad(lambda latent: energy(unpack(latent)))
        return -jax.jvp(gradient, (latent,), (vector,))[1]

    def products(at: jax.Array, vectors: np.ndarray) -> np.ndarray:
        # One by one, for one program whatever their number: compiling it takes longest.
        rows = [arguments.call(product, at, jnp.asarray(row, at.dtype)) for row in vectors]
        return np.stack([np.asarray(row) for row in rows])

    def product_at(at: jax.Array) -> Callable[[np.ndarray], np.ndarray] | None:
        try:
            finite = np.isfinite(products(at, np.ones((1, at.shape[-1])))).all()
        except Exception:  # noqa: BLE001
            return None  # an operation without a second derivative, of any kind
        return partial(products, at) if finite else None

    return product_at


def energy_of(
    model: Callable, args: tuple, kwargs: dict
) -> Callable[[dict[str, jax.Array]], jax.Array]:
    """Minus the log density of a model, of unconstrained values by site; others are drawn."""
    seeded = handlers.seed(model, rng_seed=0)

    def energy(unconstrained: dict[str, jax.Array]) -> jax.Array:
        with handlers.block():
            return potential_energy(seeded, args, kwargs, unconstrained)

    return energy
