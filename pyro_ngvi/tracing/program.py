"""Lists of torch's operations: what a recording holds, and the program that it makes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class NotReplayableError(Exception):
    """A function does what a list of operations does not say."""


@dataclasses.dataclass(frozen=True)
class Ref:
    """A tensor among those of a recording."""

    slot: int


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


def mapped(function: Callable, tree: Any) -> Any:
    """Apply a function to the leaves of lists, tuples and dicts."""
    if type(tree) is list or type(tree) is tuple:
        return type(tree)([mapped(function, part) for part in tree])
    if type(tree) is dict:
        return {key: mapped(function, part) for key, part in tree.items()}
    return function(tree)


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
    """A function that does what a recording says, to any number of rows."""

    def __init__(self, found: Recording) -> None:
        kept = [found.tensors[slot] for slot in found.external if slot not in found.leaves]
        self._versions = [(tensor, tensor._version) for tensor in kept]
        self._inputs = [_kind(found.tensors[slot]) for slot in found.inputs]
        source, names = _Writer(found).source()
        exec(compile(source, "<recorded operations>", "exec"), names)  # noqa: S102
        self._run = names["run"]
        # Rewriting is for what calls torch anew, such as a search of its own.
        is_whole = all(isinstance(step.op, torch._ops.OpOverload) for step in found.steps)
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


# -- the program -------------------------------------------------------------------------


@functools.cache
def _quickest(op: Any) -> Callable:
    """Return the function with this meaning that takes the least time to call."""
    if not isinstance(op, torch._ops.OpOverload):
        return op
    is_other = "?[]" in str(op._schema)  # whose lists may not hold None
    name = "" if is_other else op._schema.name.removeprefix("aten::")
    return getattr(torch._C._VariableFunctions, name, op._op)


class _Call(NamedTuple):
    """A call in text, and the slots of what it takes."""

    text: str
    step: Operation
    refs: list[int]


class _Writer:
    """Writes Python, without what is done twice or for nothing."""

    def __init__(self, recording: Recording) -> None:
        self.of, self.externals = recording, set(recording.external)
        self.names: dict[str, Any] = {}
        self._same: dict[int, int] = {}  # slots of what is another tensor already
        self._refs: list[int] = []  # slots in the text of a call
        self.calls = self._needed(self._calls())

    def _calls(self) -> list[_Call]:
        """Return the calls that make a tensor for the first time."""
        found, known = [], {}
        is_pure = not any(step.has_effects for step in self.of.steps)
        for step in self.of.steps:
            self._refs = []
            text = self._call(step)
            outs = self._refs[:1] if self._is_idle(step) else known.get(text)
            if outs is None:
                if is_pure:
                    known[text] = step.outs
                found.append(_Call(text, step, self._refs))
            else:
                self._same.update(zip(step.outs, outs, strict=True))
        return found

    @staticmethod
    def _is_idle(step: Operation) -> bool:
        """Return whether the result of an operation is its argument."""
        if step.op is aten.permute.default:
            return step.args[1] == sorted(step.args[1])
        return step.op is aten.detach.default

    def _needed(self, calls: list[_Call]) -> list[_Call]:
        self.outputs = [self._same.get(slot, slot) for slot in self.of.outputs]
        needed, found = set(self.outputs), []
        for call in reversed(calls):
            if call.step.has_effects or not needed.isdisjoint(call.step.outs):
                needed.update(call.refs)
                found.append(call)
        return found[::-1]

    # -- text -------------------------------------------------------------------------

    def source(self) -> tuple[str, dict[str, Any]]:
        """Write a function ``run`` of the number of rows and the inputs, and what it is to find."""
        last = {slot: i for i, call in enumerate(self.calls) for slot in call.refs}
        lines = [f"def run(num, {', '.join(f't{slot}' for slot in self.of.inputs)}):"]
        kept = {*self.outputs, *self.externals}
        for i, call in enumerate(self.calls):
            outs = ", ".join("_" if slot is None else f"t{slot}" for slot in call.step.outs)
            outs += f"{',' * call.step.is_many} = " if outs else ""
            lines.append(f"    {outs}{call.text}")
            gone = [s for s in dict.fromkeys(call.refs) if last[s] == i and s not in kept]
            if gone:
                lines[-1] += f"; {' = '.join(f't{slot}' for slot in gone)} = None"
        results = "".join(f"{self._name(slot)}, " for slot in self.outputs)
        return "\n".join([*lines, f"    return ({results})"]), self.names

    def _call(self, step: Operation) -> str:
        args = [repr(part) if type(part) is int else self._text(part) for part in step.args]
        args += [f"{key}={self._text(part)}" for key, part in step.kwargs.items()]
        return f"{self._constant(_quickest(step.op))}({', '.join(args)})"

    def _text(self, part: Any) -> str:
        if type(part) is Ref:
            return self._name(part.slot)
        if type(part) is int and part and part % self.of.num_rows == 0:
            return f"{part // self.of.num_rows} * num"
        if type(part) in (list, tuple):
            return f"[{', '.join(map(self._text, part))}]"
        if type(part) in (int, bool, str, type(None)) or (type(part) is float and part - part == 0):
            return repr(part)
        return self._constant(part)

    def _name(self, slot: int) -> str:
        slot = self._same.get(slot, slot)
        self._refs.append(slot)
        name = f"t{slot}"
        if slot in self.externals:
            self.names[name] = self.of.tensors[slot]
        return name

    def _constant(self, value: Any) -> str:
        name = f"c{id(value)}"
        self.names[name] = value
        return name
