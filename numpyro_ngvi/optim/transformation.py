"""Natural-gradient optimisers as optax transformations; imported with the first one made."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ngvi.families import direction
from ngvi.optim.adaptive_adam import AdamState, AdaptiveAdamRule
from ngvi.optim.rule import Rule
from ngvi.optim.snngm import AdaptiveSnngmRule
from ngvi.optim.with_conjugate import WithConjugate, with_conjugate
from numpyro_ngvi.families.coordinates import (
    families_in,
    is_family,
    model_parameter_mask,
    replace_families,
)
from numpyro_ngvi.linalg.matrices import matrices
from numpyro_ngvi.optim.algebra import algebra
from numpyro_ngvi.optim.state import JointState

RULE = AdaptiveAdamRule()


class AdaptiveState(NamedTuple):
    """State of the transformation."""

    count: jax.Array  # type: ignore[assignment]  #: Steps taken.
    tensors: list[AdamState]  #: States in the order of the parameters' leaves.


def adaptive_adam() -> optax.GradientTransformation:
    """Return an optax transformation without an option."""
    return optax.GradientTransformation(_init_adam, _update_adam)


def _init_adam(params: Any) -> AdaptiveState:
    states = [RULE.start(jnp.asarray(leaf)) for leaf in jax.tree.leaves(params)]
    return AdaptiveState(jnp.zeros((), jnp.int32), states)


def _update_adam(
    gradients: Any, state: AdaptiveState, params: Any = None
) -> tuple[Any, AdaptiveState]:
    leaves, tree = jax.tree.flatten(gradients)
    count = state.count + 1
    each = zip(leaves, jax.tree.leaves(params), state.tensors, strict=True)
    tensors = [RULE.advance(algebra, *one, count.astype(one[0].dtype)) for one in each]
    state = AdaptiveState(count, tensors)
    return jax.tree.unflatten(tree, _changes(state)), state


def recover_adam(like: Any, state: AdaptiveState) -> tuple[Any, AdaptiveState]:
    """Return the last step, taken back, and the state to continue from with a tenth of the rates.

    :param like: a pytree of the parameters' structure.
    """
    back = jax.tree.unflatten(jax.tree.structure(like), [-one for one in _changes(state)])
    return back, state._replace(tensors=[RULE.shortened(one) for one in state.tensors])


def _changes(state: AdaptiveState) -> list[jax.Array]:
    # Of a state without a step the mean is zero, and a count of one as good as any.
    count = jnp.maximum(state.count, 1)
    return [RULE.change(one, count.astype(one.rate.dtype)) for one in state.tensors]


class JointTransformation(optax.GradientTransformation):
    """An optax transformation of natural parameters.

    :ivar curvature: see :func:`~numpyro_ngvi.optim.joint.joint`.
    :ivar wanders: whether latents of subsampled plates make spreads of the others wander.
    """

    curvature: str | None
    wanders: bool


def transformation(rule: Rule, other: Any, name: str, curvature: str | None) -> JointTransformation:
    """Return the transformation of :func:`~numpyro_ngvi.optim.joint.joint`."""
    adapts = other is None
    other = adaptive_adam() if adapts else _as_optax(other)
    own = _Joint(with_conjugate(rule), other, adapts, name)
    made = JointTransformation(own.init, own.update)
    made.curvature = curvature
    made.wanders = isinstance(rule, AdaptiveSnngmRule)
    return made


class _Joint(NamedTuple):
    """Parts of a transformation; its methods pickle, where nested functions do not."""

    rule: WithConjugate
    other: optax.GradientTransformation
    adapts: bool  #: True if ``other`` is Adam whose rates adapt.
    name: str

    @property
    def of_model(self) -> optax.GradientTransformation:
        return optax.masked(self.other, model_parameter_mask)

    def init(self, params: Any) -> JointState:
        families = families_in(params)
        if not families:
            names = ", ".join(map(repr, params)) if isinstance(params, dict) else "its input"
            raise ValueError(
                f"{self.name} sees no natural parameters among {names}: use a "
                "NaturalGaussianGuide, or an optimiser such as numpyro.optim.Adam."
            )
        zero = jnp.asarray(np.int32(0))
        return JointState(zero, zero, self.rule.init(families), self.of_model.init(params))

    @jax.named_scope("rule")
    def update(
        self, gradients: Any, state: JointState, params: Any = None
    ) -> tuple[Any, JointState]:
        if params is None:
            raise ValueError(
                f"{self.name} needs the parameters: call update(grads, state, params)."
            )
        families, rule = families_in(params), self.rule
        try:
            moved, rule_state = rule.step(families_in(gradients), state.rule, families, state.count)
        except (AttributeError, TypeError, ValueError) as error:
            own = jax.eval_shape(self.init, params)
            kinds = [str(jax.tree.structure(one)) for one in (state, own)]
            if kinds[0] == kinds[1]:
                raise
            raise ValueError(
                f"{self.name} was given the state of another optimiser or of another model: go on "
                "with the one that made it, or begin with a new state, svi.init(...)."
            ) from error
        updates, other_state = gradients, state.other
        if any(jax.tree.leaves(model_parameter_mask(params))):
            updates, other_state = self.of_model.update(gradients, state.other, params)
        updates = replace_families(updates, direction.subtract(moved, families))
        proposal = JointState(state.count + 1, state.num_skipped, rule_state, other_state)
        stay, skipped = _back(rule, state, families, updates, self.adapts)
        finite = _all_finite(gradients, updates)
        choose = partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
        return choose(updates, stay), choose(proposal, skipped)


def _back(
    rule: WithConjugate, state: JointState, families: list, like: Any, adapts: bool
) -> tuple[Any, JointState]:
    """Return the updates and the state of a step that is not taken.

    :param like: a pytree of the parameters' structure.
    :param adapts: whether model parameters move by the Adam whose rates adapt.
    """
    stay = jax.tree.map(jnp.zeros_like, like)
    state = state._replace(num_skipped=state.num_skipped + 1)
    if not rule.recovers:
        return stay, state
    earlier, rule_state = rule.recover(state.rule, families)
    changes, state = direction.subtract(earlier, families), state._replace(rule=rule_state)
    if adapts:
        # Without its families, as optax.masked hands a tree on.
        masked = jax.tree.map(
            lambda node: optax.MaskedNode() if is_family(node) else node, like, is_leaf=is_family
        )
        back, inner = recover_adam(masked, state.other.inner_state)
        state = state._replace(other=optax.MaskedState(inner))
        stay = jax.tree.map(
            lambda one, zero: zero if _is_masked(one) else one, back, stay, is_leaf=_is_masked
        )
    return replace_families(stay, changes), state


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _all_finite(gradients: Any, updates: Any) -> jax.Array:
    # One sum of each pair, not one comparison per entry: NaN and infinities survive.
    sums = jax.tree.map(
        lambda one, other: matrices.total((0 * one + 0 * other).reshape(-1)), gradients, updates
    )
    return jnp.isfinite(sum(jax.tree.leaves(sums)))


def _as_optax(other: Any) -> optax.GradientTransformation:
    if hasattr(other, "init_fn") and hasattr(other, "get_params_fn"):
        return optax.GradientTransformation(other.init, partial(_update_of_numpyro, other))
    if not (hasattr(other, "init") and hasattr(other, "update")):
        raise TypeError(
            "other must be an optax transformation or a NumPyro optimiser, for parameters "
            f"that are not natural, got {other!r}."
        )
    return other


def _update_of_numpyro(
    optimiser: Any, gradients: Any, state: Any, params: Any = None
) -> tuple[Any, Any]:
    # A NumPyro optimiser keeps the parameters in its state; optax wants their change.
    old = optimiser.get_params(state)
    state = optimiser.update(gradients, state)
    return jax.tree.map(jnp.subtract, optimiser.get_params(state), old), state
