"""Adam whose rate adapts, as an optax transformation; see :mod:`ngvi.optim.adaptive_adam`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ngvi.optim.adaptive_adam import AdamState, AdaptiveAdamRule
from numpyro_ngvi.optim.algebra import algebra

RULE = AdaptiveAdamRule()


class AdaptiveState(NamedTuple):
    """State of the transformation."""

    count: jax.Array  # type: ignore[assignment]  #: Steps taken.
    tensors: list[AdamState]  #: States in the order of the parameters' leaves.


def adaptive_adam() -> optax.GradientTransformation:
    """Return an optax transformation without an option."""
    return optax.GradientTransformation(_init, _update)


def _init(params: Any) -> AdaptiveState:
    states = [RULE.start(jnp.asarray(leaf)) for leaf in jax.tree.leaves(params)]
    return AdaptiveState(jnp.zeros((), jnp.int32), states)


def _update(gradients: Any, state: AdaptiveState, params: Any = None) -> tuple[Any, AdaptiveState]:
    leaves, tree = jax.tree.flatten(gradients)
    count = state.count + 1
    each = zip(leaves, jax.tree.leaves(params), state.tensors, strict=True)
    tensors = [RULE.advance(algebra, *one, count.astype(one[0].dtype)) for one in each]
    state = AdaptiveState(count, tensors)
    return jax.tree.unflatten(tree, _changes(state)), state


def recover(like: Any, state: AdaptiveState) -> tuple[Any, AdaptiveState]:
    """Return the last step, taken back, and the state to continue from with a tenth of the rates.

    :param like: a pytree of the parameters' structure.
    """
    back = jax.tree.unflatten(jax.tree.structure(like), [-one for one in _changes(state)])
    return back, state._replace(tensors=[RULE.shortened(one) for one in state.tensors])


def _changes(state: AdaptiveState) -> list[jax.Array]:
    # Of a state without a step the mean is zero, and a count of one as good as any.
    count = jnp.maximum(state.count, 1)
    return [RULE.change(one, count.astype(one.rate.dtype)) for one in state.tensors]
