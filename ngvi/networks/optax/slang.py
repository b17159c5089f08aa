"""SLANG as a plain optax transformation, for a training loop without a PPL."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.families.steps import covariance_times
from ngvi.networks.equations import SlangEquations
from ngvi.networks.optax.loop import (
    IvonState,
    IvonTransformation,
    Loop,
    Schedule,
    check_examples,
    transformation,
)
from ngvi.networks.optax.low_rank import joined, precision, split
from ngvi.networks.optax.rules import vogn


@shared_doc(SlangEquations, vogn)
@door
def slang(
    step_size: float | Schedule = 0.1,
    *,
    ess: float | None = None,
    weight_decay: float = SlangEquations.weight_decay,
    beta1: float = SlangEquations.beta1,
    beta2: float = SlangEquations.beta2,
    hess_init: Any = SlangEquations.hess_init,
    clip_radius: float = SlangEquations.clip_radius,
    debias: bool = SlangEquations.debias,
    rescale_lr: bool = SlangEquations.rescale_lr,
    rank: int = SlangEquations.rank,
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


class SlangLoop(Loop):
    """The functions of SLANG, which sees all weights together."""

    equations: SlangEquations

    def init(self, params: Any) -> IvonState:
        begun, rank = super().init(params), self.equations.rank
        self.equations.check_size(sum(leaf.size for leaf in jax.tree.leaves(begun.hess)))
        factor = jax.tree.map(lambda h: jnp.zeros((rank, *h.shape), h.dtype), begun.hess)
        return begun._replace(factor=factor)

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
        old = precision(joined(hess), factor, rule.weight_decay)
        mean = joined(means).astype(rows.dtype)
        new = rule.new_precision(old, rows, jnp.full_like(old.diagonal, rule.weight_decay))
        momentum = rule.new_momentum(joined(velocities), rule.slope(gradient, mean))
        slope = rule.unbiased(momentum, mean, count.astype(rows.dtype))
        steps = rule.length(covariance_times(new, slope), alpha)
        updates = [x.astype(m.dtype) for x, m in zip(split(steps, means), means, strict=True)]
        new_hess = split(new.diagonal - rule.weight_decay, hess)
        changed = (updates, split(momentum, hess), new_hess, split(new.factor.T, hess))
        moved, g, h, u = (jax.tree.unflatten(tree, leaves) for leaves in changed)
        return moved, IvonState(count, state.num_skipped, g, h, *self.of_sample(hess), u)
