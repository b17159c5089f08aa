"""IVON and VOGN as plain optax transformations, for a training loop without a PPL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ngvi.optax needs {error.name}: pip install 'ngvi[optax]'", name=error.name
    ) from error

from ngvi._docs import shared_doc
from ngvi._warn import warn
from ngvi.errors import check_count
from ngvi.optim.ivon import DEFAULTS, InitialHess, IvonEquations, check_hess_init, check_ivon
from ngvi.optim.plain_vogn import VOGN_DEFAULTS, VognEquations

__all__ = ["IvonState", "IvonTransformation", "initial_hess", "ivon", "vogn"]

Schedule = Callable[[jax.Array], jax.Array]


class IvonState(NamedTuple):
    """State of IVON and VOGN; of half-precision weights in float32."""

    count: jax.Array  # type: ignore[assignment]  #: steps taken
    num_skipped: jax.Array  #: steps not taken because something was not finite
    momentum: Any  #: ``g``, a pytree like the weights
    hess: Any  #: ``h``


class IvonTransformation(optax.GradientTransformationExtraArgs):
    """``init`` and ``update`` of an optax transformation, and ``sample``.

    :ivar sample: ``sample(key, params, state, num_draws=None)``: weights drawn from the posterior
        of mean ``params``; with ``num_draws`` so many, along a first axis of each leaf. ``state``
        may be that of an ``optax.chain`` around.
    """

    sample: Callable[..., Any]


@shared_doc(IvonEquations)
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
    """An optax transformation, for a loop that is compiled and scanned as usual.

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
    return _transformation(
        IvonEquations,
        step_size,
        axis_name,
        ess=ess,
        weight_decay=weight_decay,
        beta1=beta1,
        beta2=beta2,
        hess_init=hess_init,
        clip_radius=clip_radius,
        debias=debias,
        rescale_lr=rescale_lr,
    )


