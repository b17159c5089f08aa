"""Operations of JAX for the rules of :mod:`ngvi.optim`: numbers are arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.families import direction
from ngvi.families.direction import Families
from ngvi.optim import rule
from ngvi.optim.trust_region import LineSearchState

Schedule = Callable[[jax.Array], jax.Array]


class Algebra(rule.Algebra):
    """Schedules are read here; they are optax's."""

    minimum, maximum = staticmethod(jnp.minimum), staticmethod(jnp.maximum)
    sqrt = staticmethod(jnp.sqrt)
    norm, concatenate = staticmethod(jnp.linalg.norm), staticmethod(jnp.concatenate)
    scan = staticmethod(jax.lax.scan)
    product_rows = staticmethod(direction.products)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        return jnp.where(condition, yes, no)

    def numbers(self, *values: jax.Array) -> tuple[jax.Array, ...]:
        return values

    def later(self, *values: jax.Array) -> Callable[[], tuple[jax.Array, ...]]:
        return lambda: values

    def measured(self, compute: Callable, measure: Callable) -> tuple[Any, list[jax.Array]]:
        result = compute()
        return result, measure(result)

    def cast(self, number: jax.Array | float, like: Families) -> jax.Array:
        return jnp.asarray(number, like[0].loc.dtype)

    def kept(self, numbers: tuple, like: Families) -> jax.Array:
        # One array leaves a program sooner than several numbers.
        if isinstance(numbers[0], tuple):
            return jnp.stack([self.kept(row, like) for row in numbers])
        dtype = like[0].loc.dtype
        if not any(isinstance(number, jax.Array) for number in numbers):
            return jnp.asarray(np.array(numbers, dtype))
        return jnp.stack([jnp.asarray(number, dtype) for number in numbers])

    def eps(self, like: jax.Array) -> float:
        return float(jnp.finfo(like.dtype).eps)

    def split(self, vector: jax.Array, sizes: list[int]) -> list[jax.Array]:
        return jnp.split(vector, np.cumsum(sizes)[:-1])

    def no_rows(self, most: int, like: jax.Array) -> jax.Array:
        return jnp.zeros((most, *like.shape), like.dtype)

    def with_row(self, use: jax.Array, blocks: tuple, rows: tuple, most: int) -> list[jax.Array]:
        return [
            jnp.where(use, jnp.concatenate([block[1:], row[None]]), block)
            for block, row in zip(blocks, rows, strict=True)
        ]

    def repeated(
        self, advance: Callable, settled: Callable, search: LineSearchState, path: Any
    ) -> LineSearchState:
        shapes = jax.eval_shape(path.at, search.rho)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        low, length = (jnp.asarray(one, search.rho.dtype) for one in (search.low, search.length))
        search = search._replace(
            count=jnp.asarray(0), low=low, failed=jnp.asarray(False), attempt=nothing, length=length
        )
        while not isinstance(is_settled := settled(search), jax.core.Tracer):
            # Outside of jax.jit, where each loop of JAX's would be compiled for itself.
            if is_settled:
                return search
            search = advance(search)
        return jax.lax.while_loop(lambda state: ~settled(state), advance, search)


algebra = Algebra()
