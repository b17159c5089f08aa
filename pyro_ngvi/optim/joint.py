"""The joint step of all natural parameters by a rule.

What all natural-gradient optimisers share:

- families move by their own maps (``retract``, ``natural_step``), and stay Gaussians;
- a step with a gradient or a result that is not finite is not taken. Parameters and state
  stay as they are (or return to an earlier point, if the rule can
  ``recover``; it gives such a result to take a step back), and
  ``num_skipped`` counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ngvi._warn import warn
from ngvi.families.direction import Families, values
from ngvi.optim.rule import SKIPPED, Rule
from ngvi.optim.with_conjugate import WithConjugate, with_conjugate
from pyro_ngvi.families.coordinates import coordinate_of, families_in
from pyro_ngvi.host import FailedError, label
from pyro_ngvi.optim.algebra import Algebra, algebra


class JointState(NamedTuple):
    """State of families that move together."""

    count: int  # type: ignore[assignment]  #: Steps taken.
    num_skipped: int  #: Steps not taken, or taken back.
    rule: Any  #: State of the natural-gradient rule.


class Joint:
    """Families that move together by a rule, and what the rule remembers of them.

    Every tensor is a coordinate of a family, marked as such by the guide, with the natural gradient
    of the loss as its ``grad``. All families that have gradients move in one step.

    :param tensors: the coordinates by their names, of which no two are the same.
    :param rule_on: return the rule, given what it computes with.
    :ivar states: what is remembered, by the names of the posteriors that move together.
    :ivar was_taken: whether the last step was taken.
    """

    def __init__(self, tensors: dict[str, Tensor], rule_on: Callable[[Algebra], Rule]) -> None:
        self.tensors, self._rule_on = tensors, rule_on
        self.states: dict[tuple[str, ...], JointState] = {}
        self.was_taken = True

    def _rule(self, on: Algebra = algebra) -> WithConjugate:
        return with_conjugate(self._rule_on(on))

    # -- steps ------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, others: Iterable[Tensor]) -> None:
        """Move every family whose coordinates have gradients; ``was_taken`` says whether.

        :param others: what must be finite besides, for the step to be taken.
        :raises ValueError: if the very first gradient is not finite.
        """
        params = [param for param in self.tensors.values() if param.grad is not None]
        families = families_in(params)
        if not families:
            return
        gradients = [family.map(lambda param: param.grad) for family in families]
        extremes = _extremes([*values(gradients), *others])
        on, here = Algebra(_finite(extremes)), [family.detach() for family in families]
        rule, owners = self._rule(on), _owners(params)
        state = self.states.get(owners)
        if state is None:
            state = JointState(0, 0, rule.init(here))
        try:
            with label("rule"):
                moved, rule_state = rule.step(gradients, state.rule, here, state.count)
            self.was_taken = bool(_finite([*extremes, *_extremes(values(moved))]))
        except FailedError:
            self.was_taken = False
        if self.was_taken:
            _copy(moved, families)
            self.states[owners] = JointState(state.count + 1, state.num_skipped, rule_state)
        else:
            self._skip(owners, state, families)

    def _skip(self, owners: tuple[str, ...], state: JointState, families: Families) -> None:
        """Count a step that is not taken.

        :raises ValueError: if no step has been taken at all.
        """
        if not state.count:
            raise ValueError(
                f"The first gradient of {', '.join(owners)} is not finite where the guide starts. "
                "Start elsewhere (init_loc_fn=), narrower (init_scale=), or check the data for "
                "values outside the likelihood's support, and float16 for numbers beyond 65,504."
            )
        here = [family.detach() for family in families]
        earlier, rule_state = self._rule().recover(state.rule, here)
        self.states[owners] = JointState(state.count, state.num_skipped + 1, rule_state)
        if earlier is not here:
            _copy(earlier, families)
        warn(f"A step of {', '.join(owners)} {SKIPPED}")

    @property
    def recovers(self) -> bool:
        """Return whether a step that leads to where nothing is finite is taken back."""
        return self._rule().recovers

    @property
    def num_skipped(self) -> int:
        """Steps not taken, or taken back: something was not finite, or led far off."""
        return max((state.num_skipped for state in self.states.values()), default=0)

    # -- state ------------------------------------------------------------------------

    def saved(self) -> dict[tuple[str, ...], list]:
        """Return what is remembered, numbers and tensors, by where they are in :attr:`states`."""
        saved: dict[tuple[str, ...], list] = {}
        for owners, state in self.states.items():
            leaves = saved[owners] = []
            _mapped(leaves.append, state)
        return {
            k: [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            for k, leaves in saved.items()
        }

    @torch.no_grad()
    def load(self, saved: dict[tuple[str, ...], list]) -> None:
        """Continue from what was :meth:`saved`, of those families that are here.

        :raises ValueError: for the state of another model, naming the parameter.
        """
        params = list(self.tensors.values())
        known = dict(zip(_owners(params), families_in(params), strict=True))
        for owners, leaves in saved.items():
            if all(owner in known for owner in owners):
                families = [known[owner] for owner in owners]
                first = self._rule().init([family.detach() for family in families])
                self.states[owners] = _restored(JointState(0, 0, first), leaves, owners)


def _extremes(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return two numbers of each tensor, not finite if one of its entries is not."""
    return [torch.stack(torch.aminmax(tensor)) for tensor in tensors if tensor.numel()]


def _finite(extremes: list[Tensor]) -> Tensor:
    """Return whether all of them are finite, on the device of the first."""
    return torch.stack([each.to(extremes[0]) for each in extremes]).isfinite().all()


def _owners(params: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(sorted({coordinate_of(param).owner for param in params}))


def _copy(new: Families, families: Families) -> None:
    for family, value in zip(families, new, strict=True):
        family.map(Tensor.copy_, value)


# -- what is saved --------------------------------------------------------------------


def _restored(like: JointState, leaves: list, owners: tuple[str, ...]) -> JointState:
    """Return a state of the same structure with the numbers of a saved one.

    :raises ValueError: if a tensor has another shape, or if there are more or fewer leaves.
    """
    rest = iter(leaves)

    def restored(leaf: Any) -> Any:
        found = next(rest, None)
        is_lost = isinstance(leaf, Tensor) and not isinstance(found, Tensor)
        if is_lost or (leaf is None) != (found is None):
            raise ValueError("The state is of another optimiser: go on with the one that made it.")
        if not isinstance(leaf, Tensor):
            return float(found) if isinstance(found, Tensor) else found  # not read yet
        if leaf.numel() and found.shape != leaf.shape:  # memories grow from nothing
            raise ValueError(
                "The optimiser's state is of another model or guide: of "
                f"{', '.join(map(repr, owners))} it has a tensor of shape {tuple(found.shape)}, "
                f"and here one is of shape {tuple(leaf.shape)}."
            )
        return found.to(leaf, copy=True)

    return _mapped(restored, like)


def _mapped(function: Callable[[Any], Any], state: Any) -> Any:
    """Return a state with a function of each leaf in its place."""
    if isinstance(state, list):
        return [family.map(function) for family in state]
    if isinstance(state, tuple):
        parts = [_mapped(function, part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return function(state)
