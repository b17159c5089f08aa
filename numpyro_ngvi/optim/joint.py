"""One update for all natural parameters together, an ordinary optimiser for the rest.

Every natural-gradient optimiser here is an optax transformation: a :class:`Rule` says how
the families of the parameter pytree move, and :func:`joint` supplies what they share:

- parameters that are not a family go to ``other``;
- families move by their own maps (``retract``, ``natural_step``), and stay Gaussians;
- a step with a gradient or a result that is not finite is not taken: parameters and state
  stay as they are (or return to an earlier point, if the rule can
  :meth:`~Recovering.recover`), and ``num_skipped`` counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.coordinates import (
    families_in,
    ordinary_mask,
    replace_families,
)

Families = list[Family]
Schedule = Callable[[jax.Array], jax.Array]


class Rule(Protocol):
    """How families move."""

    def init(self, families: Families) -> Any:
        """The rule's state: a pytree of arrays."""

    def step(
        self, gradients: Families, state: Any, families: Families, count: jax.Array
    ) -> tuple[Families, Any]:
        """The families after the step, and the new state.

        :param gradients: natural gradients of the loss.
        :param count: the number of steps taken so far.
        """


@runtime_checkable
class Recovering(Protocol):
    """A rule that knows where to go when something is not finite."""

    def recover(self, state: Any, families: Families) -> tuple[Families, Any]:
        """The families to continue from, and the state."""


class JointState(NamedTuple):
    """State of a natural-gradient optimiser."""

    count: jax.Array  #: steps taken
    num_skipped: jax.Array  #: steps not taken because something was not finite
    rule: Any  #: state of the natural-gradient rule
    other: Any  #: state of the optimiser of ordinary parameters


def joint(rule: Rule, other: Any, name: str) -> optax.GradientTransformation:
    """An optax transformation from a rule.

    :param rule: how families move.
    :param other: an optax transformation, or a NumPyro optimiser, for ordinary parameters.
    :param name: what error messages call the optimiser.
    """
    ordinary = optax.masked(_as_optax(other), ordinary_mask)

    def init(params: Any) -> JointState:
        families = families_in(params)
        if not families:
            raise ValueError(
                f"{name} sees no natural parameters among {_names(params)}. It moves the "
                "posterior of a NaturalGaussianGuide: use that guide, or an ordinary "
                "optimiser such as numpyro.optim.Adam."
            )
        zero = jnp.zeros((), jnp.int32)
        return JointState(zero, zero, rule.init(families), ordinary.init(params))

    def update(gradients: Any, state: JointState, params: Any = None) -> tuple[Any, JointState]:
        if params is None:
            raise ValueError(f"{name} needs the parameters: call update(grads, state, params).")
        families = families_in(params)
        moved, rule_state = rule.step(families_in(gradients), state.rule, families, state.count)
        updates, other_state = ordinary.update(gradients, state.other, params)
        updates = replace_families(updates, jax.tree.map(jnp.subtract, moved, families))
        proposal = JointState(state.count + 1, state.num_skipped, rule_state, other_state)
        skipped = state._replace(num_skipped=state.num_skipped + 1)
        stay = jax.tree.map(jnp.zeros_like, updates)
        if isinstance(rule, Recovering):
            earlier, rule_state = rule.recover(state.rule, families)
            stay = replace_families(stay, jax.tree.map(jnp.subtract, earlier, families))
            skipped = skipped._replace(rule=rule_state)
        finite = _all_finite(gradients) & _all_finite(updates)
        choose = partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
        return choose(updates, stay), choose(proposal, skipped)

    return optax.GradientTransformation(init, update)


def step_size_at(step_size: float | Schedule, count: jax.Array) -> jax.Array | float:
    """A constant step size, or the value of an optax schedule."""
    return step_size(count) if callable(step_size) else step_size


def check_step_size(step_size: float | Schedule, name: str = "step_size") -> float | Schedule:
    """``step_size``, if it is a positive number or a schedule.

    :raises ValueError: if it is not.
    """
    if not callable(step_size) and not step_size > 0:
        raise ValueError(f"{name} must be positive or a schedule, got {step_size}.")
    return step_size


def check_rho(rho: float | Schedule, name: str) -> float | Schedule:
    """``rho``, if it is a number in (0, 1] or a schedule.

    :raises ValueError: if it is not.
    """
    if not callable(rho) and not 0 < rho <= 1:
        raise ValueError(f"{name} must be in (0, 1] or a schedule, got {rho}.")
    return rho


def check_momentum(beta: float, name: str = "beta") -> float:
    """``beta``, if it is in [0, 1).

    :raises ValueError: if it is not.
    """
    if not 0 <= beta < 1:
        raise ValueError(f"{name} must be in [0, 1), got {beta}.")
    return beta


def check_positive(value: float, name: str) -> float:
    """``value``, if it is positive.

    :raises ValueError: if it is not.
    """
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}.")
    return value


def retract(families: Families, steps: Families) -> Families:
    """Every family at the end of its step."""
    return [family.retract(step) for family, step in zip(families, steps, strict=True)]


def zeros_like(families: Families) -> Families:
    """Families of zeros, to hold a momentum."""
    return jax.tree.map(jnp.zeros_like, families)


def joint_norm(families: Families) -> jax.Array:
    """Euclidean norm of the joint vector of all free coordinates."""
    leaves = jax.tree.leaves([family.free_coordinates() for family in families])
    norm = jnp.sqrt(_sum_of_squares(leaves))
    # One pass, unless squares have overflowed (of a float32, from 1e19 on) or vanished.
    info = jnp.finfo(norm.dtype)
    plain = (norm > info.tiny**0.25) & (norm < info.max)
    return jax.lax.cond(plain, lambda _: norm, _scaled_norm, leaves)


def _scaled_norm(leaves: list[jax.Array]) -> jax.Array:
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return unit * jnp.sqrt(sum(jnp.sum((leaf / unit) ** 2) for leaf in leaves))


def _sum_of_squares(leaves: list[jax.Array]) -> jax.Array:
    return sum(jnp.sum(leaf**2) for leaf in leaves)


def _all_finite(tree: Any) -> jax.Array:
    leaves = jax.tree.leaves(tree)

    def exact(_: Any) -> jax.Array:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    # The squares are those of the joint norm: no pass of their own. They may overflow.
    return jax.lax.cond(jnp.isfinite(_sum_of_squares(leaves)), lambda _: True, exact, None)


def _as_optax(other: Any) -> optax.GradientTransformation:
    if hasattr(other, "init_fn") and hasattr(other, "get_params_fn"):
        return _from_numpyro(other)
    if not (hasattr(other, "init") and hasattr(other, "update")):
        raise TypeError(
            "other must be an optax transformation or a NumPyro optimiser, for parameters "
            f"that are not natural, got {other!r}."
        )
    return other


def _from_numpyro(optimiser: Any) -> optax.GradientTransformation:
    # A NumPyro optimiser keeps the parameters in its state; optax wants their change.
    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        old = optimiser.get_params(state)
        state = optimiser.update(gradients, state)
        return jax.tree.map(jnp.subtract, optimiser.get_params(state), old), state

    return optax.GradientTransformation(optimiser.init, update)


def _names(params: Any) -> str:
    return ", ".join(repr(name) for name in params) if isinstance(params, dict) else "its input"
