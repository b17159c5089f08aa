"""NumPyro's part in files of results; see :mod:`ngvi.inference.saved.file_hooks`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.dtypes import prng_key
from numpyro.distributions.transforms import biject_to

from ngvi._lock import serialised
from ngvi.inference.saved import file_hooks as shared
from ngvi.inference.saved import serialize
from ngvi.inference.saved.serialize import Saved
from ngvi.inference.set_up import Given
from numpyro_ngvi.families.registry import REGISTRY
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.inference.set_up import STARTS, set_up
from numpyro_ngvi.inference.space import gaussians


class FileHooks(shared.FileHooks):
    """Turn arrays of JAX, parameters and guides into numbers and back."""

    families, guides = REGISTRY.families, (NaturalGaussianGuide, ReparametrizedGaussianGuide)
    device_option = "device"

    def flat(self, params: dict[str, Any]) -> dict[str, np.ndarray]:
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    def others(self, result: Any) -> dict[str, Any]:
        options = {"prefix": getattr(result.guide, "prefix", None)}
        own = result._rng_key
        key = [str(random.key_impl(own)), random.key_data(own).tolist()]
        found = serialize.guide_options(result.guide, self.families, self.guides, **options)
        return {"rng_key": key, **found}

    def abstract(self, family: Any, dim: int) -> Any:
        loc = jax.ShapeDtypeStruct((dim,), jnp.result_type(float))
        return jax.eval_shape(lambda loc: family.initial(loc, 1.0), loc)

    def as_array(self, value: Any) -> np.ndarray | None:
        is_array = isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, prng_key)
        return np.asarray(value) if is_array else None

    def place(self, value: Any) -> str:
        devices = value.devices()
        if len(devices) > 1:
            return ""
        (device,) = devices
        return f"{device.platform}:{device.id}"

    def device(self, given: Any) -> Any:
        found = next(iter(_devices(given)), None) if isinstance(given, str) else given
        if not isinstance(found, (jax.Device, jax.sharding.Sharding)):
            raise ValueError(
                "device must be a jax.Device, a sharding, or the name of a device that is here, "
                f"such as 'cpu' or 'gpu:0', got {given!r}."
            )
        return found

    def own(self, array: np.ndarray, place: Any = "") -> jax.Array:
        if isinstance(place, str):
            place = next(iter(_devices(place)), None)
        own = jnp.asarray(array)
        if place is not None and own.devices() != {place}:
            own = jax.device_put(own, place)
        if own.dtype != array.dtype:
            raise ValueError(
                f"The result is in {array.dtype}, of which JAX would make {own.dtype}: call "
                "numpyro.enable_x64() first."
            )
        return own

    def at_a_third(self, support: Any, shape: tuple[int, ...], like: Any) -> float:
        return float(biject_to(support)(jnp.full(shape, 1 / 3, jnp.result_type(like))).sum())

    @serialised
    def rebuilt(self, saved: Saved, given: Given) -> dict[str, Any]:
        ready = set_up(given, STARTS, random.key(0))
        parameters: Any = ready.problem.space
        own = parameters.constrain(parameters.initial)
        numbers = self.flat(own)
        saved.check_same(gaussians(ready.guide), self.at_a_third, numbers)

        def made(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
            leaves = [self.own(arrays[name]) for name in numbers]
            params = jax.tree.unflatten(jax.tree.structure(own), leaves)
            with saved.whole():
                saved.check_state(parameters, parameters.restored(params))
            return params

        params = made(saved.under("params/"))
        with saved.whole():
            impl, data = saved.meta["rng_key"]
            key = random.wrap_key_data(jnp.array(data, jnp.uint32), impl=impl)
        found = {"model": ready.model, "guide": ready.guide, "optima": saved.optima(made)}
        return {**found, "params": params, "_rng_key": key}


def _devices(name: str) -> list[jax.Device]:
    """Return the devices of a name, ``"gpu"`` or ``"gpu:1"``, if there are any."""
    platform, _, index = name.partition(":")
    try:
        found = jax.local_devices(backend=platform) if platform else []
    except RuntimeError:  # JAX without it
        return []
    return [device for device in found if not index or str(device.id) == index]
