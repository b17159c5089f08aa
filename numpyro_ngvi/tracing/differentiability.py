"""Which sites keep a model from having a Hessian."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.tracing.log_density import Latents, LogDensity
from numpyro_ngvi.tracing.per_example import site_log_probs


def sites_without_hessian(
    density: LogDensity, latents: Latents, params: dict[str, Any], guide_key: jax.Array
) -> list[str]:
    """The sites whose log density cannot be differentiated twice.

    Only traces abstractly; nothing is evaluated.
    """
    if density.is_enumerated:
        return []
    names = jax.eval_shape(lambda: site_log_probs(density, latents, params, guide_key)[0])
    return [name for name in names if not _has_hessian(density, name, latents, params, guide_key)]


def _has_hessian(
    density: LogDensity, name: str, latents: Latents, params: dict[str, Any], key: jax.Array
) -> bool:
    def log_prob(values: Latents) -> jax.Array:
        return jnp.sum(site_log_probs(density, values, params, key)[0][name])

    try:
        jax.eval_shape(lambda v: jax.jvp(jax.grad(log_prob), (v,), (v,)), latents)
    except Exception:  # noqa: BLE001
        return False
    return True
