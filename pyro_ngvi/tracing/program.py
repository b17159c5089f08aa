"""Lists of torch's operations: what a recording holds, and the program that two of them make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class NotReplayableError(Exception):
    """A function does what a list of operations does not say."""


@dataclasses.dataclass(frozen=True)
class Ref:
    """A tensor among those of a recording."""

    slot: int


@dataclasses.dataclass(frozen=True)
class Multiple:
    """A size that is a multiple of the number of rows."""

    times: int


@dataclasses.dataclass
class Operation:
    """An operation.

    :ivar args: its arguments, with :class:`Ref` in the place of tensors.
    :ivar outs: the slots of its results, None for what is no new tensor.
    :ivar is_many: whether there are several.
    :ivar has_effects: whether it does something besides.
    """

    op: Callable
    args: tuple
    kwargs: dict[str, Any]
    outs: list[int | None] = dataclasses.field(default_factory=list)
    is_many: bool = False
    has_effects: bool = False

    def refs(self) -> list[int]:
        """Return the slots of its arguments."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf.slot for leaf in leaves if type(leaf) is Ref]


@dataclasses.dataclass
class Recording:
    """A list of what one call of a function has done.

    :ivar num_rows: of its arguments.
    :ivar tensors: by slot.
    :ivar external: slots of tensors that the function has not made.
    :ivar leaves: those of them that may change.
    """

    num_rows: int
    tensors: list[Tensor] = dataclasses.field(default_factory=list)
    steps: list[Operation] = dataclasses.field(default_factory=list)
    inputs: list[int] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)
    external: list[int] = dataclasses.field(default_factory=list)
    leaves: set[int] = dataclasses.field(default_factory=set)


class Program:
    """A function that does what two recordings have in common.

    :raises NotReplayableError: if that is not all.
    """

    def __init__(self, one: Recording, other: Recording) -> None:
        kept = _common_tensors(one, other)
        self._versions = [(tensor, tensor._version) for tensor in kept]
        steps = _common_steps(one, other)
        self._inputs = [_kind(one.tensors[slot]) for slot in one.inputs]
        source, names = _Writer(one, steps).source()
        exec(compile(source, "<recorded operations>", "exec"), names)  # noqa: S102
        self._run = names["run"]
        # Rewriting is for what calls torch anew, such as a search of its own.
        is_whole = all(isinstance(step.op, torch._ops.OpOverload) for step in steps)
        self._alone = torch._C.DisableTorchFunction if is_whole else nullcontext

    def is_for(self, rows: Sequence[Tensor]) -> bool:
        """Tell whether it can take these, and the tensors that it has not made are as they were."""
        return all(tensor._version == version for tensor, version in self._versions) and (
            list(map(_kind, rows)) == self._inputs
        )

    @torch.no_grad()
    def __call__(self, *rows: Tensor) -> tuple[Tensor, ...]:
        with self._alone():
            return self._run(len(rows[0]), *(part.detach() for part in rows))


def _kind(tensor: Tensor) -> tuple:
    return tensor.shape[1:], tensor.dtype, tensor.device


# -- what two recordings have in common ---------------------------------------------------


def _common_tensors(one: Recording, other: Recording) -> list[Tensor]:
    """Tensors that neither has made, and that are to stay as they are."""
    if (one.external, one.inputs, one.outputs) != (other.external, other.inputs, other.outputs):
        raise NotReplayableError("other tensors")
    kept = []
    for slot in one.external:
        a, b = one.tensors[slot], other.tensors[slot]
        if a is b:
            if slot not in one.leaves:
                kept.append(a)
        elif _kind(a) != _kind(b) or not torch.equal(a, b):  # nor if NaN
            raise NotReplayableError("a tensor of other numbers")
    return kept


def _common_steps(one: Recording, other: Recording) -> list[Operation]:
    if len(one.steps) != len(other.steps):
        raise NotReplayableError("more operations")
    nums = one.num_rows, other.num_rows
    return [_common_step(*pair, nums) for pair in zip(one.steps, other.steps, strict=True)]


