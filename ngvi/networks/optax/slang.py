"""SLANG as a plain optax transformation, for a training loop without a PPL."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ngvi._docs import shared_doc
from ngvi.errors import check_count
from ngvi.families.low_rank_precision import LowRankPrecision
from ngvi.families.steps import covariance_times
from ngvi.linalg.definite import Definite
from ngvi.linalg.low_rank import LowRank
from ngvi.networks.equations import SLANG_DEFAULTS, SlangEquations
from ngvi.networks.optax.loop import (
    IvonTransformation,
    Loop,
    Schedule,
    SlangState,
    aligned,
    check_examples,
    is_masked,
    own_state,
    transformation,
)
from ngvi.networks.optax.rules import vogn


@shared_doc(SlangEquations, vogn)
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

    def eigh(self, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.linalg.eigh(matrix)

    def svd(self, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        left, _, right = jnp.linalg.svd(matrix)
        return left, right

    def solve_lower(self, tril: jax.Array, rhs: jax.Array, trans: bool = False) -> jax.Array:
        return jax.scipy.linalg.solve_triangular(tril, rhs, int(trans), lower=True)


class _LowRank(LowRank):
    ops = _Matrices()

    def strength(self) -> jax.Array:
        return (self.factor / self.diagonal[:, None]).T @ self.factor


class _Precision(LowRankPrecision):
    ops: ClassVar[Any] = _LowRank.ops
    xp: ClassVar[Any] = jnp
    _low_rank: ClassVar[Any] = _LowRank


class SlangLoop(Loop):
    """The functions of SLANG, which sees all weights together."""

    equations: SlangEquations

    def init(self, params: Any) -> SlangState:
        begun, rank = super().init(params), self.equations.rank
        self.equations.check_size(sum(leaf.size for leaf in jax.tree.leaves(begun.hess)))
        factor = jax.tree.map(lambda h: jnp.zeros((rank, *h.shape), h.dtype), begun.hess)
        own = begun.count, begun.num_skipped, begun.momentum, begun.hess
        return SlangState(*own, factor)

    def sample(self, key: jax.Array, params: Any, state: Any, num_draws: int | None = None) -> Any:
        draws = () if num_draws is None else (check_count(num_draws, "num_draws"),)
        own = own_state(state)
        tree: Any
        hess, tree = jax.tree.flatten(aligned(own.hess, params), is_leaf=is_masked)
        factor = jax.tree.leaves(aligned(own.factor, params))
        parts, kept = tree.flatten_up_to(params), [one for one in hess if not is_masked(one)]
        precision = self._precision(_joined(kept), factor)
        noise = jax.random.normal(key, (*draws, precision.dim), precision.loc.dtype)
        deviations = iter(_split(precision.sample(noise) * self.equations.ess**-0.5, kept))

        def of_part(of: Any, means: Any) -> Any:
            if not is_masked(of):
                return (means + next(deviations)).astype(means.dtype)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (*draws, *jnp.shape(x))), means)

        return jax.tree.unflatten(tree, [of_part(*pair) for pair in zip(hess, parts, strict=True)])

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
        old, mean = self._precision(_joined(hess), factor), _joined(means).astype(rows.dtype)
        new = rule.new_precision(old, rows, jnp.full_like(old.diagonal, rule.weight_decay))
        momentum = rule.new_momentum(_joined(velocities), rule.slope(gradient, mean))
        slope = rule.unbiased(momentum, mean, count.astype(rows.dtype))
        steps = rule.length(covariance_times(new, slope), alpha)
        updates = [x.astype(m.dtype) for x, m in zip(_split(steps, means), means, strict=True)]
        new_hess = _split(new.diagonal - rule.weight_decay, hess)
        changed = (_split(momentum, hess), new_hess, _split(new.factor.T, hess))
        own = (jax.tree.unflatten(tree, leaves) for leaves in changed)
        return jax.tree.unflatten(tree, updates), SlangState(count, state.num_skipped, *own)

    def _precision(self, hess: jax.Array, factor: list[jax.Array]) -> _Precision:
        """Divided by ``ess``."""
        rank = self.equations.rank
        whole = jnp.concatenate([leaf.reshape(rank, -1) for leaf in factor], 1).T
        return _Precision(
            jnp.zeros_like(hess), whole, hess + self.equations.weight_decay, rank=rank
        )


def _joined(leaves: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])


def _split(vectors: jax.Array, like: list[jax.Array]) -> list[jax.Array]:
    """Vectors ``(..., d)`` by leaves, ``(..., *leaf.shape)``."""
    pieces = jnp.split(vectors, np.cumsum([leaf.size for leaf in like])[:-1], -1)
    pairs = zip(pieces, like, strict=True)
    return [piece.reshape(*vectors.shape[:-1], *leaf.shape) for piece, leaf in pairs]