@shared_doc(VognEquations)
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
    """An optax transformation, for a loop that is compiled and scanned as usual.

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
    return _transformation(
        VognEquations,
        step_size,
        axis_name,
        ess=ess,
        weight_decay=weight_decay,
        beta1=beta1,
        beta2=beta2,
        hess_init=hess_init,
        clip_radius=clip_radius,
        debias=debias,
        rescale_lr=rescale_lr,
    )


def _transformation(
    of: type[IvonEquations], step_size: float | Schedule, axis_name: Any, **options: Any
) -> IvonTransformation:
    """The functions of a rule with these options."""
    hess_init = options.pop("hess_init")
    values = jax.tree.leaves(hess_init)
    is_tree = len(values) > 1 or any(jnp.ndim(x) for x in values if not isinstance(x, str))
    number = check_hess_init(values) if is_tree else hess_init
    equations = check_ivon(step_size, "step_size", of, hess_init=number, **options)
    loop = _Loop(equations, step_size, hess_init if is_tree else None, axis_name)
    transformation = IvonTransformation(loop.init, loop.update)
    transformation.sample = loop.sample
    return transformation


class _Loop(NamedTuple):
    """The functions of an :class:`IvonTransformation`."""

    equations: IvonEquations
    step_size: float | Schedule
    hess_init: Any  #: a pytree; None for the equations' number
    axis_name: Any

    def init(self, params: Any) -> IvonState:
        if any(leaf.dtype in (jnp.float16, jnp.bfloat16) for leaf in jax.tree.leaves(params)):
            warn(
                "Half-precision weights round small steps and samples away: keep the weights in "
                "float32, and cast a sample to half precision in the loss."
            )

        def full(value: float) -> Any:
            return jax.tree.map(lambda x: jnp.full(x.shape, value, _state_dtype(x)), params)

        zero = jnp.zeros((), jnp.int32)
        is_tree = self.hess_init is not None
        hess = _like(self.hess_init, params) if is_tree else full(self.equations.hess_init)
        return IvonState(zero, zero, full(0.0), hess)

    def sample(self, key: jax.Array, params: Any, state: Any, num_draws: int | None = None) -> Any:
        draws = () if num_draws is None else (check_count(num_draws, "num_draws"),)
        leaves, tree = jax.tree.flatten(params)
        keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))

        def drawn(key: jax.Array, mean: jax.Array, hess: jax.Array) -> jax.Array:
            noise = jax.random.normal(key, (*draws, *mean.shape), hess.dtype)
            return (mean + self.equations.scale(hess) * noise).astype(mean.dtype)

        def of_part(hess: Any, keys: Any, means: Any) -> Any:
            if not _is_masked(hess):
                return drawn(keys, means, hess)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (*draws, *jnp.shape(x))), means)

        hess = _aligned(_own(state).hess, params)
        return jax.tree.map(of_part, hess, keys, params, is_leaf=_is_masked)

    def update(
        self, gradients: Any, state: IvonState, params: Any = None, *, sample: Any = None, **_: Any
    ) -> tuple[Any, IvonState]:
        if params is None or sample is None or sample is params:
            raise ValueError(
                f"{self.equations.rule} needs the mean of the weights and the sample at which the "
                "gradient was taken: weights = tx.sample(key, params, state), gradients at "
                "weights, then tx.update(gradients, state, params, sample=weights)."
            )
        sample, rule, count = _aligned(sample, gradients), self.equations, state.count + 1
        alpha = self.step_size(state.count) if callable(self.step_size) else self.step_size

        def moved(
            gradient: jax.Array, at: jax.Array, mean: jax.Array, momentum: Any, hess: Any
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            gradient = gradient.astype(hess.dtype)
            if rule.of_examples and gradient.ndim != at.ndim + 1:
                raise ValueError(
                    f"{rule.rule} needs the gradient of each example, with an axis of examples "
                    "before those of the weights: jax.vmap(jax.grad(loss), (None, 0))(weights, "
                    f"batch). One is of shape {gradient.shape} for weights of {mean.shape}."
                )
            product = gradient * (gradient if rule.of_examples else at.astype(hess.dtype) - mean)
            axes = tuple(range(gradient.ndim - mean.ndim))
            gradient, product = gradient.mean(axes), product.mean(axes)
            if self.axis_name is not None:
                gradient, product = jax.lax.pmean((gradient, product), self.axis_name)
            momentum, hess = (
                rule.new_momentum(momentum, rule.slope(gradient, mean)),
                rule.new_hess(hess, product),
            )
            # A schedule's number may be wider than the weights are.
            step = rule.change(mean, momentum, hess, alpha, count.astype(hess.dtype))
            return step.astype(mean.dtype), momentum, hess

        results = jax.tree.map(moved, gradients, sample, params, state.momentum, state.hess)
        updates, momentum, hess = jax.tree.transpose(
            jax.tree.structure(params), jax.tree.structure((0, 0, 0)), results
        )
        finite = jnp.isfinite(sum(jnp.sum(0 * leaf) for leaf in jax.tree.leaves((updates, hess))))

        def chosen(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)

        taken = IvonState(count, state.num_skipped, momentum, hess)
        skipped = state._replace(num_skipped=state.num_skipped + 1)
        return chosen(updates, jax.tree.map(jnp.zeros_like, updates)), chosen(taken, skipped)


@shared_doc(InitialHess)
def initial_hess(gradients: Iterable[Any], floor: float = InitialHess().floor) -> Any:
    """It is an argument of :func:`ivon`.

    As in::

        hess_init = initial_hess(jax.grad(loss)(params, batch) for batch in batches)
        optimizer = ivon(ess=len(dataset), hess_init=hess_init)

    It is called outside of ``jit``.

    :param gradients: of a minibatch each, of the mean over its examples; pytrees.
    :return: a pytree like the weights, in float32 at least.
    :raises ValueError: without gradients, if they are all zero, or not finite.
    """
    total, count = None, 0
    for gradient in gradients:
        square = jax.tree.map(lambda g: jnp.square(g.astype(_state_dtype(g))), gradient)
        total = square if total is None else jax.tree.map(jnp.add, total, square)
        count += 1
    leaves, tree = jax.tree.flatten(total)
    squares = [leaf / count for leaf in leaves]
    return jax.tree.unflatten(tree, InitialHess(floor).of_squares(squares))


def _like(hess_init: Any, params: Any) -> Any:
    """``hess_init`` for these weights.

    :raises ValueError: if it is of another structure, or shape.
    """
    if any(map(_is_masked, jax.tree.leaves(params, is_leaf=_is_masked))):
        hess_init = _aligned(hess_init, params)
    shapes, mine = (jax.tree.map(lambda x: jnp.shape(x), tree) for tree in (params, hess_init))
    if shapes != mine:
        raise ValueError(f"hess_init needs the shapes of the weights, {shapes}, got {mine}.")
    return jax.tree.map(lambda x, h: jnp.asarray(h, _state_dtype(x)), params, hess_init)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _aligned(tree: Any, like: Any) -> Any:
    """A tree as another one has its leaves: without those that ``optax.masked`` or
    ``multi_transform`` leave out, and in the containers of the other, such as flax's.
    """
    if jax.tree.structure(tree) == jax.tree.structure(like):  # type: ignore[operator]
        return tree
    parts, structure = jax.tree.flatten(like, is_leaf=_is_masked)
    if any(map(_is_masked, parts)):
        return jax.tree.map(
            lambda one, part: one if _is_masked(one) else part, like, tree, is_leaf=_is_masked
        )
    mine = jax.tree.leaves(tree, is_leaf=_is_masked)
    if any(map(_is_masked, mine)):
        return tree
    shapes = [(jnp.shape(x), jnp.shape(y)) for x, y in zip(mine, parts, strict=False)]
    least = [min(len(x), len(y)) for x, y in shapes]  # of weights; some have draws or examples
    ends = zip(shapes, least, strict=True)
    if len(mine) == len(parts) and all(x[len(x) - n :] == y[len(y) - n :] for (x, y), n in ends):
        return jax.tree.unflatten(structure, mine)
    return tree  # of other weights, which JAX will refuse


def _state_dtype(weight: Any) -> Any:
    return jnp.promote_types(weight.dtype, jnp.float32)


def _own(state: Any) -> IvonState:
    """The state of the rule, in that of whatever is around it.

    :raises ValueError: if there is none.
    """
    for one in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, IvonState)):
        if isinstance(one, IvonState):
            return one
    raise ValueError("sample needs the state of ivon or vogn, of its init or update.")
