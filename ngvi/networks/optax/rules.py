"""IVON and VOGN of optax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.errors import shown
from ngvi.networks.equations import (
    DEFAULTS,
    VOGN_DEFAULTS,
    InitialHess,
    IvonEquations,
    VognEquations,
)
from ngvi.networks.optax.loop import IvonTransformation, Schedule, state_dtype, transformation


@shared_doc(IvonEquations)
@door
def ivon(
    step_size: float | Schedule = 0.1,
    *,
    ess: float | None = None,
    weight_decay: float = DEFAULTS["weight_decay"],
    beta1: float = DEFAULTS["beta1"],
    beta2: float = DEFAULTS["beta2"],
    hess_init: Any = DEFAULTS["hess_init"],
    clip_radius: float = DEFAULTS["clip_radius"],
    debias: bool = DEFAULTS["debias"],
    rescale_lr: bool = DEFAULTS["rescale_lr"],
    axis_name: Any = None,
) -> IvonTransformation:
    """Return an optax transformation, for a loop that is compiled and scanned as usual.

    In the loop::

        weights = ivon.sample(key, params, state)
        grads = jax.grad(loss)(weights, batch)
        updates, state = ivon.update(grads, state, params, sample=weights)
        params = optax.apply_updates(params, updates)

    With ``weights = ivon.sample(key, params, state, num_draws=n)`` and
    ``jax.vmap(jax.grad(loss), (0, None))(weights, batch)``, or ``jax.lax.map``, the step is that of
    ``n`` draws. Microbatches of one sample are averaged before ``update``, also by
    ``optax.MultiSteps``, for which the sample stays the same until its step: ``key`` is new once in
    ``every_k_schedule`` times, not every time.

    What ``optax.masked`` or ``optax.multi_transform`` leave out of it is not sampled. Flax's
    ``nnx.Optimizer`` passes the sample on: ``optimizer.update(network, grads, sample=weights)``.

    The loss is not seen here, so that nothing notices one that is a sum over ``B`` examples in
    place of their mean: its posterior is ``B`` times too sharp.

    :param step_size: ``alpha``, a number or a schedule; times ``hess_init + weight_decay``.
    :param hess_init: ``h`` before the first step: a number, or a pytree like the weights, as
        :func:`initial_hess` measures them.
    :param axis_name: of ``pmap``, ``vmap`` or ``shard_map``: averages over the workers of this
        axis, each with a sample of its own.
    :return: ``init``, ``update`` and ``sample``.
    :raises ValueError: for an option outside its range; on ``update``, without the sample.
    """
    return transformation(IvonEquations, **locals())


@shared_doc(VognEquations)
@door
def vogn(
    step_size: float | Schedule = 0.1,
    *,
    ess: float | None = None,
    weight_decay: float = VOGN_DEFAULTS["weight_decay"],
    beta1: float = VOGN_DEFAULTS["beta1"],
    beta2: float = VOGN_DEFAULTS["beta2"],
    hess_init: Any = VOGN_DEFAULTS["hess_init"],
    clip_radius: float = VOGN_DEFAULTS["clip_radius"],
    debias: bool = VOGN_DEFAULTS["debias"],
    rescale_lr: bool = VOGN_DEFAULTS["rescale_lr"],
    axis_name: Any = None,
) -> IvonTransformation:
    """Return an optax transformation, for a loop that is compiled and scanned as usual.

    In the loop, with the loss of one example::

        weights = vogn.sample(key, params, state)
        grads = jax.vmap(jax.grad(loss), (None, 0))(weights, batch)
        updates, state = vogn.update(grads, state, params, sample=weights)
        params = optax.apply_updates(params, updates)

    Gradients have an axis of examples before those of the weights; of several samples
    (``num_draws=n``) one of draws before that. So what averages or clips gradients, such as
    ``optax.MultiSteps``, is not for it.

    :param step_size: ``alpha``, a number or a schedule; times ``hess_init + weight_decay``.
    :param hess_init: ``h`` before the first step: a number, or a pytree like the weights.
    :param axis_name: of ``pmap``, ``vmap`` or ``shard_map``: averages over the workers of this
        axis, each with a sample and as many examples of its own.
    :return: ``init``, ``update`` and ``sample``.
    :raises ValueError: for an option outside its range; on ``update``, without the sample, or for
        gradients without an axis of examples.
    """
    return transformation(VognEquations, **locals())


@shared_doc(InitialHess)
@door
def initial_hess(gradients: Iterable[Any], floor: float = InitialHess().floor) -> Any:
    """Measure ``hess_init`` of :func:`ivon`.

    As in::

        hess_init = initial_hess(jax.grad(loss)(params, batch) for batch in batches)
        optimizer = ivon(ess=len(dataset), hess_init=hess_init)

    It is called outside of ``jit``.

    :param gradients: of a minibatch each, of the mean over its examples; pytrees.
    :return: a pytree like the weights, in float32 at least.
    :raises TypeError: for a function or the gradient of a single minibatch.
    :raises ValueError: without gradients, if they are all zero, or not finite.
    """
    if callable(gradients) or isinstance(gradients, Mapping) or hasattr(gradients, "shape"):
        raise TypeError(
            "gradients must be several pytrees, of a minibatch each: (jax.grad(loss)(params, "
            f"batch) for batch in batches), got {shown(gradients)}."
        )
    total, count = None, 0
    for gradient in gradients:
        square = jax.tree.map(lambda g: jnp.square(jnp.asarray(g, state_dtype(g))), gradient)
        total = square if total is None else jax.tree.map(jnp.add, total, square)
        count += 1
    leaves, tree = jax.tree.flatten(total)
    squares = [leaf / count for leaf in leaves]
    return jax.tree.unflatten(tree, InitialHess(floor).of_squares(squares))
