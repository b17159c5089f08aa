"""A rule as a ``torch.optim.Optimizer``.

What all natural-gradient optimisers share:

- families move by their own maps (``retract``, ``natural_step``), and stay Gaussians;
- a step with a gradient or a result that is not finite is not taken. Parameters and state
  stay as they are (or return to an earlier point, if the rule can
  ``recover``; it gives such a result to take a step back), and
  ``num_skipped`` counts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ngvi._warn import warn
from ngvi.families.direction import Families, values
from ngvi.optim.rule import Rule
from ngvi.optim.with_conjugate import WithConjugate, parted, with_conjugate
from pyro_ngvi.families.coordinates import Coordinate, coordinate_of, families_in
from pyro_ngvi.host import FailedError, label
from pyro_ngvi.optim.algebra import Algebra, algebra


class JointState(NamedTuple):
    """State of families that move together."""

    count: int  # type: ignore[assignment]  #: steps taken
    num_skipped: int  #: steps not taken, or taken back
    rule: Any  #: state of the natural-gradient rule


class JointOptimizer(torch.optim.Optimizer):
    """A torch optimiser that moves whole families by a rule, which a subclass names.

    Every parameter is a coordinate of a family, marked as such by the guide, with the natural
    gradient of the loss as its ``grad``. Each has a parameter group of its own, so that torch
    schedulers and per-parameter options work as usual. All families that have gradients move
    together, in one step of the rule.

    :param params: tensors, or groups of them, as in ``torch.optim``.
    :param options: options of every group, ``lr`` and ``momentum`` among them.
    :ivar states: what is remembered, by the names of the posteriors that move together.
    :ivar was_taken: whether the last step was taken.
    :raises ValueError: if an option is unknown or out of range, or if a tensor is not a
        coordinate of a family.
    """

    #: Default options of every coordinate, by name.
    default_options: ClassVar[dict[str, Any]]
    #: Refuses values out of range; takes all options, in this order.
    check: ClassVar[Callable[..., Any]]
    #: The rule of what it computes with and these options.
    rule: ClassVar[Callable[..., Rule]]
    #: Options that may differ from coordinate to coordinate; of the others there is one.
    per_coordinate: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(self, params: Iterable, **options: Any) -> None:
        self.check_options(options)
        self.states: dict[tuple[str, ...], JointState] = {}
        self.was_taken = True
        super().__init__(params, {**self.default_options, **options})

    # -- options ----------------------------------------------------------------------

    @classmethod
    def group_options(cls, coordinate: Coordinate, options: dict[str, Any]) -> dict[str, Any]:
        """The options of one coordinate's group; rules may scale ``lr`` by coordinate."""
        return options

    @classmethod
    def check_options(cls, options: dict[str, Any]) -> None:
        """Refuse unknown options and values out of range.

        :raises TypeError: if they are no dictionary.
        :raises ValueError: naming the option.
        """
        rule = cls.__name__.removesuffix("Optimizer")
        if not isinstance(options, dict):
            raise TypeError(
                f"{rule} takes its options in a dictionary, {rule}({{'lr': 0.1}}), got {options!r}."
            )
        for name in options:
            if name not in cls.default_options:
                known = ", ".join(cls.default_options)
                raise ValueError(f"{rule} has no option {name!r}, only {known}.")
        cls.check(*{**cls.default_options, **options}.values())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add coordinates, a group for each.

        :raises ValueError: if a tensor is not a coordinate of a family.
        """
        params = param_group["params"]
        options = {key: value for key, value in param_group.items() if key != "params"}
        for param in [params] if isinstance(params, Tensor) else list(params):
            coordinate = coordinate_of(param)
            if coordinate is None:
                raise ValueError(
                    f"{type(self).__name__} moves the posterior of a NaturalGaussianGuide, "
                    "and a tensor it was given is no part of one. Give it guide.parameters() "
                    "after the guide's first call, and other parameters to another optimiser."
                )
            group = self.group_options(coordinate, {**self.defaults, **options})
            super().add_param_group({"params": [param], **group})

    def _rule(self, families: Families, on: Algebra = algebra) -> WithConjugate:
        """The rule with the present options of these families."""
        own = {group["params"][0]: group for group in self.param_groups}
        # Step sizes by coordinate are those of Gaussians.
        families = parted(families)[0] or families
        groups = [[own[param] for param in family.coordinates().values()] for family in families]
        return with_conjugate(
            self.rule(on, *(self._option(o, groups) for o in self.default_options))
        )

    def _option(self, name: str, groups: list[list[dict[str, Any]]]) -> Any:
        """What all coordinates have, or what each has.

        :raises ValueError: if they differ, and the rule has one for all of them.
        """
        first = groups[0][0][name]
        if all(group[name] == first for family in groups for group in family):
            return first
        by_coordinate = [
            {coordinate_of(group["params"][0]).field: group[name] for group in family}
            for family in groups
        ]
        numbers = [value for sizes in by_coordinate for value in sizes.values()]
        if name in self.per_coordinate and not any(isinstance(x, str) for x in numbers):
            return by_coordinate
        raise ValueError(
            f"{type(self).__name__} moves all coordinates by one {name!r}, and was given "
            f"several, {', '.join(map(repr, dict.fromkeys(numbers)))}. Let the callable of "
            f"options return the same {name!r} for all of them."
        )

    # -- steps ------------------------------------------------------------------------

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, others: Iterable[Tensor] = ()
    ) -> Any:
        """Move every family whose coordinates have gradients; ``was_taken`` says whether.

        :param closure: re-evaluates the loss, as in ``torch.optim``.
        :param others: what must be finite besides, for the step to be taken.
        :return: the closure's loss.
        :raises ValueError: if the very first gradient is not finite, or if coordinates differ
            in an option of which the rule has one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params = [param for param in self._params() if param.grad is not None]
        families = families_in(params)
        if not families:
            return loss
        gradients = [family.map(lambda param: param.grad) for family in families]
        extremes = _extremes([*values(gradients), *others])
        on, here = Algebra(_finite(extremes)), [family.detach() for family in families]
        rule, owners = self._rule(families, on), _owners(params)
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
        return loss

    def _skip(self, owners: tuple[str, ...], state: JointState, families: Families) -> None:
        """Count a step that is not taken.

        :raises ValueError: if no step has been taken at all.
        """
        if not state.count:
            raise ValueError(
                f"The first gradient of {', '.join(owners)} is not finite: the bound is not "
                "finite where the guide starts. Start elsewhere (init_loc_fn=), narrower "
                "(init_scale=), or check the data for values outside the likelihood's support, and "
                "what computes in float16 for numbers beyond 65,504."
            )
        here = [family.detach() for family in families]
        earlier, rule_state = self._rule(families).recover(state.rule, here)
        self.states[owners] = JointState(state.count, state.num_skipped + 1, rule_state)
        if earlier is not here:
            _copy(earlier, families)
        warn(
            f"A step of {', '.join(owners)} was skipped: a gradient or the step's result is not "
            "finite, or the step before led far off. Parameters keep their last good value."
        )

    def recovers(self, params: Iterable[Tensor]) -> bool:
        """Whether a step that leads to where nothing is finite is taken back."""
        return self._rule(families_in(list(params))).recovers

    def count(self, params: Iterable[Tensor]) -> int:
        """Steps taken by the families whose coordinates these are, together."""
        state = self.states.get(_owners(params))
        return 0 if state is None else state.count

    @property
    def num_skipped(self) -> int:
        """Steps not taken, or taken back: something was not finite, or led far off."""
        return max((state.num_skipped for state in self.states.values()), default=0)

    # -- state ------------------------------------------------------------------------

    def joint_state(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """What is remembered, numbers and tensors, by where they are in :attr:`states`."""
        return {owners: _saved(state) for owners, state in self.states.items()}

    @torch.no_grad()
    def load_joint_state(self, saved: dict[tuple[str, ...], dict[str, Any]]) -> None:
        """Continue from a :meth:`joint_state`, of those families that are here.

        :raises ValueError: for the state of another model, naming the parameter.
        """
        params = self._params()
        known = dict(zip(_owners(params), families_in(params), strict=True))
        for owners, entry in saved.items():
            if all(owner in known for owner in owners):
                families = [known[owner] for owner in owners]
                first = self._rule(families).init([family.detach() for family in families])
                self.states[owners] = _restored(JointState(0, 0, first), entry, owners)

    def state_dict(self) -> dict[str, Any]:
        """As in ``torch.optim``, with the :meth:`joint_state`."""
        return {**super().state_dict(), "joint": self.joint_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "joint"})
        self.load_joint_state(state_dict["joint"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "states": self.states, "was_taken": self.was_taken}

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]


