"""A rule as an optax transformation: samples, steps, and what masks leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ngvi._door import door
from ngvi._warn import warn
from ngvi.errors import check_count, check_function, check_key, step_size_at
from ngvi.networks.equations import IvonEquations, check_hess_init, check_ivon
from ngvi.networks.optax.low_rank import joined, precision, split

Schedule = Callable[[jax.Array], jax.Array]


class IvonState(NamedTuple):
    """State of IVON, VOGN and SLANG; of half-precision weights in float32."""

    count: jax.Array  # type: ignore[assignment]  #: Steps taken.
    num_skipped: jax.Array  #: Steps not taken because something was not finite.
    momentum: Any  #: ``g``, a pytree like the weights.
    hess: Any  #: ``h``.
    ess: jax.Array  #: With the next what a sample needs of the rule.
    weight_decay: jax.Array
    #: ``U`` of SLANG, a pytree whose leaves have an axis of the rank before those of a weight.
    factor: Any = None


class IvonTransformation(optax.GradientTransformationExtraArgs):
    """``init`` and ``update`` of an optax transformation, and ``sample``."""

    def sample(self, key: jax.Array, params: Any, state: Any, num_draws: int | None = None) -> Any:
        """Call :func:`ngvi.optax.sample`."""
        return sample(state, key, params, num_draws)


def transformation(
    of: type[IvonEquations],
    step_size: float | Schedule,
    axis_name: Any,
    loop: type[Loop] | None = None,
    **options: Any,
) -> IvonTransformation:
    """Return the functions of a rule with these options.

    :param loop: what makes its steps.
    """
    hess_init = options.pop("hess_init")
    values = jax.tree.leaves(hess_init)
    is_tree = len(values) > 1 or any(getattr(x, "ndim", 0) for x in values)
    # What optax injects is made inside of jit, where only numpy computes with constants.
    number = check_hess_init(list(map(np.asarray, values))) if is_tree else hess_init
    equations = check_ivon(step_size, "step_size", of, hess_init=number, **options)
    own = (loop or Loop)(equations, step_size, hess_init if is_tree else None, axis_name)
    return IvonTransformation(own.init, own.update)


@door
def sample(state: Any, key: jax.Array, params: Any, num_draws: int | None = None) -> Any:
    """Draw weights from the posterior, given the state of ``ivon`` or a transformation around it.

    >>> import jax, jax.numpy as jnp, optax
    >>> from ngvi.optax import ivon, sample
    >>> tx, params = optax.chain(optax.clip_by_global_norm(1.0), ivon(ess=50)), jnp.zeros(3)
    >>> sample(tx.init(params), jax.random.key(0), params, num_draws=7).shape
    (7, 3)

    :param state: the state of ``ivon``, ``vogn`` or ``slang``, or of a transformation that contains
        one, such as ``optax.chain`` or ``optax.inject_hyperparams``.
    :param key: a JAX random key.
    :param params: the posterior's mean.
    :param num_draws: the length of a leading axis of each leaf; None for one draw without it.
    :return: a pytree like the weights. What ``optax.masked`` leaves out is as in ``params``.
    :raises TypeError: if ``key`` is not such a key.
    :raises ValueError: without such a state, or with two.
    """
    draws = () if num_draws is None else (check_count(num_draws, "num_draws"),)
    own = own_state(state)
    own = own._replace(hess=aligned(own.hess, params))
    noise = iter(deviations(own, check_key(key, "key"), params, draws))

    def of_part(of: Any, means: Any) -> Any:
        if not is_masked(of):
            return (means + next(noise)).astype(means.dtype)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (*draws, *jnp.shape(x))), means)

    tree: Any
    hess, tree = jax.tree.flatten(own.hess, is_leaf=is_masked)
    pairs = zip(hess, tree.flatten_up_to(params), strict=True)
    return jax.tree.unflatten(tree, [of_part(*pair) for pair in pairs])


@door
def predict(
    network: Callable[[Any, Any], Any],
    x: Any,
    n: int = 100,
    *,
    state: Any,
    key: jax.Array,
    params: Any,
) -> Any:
    """Return the outputs of a network for inputs, at draws of its weights from the posterior.

    It takes ``n`` calls of the network, one after another.

    >>> import jax, jax.numpy as jnp
    >>> from ngvi.optax import ivon, predict
    >>> params = jnp.zeros((3, 2))
    >>> of = {"state": ivon(ess=50).init(params), "key": jax.random.key(0), "params": params}
    >>> predict(lambda weights, x: x @ weights, jnp.ones((5, 3)), 7, **of).shape
    (7, 5, 2)

    :param network: a function of weights and inputs, such as flax's ``network.apply``.
    :param x: the inputs of the network.
    :param n: the number of draws.
    :param state: as for :func:`sample`, like ``key`` and ``params``.
    :return: outputs with a leading axis of draws.
    :raises TypeError: as :func:`sample`, also for ``ValueError``.
    """
    check_function(network, "network", "network.apply, of weights and inputs")
    keys = jax.random.split(check_key(key, "key"), check_count(n, "n"))
    return jax.lax.map(lambda key: network(sample(state, key, params), x), keys)


def deviations(state: Any, key: jax.Array, params: Any, draws: tuple[int, ...]) -> list[jax.Array]:
    """Draw the differences from their mean of those weights that a rule moves.

    :param draws: axes before those of the weights.
    """
    if state.factor is not None:
        factor, hess = jax.tree.leaves(aligned(state.factor, params)), jax.tree.leaves(state.hess)
        whole = precision(joined(hess), factor, state.weight_decay)
        normal = jax.random.normal(key, (*draws, whole.dim), whole.loc.dtype)
        return split(whole.sample(normal) * state.ess**-0.5, hess)
    scale = IvonEquations(state.ess, state.weight_decay).scale
    tree: Any
    hess, tree = jax.tree.flatten(state.hess, is_leaf=is_masked)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))
    pairs = zip(tree.flatten_up_to(keys), hess, strict=True)
    moved = [(key, h) for key, h in pairs if not is_masked(h)]
    return [scale(h) * jax.random.normal(key, (*draws, *h.shape), h.dtype) for key, h in moved]


class Loop(NamedTuple):
    """The functions of an :class:`IvonTransformation`."""

    equations: IvonEquations
    step_size: float | Schedule
    hess_init: Any  #: A pytree; None for the equations' number.
    axis_name: Any

    def init(self, params: Any) -> IvonState:
        if any(leaf.dtype in (jnp.float16, jnp.bfloat16) for leaf in jax.tree.leaves(params)):
            warn(
                "Half-precision weights round small steps and samples away: keep the weights in "
                "float32, and cast a sample to half precision in the loss."
            )

        def full(value: float) -> Any:
            return jax.tree.map(lambda x: jnp.full(x.shape, value, state_dtype(x)), params)

        zero = jnp.zeros((), jnp.int32)
        is_tree = self.hess_init is not None
        hess = _like(self.hess_init, params) if is_tree else full(self.equations.hess_init)
        return IvonState(zero, zero, full(0.0), hess, *self.of_sample(hess))

    def of_sample(self, hess: Any) -> tuple[jax.Array, jax.Array]:
        """``ess`` and ``weight_decay`` in the precision of a curvature."""
        dtype = jnp.result_type(*jax.tree.leaves(hess)) if jax.tree.leaves(hess) else jnp.float32
        rule = self.equations
        return jnp.asarray(rule.ess, dtype), jnp.asarray(rule.weight_decay, dtype)

    def update(
        self, gradients: Any, state: Any, params: Any = None, *, sample: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        if params is None or sample is None or sample is params:
            raise ValueError(
                f"{self.equations.rule} needs the mean of the weights and the sample at which the "
                "gradient was taken: weights = tx.sample(key, params, state), gradients at "
                "weights, then tx.update(gradients, state, params, sample=weights)."
            )
        alpha = step_size_at(self.step_size, state.count)
        updates, taken = self.moved(gradients, state, params, aligned(sample, gradients), alpha)
        # Of the state what follows from the gradients.
        leaves = jax.tree.leaves((updates, tuple(taken)[3:]))
        finite = jnp.isfinite(sum(jnp.sum(0 * leaf) for leaf in leaves))

        def chosen(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)

        skipped = state._replace(num_skipped=state.num_skipped + 1)
        return chosen(updates, jax.tree.map(jnp.zeros_like, updates)), chosen(taken, skipped)

    def moved(
        self, gradients: Any, state: Any, params: Any, sample: Any, alpha: Any
    ) -> tuple[Any, Any]:
        """Return the updates of the mean, and the state after a step."""
        rule, count = self.equations, state.count + 1

        def moved(
            gradient: jax.Array, at: jax.Array, mean: jax.Array, momentum: Any, hess: Any
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            gradient = gradient.astype(hess.dtype)
            check_examples(rule, gradient, at, mean)
            product = gradient * (gradient if rule.of_examples else at.astype(hess.dtype) - mean)
            axes = tuple(range(gradient.ndim - mean.ndim))
            gradient, product = gradient.mean(axes), product.mean(axes)
            if self.axis_name is not None:
                gradient, product = jax.lax.pmean((gradient, product), self.axis_name)
            momentum = rule.new_momentum(momentum, rule.slope(gradient, mean))
            hess = rule.new_hess(hess, product)
            # A schedule's number may be wider than the weights are.
            step = rule.change(mean, momentum, hess, alpha, count.astype(hess.dtype))
            return step.astype(mean.dtype), momentum, hess

        results = jax.tree.map(moved, gradients, sample, params, state.momentum, state.hess)
        updates, momentum, hess = jax.tree.transpose(
            jax.tree.structure(params), jax.tree.structure((0, 0, 0)), results
        )
        new = IvonState(count, state.num_skipped, momentum, hess, *self.of_sample(hess))
        return updates, new


def check_examples(
    rule: IvonEquations, gradient: jax.Array, at: jax.Array, mean: jax.Array
) -> None:
    """Refuse the gradient of a minibatch where a rule needs those of its examples."""
    if rule.of_examples and gradient.ndim != at.ndim + 1:
        raise ValueError(
            f"{rule.rule} needs the gradient of each example, with an axis of examples before "
            "those of the weights: jax.vmap(jax.grad(loss), (None, 0))(weights, batch). One is of "
            f"shape {gradient.shape} for weights of {mean.shape}."
        )


def _like(hess_init: Any, params: Any) -> Any:
    """``hess_init`` for these weights.

    :raises ValueError: if it is of another structure, or shape.
    """
    if any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked))):
        hess_init = aligned(hess_init, params)
    shapes, mine = (jax.tree.map(lambda x: jnp.shape(x), tree) for tree in (params, hess_init))
    if shapes != mine:
        raise ValueError(f"hess_init needs the shapes of the weights, {shapes}, got {mine}.")
    return jax.tree.map(lambda x, h: jnp.asarray(h, state_dtype(x)), params, hess_init)


def is_masked(node: Any) -> bool:
    """Return whether ``optax.masked`` leaves something out there."""
    return isinstance(node, optax.MaskedNode)


def aligned(tree: Any, like: Any) -> Any:
    """Give a tree the structure of another one.

    Leaves that ``optax.masked`` or ``multi_transform`` leave out go, and containers are those of
    the other, such as flax's.
    """
    if jax.tree.structure(tree) == jax.tree.structure(like):  # type: ignore[operator]
        return tree
    parts, structure = jax.tree.flatten(like, is_leaf=is_masked)
    if any(map(is_masked, parts)):
        return jax.tree.map(
            lambda one, part: one if is_masked(one) else part, like, tree, is_leaf=is_masked
        )
    mine = jax.tree.leaves(tree, is_leaf=is_masked)
    if any(map(is_masked, mine)):
        return tree
    shapes = [(jnp.shape(x), jnp.shape(y)) for x, y in zip(mine, parts, strict=False)]
    least = [min(len(x), len(y)) for x, y in shapes]  # of weights; some have draws or examples
    ends = zip(shapes, least, strict=True)
    if len(mine) == len(parts) and all(x[len(x) - n :] == y[len(y) - n :] for (x, y), n in ends):
        return jax.tree.unflatten(structure, mine)
    return tree  # of other weights, which JAX will refuse


def state_dtype(weight: Any) -> Any:
    """Return the dtype of a weight's state: float32 at least."""
    return jnp.promote_types(jnp.result_type(weight), jnp.float32)


def own_state(state: Any) -> Any:
    """Return the state of the rule, in that of whatever is around it.

    :raises ValueError: if there is none, or if there are two.
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, IvonState))
    found = [one for one in leaves if isinstance(one, IvonState)]
    if len(found) != 1:
        number = f"{len(found)}, each of its own weights" if found else "none"
        raise ValueError(
            "sample needs the state of one ivon, vogn or slang, of its init or update, and has "
            f"{number}. It is called tx.sample(key, params, state), or sample(state, key, params)."
        )
    return found[0]
