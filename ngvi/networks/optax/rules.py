"""IVON and VOGN of optax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.errors import shown
from ngvi.networks.equations import InitialHess, IvonEquations, VognEquations
from ngvi.networks.optax.loop import IvonTransformation, Schedule, state_dtype, transformation


@shared_doc(IvonEquations)
@door
def ivon(
    step_size: float | Schedule = 0.1,
    *,
    ess: float | None = None,
    weight_decay: float = IvonEquations.weight_decay,
    beta1: float = IvonEquations.beta1,
    beta2: float = IvonEquations.beta2,
    hess_init: Any = IvonEquations.hess_init,
    clip_radius: float = IvonEquations.clip_radius,
    debias: bool = IvonEquations.debias,
    rescale_lr: bool = IvonEquations.rescale_lr,
    axis_name: Any = None,
) -> IvonTransformation:
    """Return an optax transformation, for a loop that is compiled and scanned as usual.

    In the loop::

        weights = ivon.sample(key, params, state)
        grads = jax.grad(loss)(weights, batch)
        updates, state = ivon.update(grads, state, params, sample=weights)
        params = optax.apply_updates(params, updates)

    To average a step over ``n`` draws, use ``weights = ivon.sample(key, params, state,
    num_draws=n)`` and ``jax.vmap(jax.grad(loss), (0, None))(weights, batch)``, or ``jax.lax.map``.
    Average microbatches of one sample before ``update``, or by ``optax.MultiSteps``, where the
    sample must stay the same until its step: renew ``key`` once in ``every_k_schedule`` times.

    Weights that ``optax.masked`` or ``optax.multi_transform`` leave out are not sampled. Flax's
    ``nnx.Optimizer`` passes the sample on: ``optimizer.update(network, grads, sample=weights)``.

    The loss must be a mean over examples: with a sum over ``B`` of them, the posterior is ``B``
    times too sharp, without any warning.

    :param step_size: ``alpha``, a number or a schedule; times ``hess_init + weight_decay``.
    :param hess_init: ``h`` before the first step: a number, or a pytree like the weights, as
        measured by :func:`initial_hess`.
    :param axis_name: the axis of ``pmap``, ``vmap`` or ``shard_map`` over whose workers to average,
        each with its own sample.
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
    weight_decay: float = VognEquations.weight_decay,
    beta1: float = VognEquations.beta1,
    beta2: float = VognEquations.beta2,
    hess_init: Any = VognEquations.hess_init,
    clip_radius: float = VognEquations.clip_radius,
    debias: bool = VognEquations.debias,
    rescale_lr: bool = VognEquations.rescale_lr,
    axis_name: Any = None,
) -> IvonTransformation:
    """Return an optax transformation, for a loop that is compiled and scanned as usual.

    In the loop, with the loss of one example::

        weights = vogn.sample(key, params, state)
        grads = jax.vmap(jax.grad(loss), (None, 0))(weights, batch)
        updates, state = vogn.update(grads, state, params, sample=weights)
        params = optax.apply_updates(params, updates)

    Gradients have a leading axis of examples, and with several samples (``num_draws=n``) one of
    draws before that. So transformations that average or clip gradients, such as
    ``optax.MultiSteps``, do not work with it.

    :param step_size: ``alpha``, a number or a schedule; times ``hess_init + weight_decay``.
    :param hess_init: ``h`` before the first step: a number, or a pytree like the weights.
    :param axis_name: the axis of ``pmap``, ``vmap`` or ``shard_map`` over whose workers to average,
        each with its own sample and the same number of examples.
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

    Call it outside ``jit``.

    :param gradients: pytrees, one for each minibatch, of the mean loss over its examples.
    :return: a pytree like the weights, in float32 or better.
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