def _extremes(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Of each tensor two numbers, which are not finite if one of its entries is not."""
    return [torch.stack(torch.aminmax(tensor)) for tensor in tensors if tensor.numel()]


def _finite(extremes: list[Tensor]) -> Tensor:
    """Whether all of them are finite, on the device of the first."""
    return torch.stack([each.to(extremes[0]) for each in extremes]).isfinite().all()


def _owners(params: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(sorted({coordinate_of(param).owner for param in params}))


def _copy(new: Families, families: Families) -> None:
    for family, value in zip(families, new, strict=True):
        family.map(Tensor.copy_, value)


# -- what is saved --------------------------------------------------------------------


def _saved(state: JointState) -> dict[str, Any]:
    entry: dict[str, Any] = {}

    def save(path: str, leaf: Any, family: int | None) -> None:
        entry[path] = leaf.clone() if isinstance(leaf, Tensor) else leaf

    _mapped(save, state)
    return entry


def _restored(like: JointState, entry: dict[str, Any], owners: tuple[str, ...]) -> JointState:
    """A state of the same structure with the numbers of a saved one.

    :raises ValueError: naming a coordinate whose shape is another one.
    """

    def restored(path: str, leaf: Any, family: int | None) -> Any:
        found = entry.get(path)
        if family is not None and (found is None or found.shape != leaf.shape):
            kind = "missing" if found is None else f"of shape {tuple(found.shape)}"
            field, names = path.rpartition(".")[2], owners[family:] or owners
            raise ValueError(
                f"The optimiser's state is of another model or guide: of '{names[0]}.{field}' it "
                f"is {kind}, and the parameter here is of shape {tuple(leaf.shape)}."
            )
        if path not in entry:
            raise ValueError(
                f"The state is of another optimiser, without {path.lstrip('.')}: go on with the "
                "one that made it."
            )
        if isinstance(leaf, Tensor):
            return found.to(leaf, copy=True)
        return float(found) if isinstance(found, Tensor) else found

    return _mapped(restored, like)


def _mapped(function: Callable[..., Any], state: Any, path: str = "") -> Any:
    """A state with a function of each leaf in its place.

    :param function: of where the leaf is, the leaf, and of a coordinate the number of its family.
    """
    if isinstance(state, list):
        return [
            dataclasses.replace(
                family,
                **{k: function(f"{path}.{i}.{k}", v, i) for k, v in family.coordinates().items()},
            )
            for i, family in enumerate(state)
        ]
    if isinstance(state, tuple):
        names = getattr(state, "_fields", range(len(state)))
        pairs = zip(names, state, strict=True)
        parts = [_mapped(function, part, f"{path}.{name}") for name, part in pairs]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return function(path, state, None)