def _common_step(one: Operation, other: Operation, nums: tuple[int, int]) -> Operation:
    is_call = not isinstance(one.op, torch._ops.OpOverload)
    same_op = one.op is other.op or (is_call and type(one.op) is type(other.op))
    if not same_op or one.outs != other.outs:
        raise NotReplayableError(one.op, other.op)
    args = _common((one.args, one.kwargs), (other.args, other.kwargs), nums)
    return dataclasses.replace(one, args=args[0], kwargs=args[1])


def _common(one: Any, other: Any, nums: tuple[int, int]) -> Any:
    leaves, structure = pytree.tree_flatten(one)
    others, other_structure = pytree.tree_flatten(other)
    if structure != other_structure:
        raise NotReplayableError(one, other)
    pairs = zip(leaves, others, strict=True)
    return pytree.tree_unflatten([_common_leaf(*pair, nums) for pair in pairs], structure)


def _common_leaf(a: Any, b: Any, nums: tuple[int, int]) -> Any:
    if type(a) is type(b) is int and a != b:
        if a * nums[1] == b * nums[0] and a % nums[0] == 0:
            return Multiple(a // nums[0])
        raise NotReplayableError(a, b)
    if type(a) is not type(b) or not (a == b or (a != a and b != b)):
        raise NotReplayableError(a, b)
    return a


# -- the program -------------------------------------------------------------------------


class _Writer:
    """Writes Python, without what is done for nothing."""

    def __init__(self, recording: Recording, steps: list[Operation]) -> None:
        self.tensors, self.inputs = recording.tensors, recording.inputs
        self.outputs, self.externals = recording.outputs, set(recording.external)
        self.names: dict[str, Any] = {}
        self.steps = self._needed(steps)

    def _needed(self, steps: list[Operation]) -> list[Operation]:
        needed, found = set(self.outputs), []
        for step in reversed(steps):
            if step.has_effects or not needed.isdisjoint(step.outs):
                needed.update(step.refs())
                found.append(step)
        return found[::-1]

    # -- text -------------------------------------------------------------------------

    def source(self) -> tuple[str, dict[str, Any]]:
        """Write a function ``run`` of the number of rows and the inputs, and what it is to find."""
        last = {slot: i for i, step in enumerate(self.steps) for slot in step.refs()}
        lines = [f"def run(num, {', '.join(f't{slot}' for slot in self.inputs)}):"]
        kept = {*self.outputs, *self.externals}
        for i, step in enumerate(self.steps):
            lines.append(f"    {self._line(step)}")
            gone = [s for s in dict.fromkeys(step.refs()) if last[s] == i and s not in kept]
            if gone:
                lines[-1] += f"; {' = '.join(f't{slot}' for slot in gone)} = None"
        results = "".join(f"{self._name(slot)}, " for slot in self.outputs)
        return "\n".join([*lines, f"    return ({results})"]), self.names

    def _line(self, step: Operation) -> str:
        args = [self._text(part) for part in step.args]
        args += [f"{key}={self._text(part)}" for key, part in step.kwargs.items()]
        call = f"{self._constant(getattr(step.op, '_op', step.op))}({', '.join(args)})"
        outs = ["_" if slot is None else f"t{slot}" for slot in step.outs]
        if not outs:
            return call
        return f"{', '.join(outs)}{',' * step.is_many} = {call}"

    def _text(self, part: Any) -> str:
        if type(part) is Ref:
            return self._name(part.slot)
        if type(part) is Multiple:
            return "num" if part.times == 1 else f"{part.times} * num"
        if type(part) in (list, tuple):
            return f"[{', '.join(map(self._text, part))}]"
        if type(part) in (int, bool, str, type(None)) or (type(part) is float and part - part == 0):
            return repr(part)
        return self._constant(part)

    def _name(self, slot: int) -> str:
        name = f"t{slot}"
        if slot in self.externals:
            self.names[name] = self.tensors[slot]
        return name

    def _constant(self, value: Any) -> str:
        name = f"c{id(value)}"
        self.names[name] = value
        return name
