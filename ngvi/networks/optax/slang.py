"""SLANG as a plain optax transformation, for a training loop without a PPL."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.families.low_rank_precision import LowRankPrecision
from ngvi.families.steps import covariance_times
from ngvi.linalg.definite import Definite
from ngvi.networks.equations import SLANG_DEFAULTS, SlangEquations
from ngvi.networks.optax.loop import (
    IvonTransformation,
    Loop,
    Schedule,
    SlangState,
    aligned,
    check_examples,
    deviations,
    transformation,
)
from ngvi.networks.optax.rules import vogn


@shared_doc(SlangEquations, vogn)
@door
def slang(
    step_size: float | Schedule = 0.1,
    *,
    ess: float | None = None,
    weight_decay: float = SLANG_DEFAULTS["weight_decay"],
    beta1: float = SLANG_DEFAULTS["beta1"],
    beta2: float = SLANG_DEFAULTS["beta2"],
    hess_init: Any = SLANG_DEFAULTS["hess_init"],
    clip_radius: float = SLANG_DEFAULTS["clip_radius"],
    debias: bool = SLANG_DEFAULTS["debias"],
    rescale_lr: bool = SLANG_DEFAULTS["rescale_lr"],
    rank: int = SLANG_DEFAULTS["rank"],
    axis_name: Any = None,
) -> IvonTransformation:
    """Return an optax transformation, for a loop that is compiled and scanned as usual.

    The loop is that of :func:`vogn`, with the loss of one example::

        weights = slang.sample(key, params, state)
        grads = jax.vmap(jax.grad(loss), (None, 0))(weights, batch)
        updates, state = slang.update(grads, state, params, sample=weights)
        params = optax.apply_updates(params, updates)

    :param hess_init: ``h`` before the first step: a number, or a pytree like the weights.
    """
    return transformation(SlangEquations, loop=SlangLoop, **locals())


class _Matrices(Definite):
    """Operations of JAX for a precision of low rank."""

    xp = jnp

    def eye(self, size: int, like: jax.Array) -> jax.Array:
        return jnp.eye(size, dtype=like.dtype)

    def combined(self, amount: Any, one: jax.Array, other_amount: Any, other: Any) -> jax.Array:
        return (amount * one + other_amount * other).astype(one.dtype)

    def at_least(self, values: jax.Array, floor: float) -> jax.Array:
        return jnp.maximum(values, floor)

    def cholesky(self, matrix: jax.Array) -> jax.Array:
        return jnp.linalg.cholesky(matrix)

    def solve_lower(self, tril: jax.Array, rhs: jax.Array, trans: bool = False) -> jax.Array:
        return jax.scipy.linalg.solve_triangular(tril, rhs, int(trans), lower=True)


class _Precision(LowRankPrecision):
    ops: ClassVar[Any] = _Matrices()
    xp: ClassVar[Any] = jnp


class SlangLoop(Loop):
    """The functions of SLANG, which sees all weights together."""

    equations: SlangEquations

    def init(self, params: Any) -> SlangState:
        begun, rank = super().init(params), self.equations.rank
        self.equations.check_size(sum(leaf.size for leaf in jax.tree.leaves(begun.hess)))
        factor = jax.tree.map(lambda h: jnp.zeros((rank, *h.shape), h.dtype), begun.hess)
        return SlangState(*(*begun, factor))

    def moved(
        self, gradients: Any, state: Any, params: Any, sample: Any, alpha: Any
    ) -> tuple[Any, Any]:
        """Return the updates of the mean, and the state after a step."""
        rule, count = self.equations, state.count + 1
        means, tree = jax.tree.flatten(params)
        parts = (jax.tree.leaves(part) for part in (state.hess, state.momentum, state.factor))
        hess, velocities, factor = parts
        examples = []
        given = zip(jax.tree.leaves(gradients), jax.tree.leaves(sample), means, strict=True)
        for gradient, at, mean in given:
            check_examples(rule, gradient, at, mean)
            examples.append(gradient.reshape(-1, mean.size))
        rows = jnp.concatenate(examples, 1).astype(hess[0].dtype)
        gradient, rows = rows.mean(0), rows / len(rows) ** 0.5
        if self.axis_name is not None:
            gradient = jax.lax.pmean(gradient, self.axis_name)
            workers = jax.lax.psum(1, self.axis_name)
            rows = jax.lax.all_gather(rows, self.axis_name, tiled=True) / workers**0.5
        old = _precision(_joined(hess), factor, rule.weight_decay)
        mean = _joined(means).astype(rows.dtype)
        new = rule.new_precision(old, rows, jnp.full_like(old.diagonal, rule.weight_decay))
        momentum = rule.new_momentum(_joined(velocities), rule.slope(gradient, mean))
        slope = rule.unbiased(momentum, mean, count.astype(rows.dtype))
        steps = rule.length(covariance_times(new, slope), alpha)
        updates = [x.astype(m.dtype) for x, m in zip(_split(steps, means), means, strict=True)]
        new_hess = _split(new.diagonal - rule.weight_decay, hess)
        changed = (updates, _split(momentum, hess), new_hess, _split(new.factor.T, hess))
        moved, *own, rows = (jax.tree.unflatten(tree, leaves) for leaves in changed)
        of_sample = self.of_sample(hess)
        return moved, SlangState(count, state.num_skipped, *(*own, *of_sample, rows))


@deviations.register(SlangState)
def _(state: SlangState, key: jax.Array, params: Any, draws: tuple[int, ...]) -> list[jax.Array]:
    factor, hess = jax.tree.leaves(aligned(state.factor, params)), jax.tree.leaves(state.hess)
    precision = _precision(_joined(hess), factor, state.weight_decay)
    noise = jax.random.normal(key, (*draws, precision.dim), precision.loc.dtype)
    return _split(precision.sample(noise) * state.ess**-0.5, hess)


def _precision(hess: jax.Array, factor: list[jax.Array], weight_decay: Any) -> _Precision:
    """Divided by ``ess``."""
    rank = len(factor[0])
    whole = jnp.concatenate([leaf.reshape(rank, -1) for leaf in factor], 1).T
    return _Precision(jnp.zeros_like(hess), whole, hess + weight_decay, rank=rank)


def _joined(leaves: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])


def _split(vectors: jax.Array, like: list[jax.Array]) -> list[jax.Array]:
    """Vectors ``(..., d)`` by leaves, ``(..., *leaf.shape)``."""
    pieces = jnp.split(vectors, np.cumsum([leaf.size for leaf in like])[:-1], -1)
    pairs = zip(pieces, like, strict=True)
    return [piece.reshape(*vectors.shape[:-1], *leaf.shape) for piece, leaf in pairs]
