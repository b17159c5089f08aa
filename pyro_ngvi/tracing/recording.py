"""Functions of tensors, recorded once and replayed: torch's operations without what called them.

A run of a model is thousands of operations on small tensors, and nearly all of its time is Python
between them: handlers, distributions, their checks, the graph of derivatives. What the same
function does to other values is the same list of operations, as long as nothing but these
values differs. :class:`Replays` makes the list, and does not believe it.

- The list has to do to other values, in another number, what the function does. So no branch has
  seen a value, and no counter, random number or result of other libraries has come in. Sizes that
  are multiples of the number of rows vary with it.
- A function that reads a value, draws, or writes into a tensor that is not its own is not recorded.
- What is replayed is compared with the function at the first use, the tenth, the hundredth, ...
- Tensors that it has not made, data say, are those of the recording, and have to be as they were.

Whatever does not hold, the function itself is called from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pyro_ngvi.tracing.arguments import tensors_in
from pyro_ngvi.tracing.messengers import OperationMode
from pyro_ngvi.tracing.program import (
    NotReplayableError,
    Operation,
    Program,
    Recording,
    Ref,
    aten,
    mapped,
)

#: Functions of rows, which give tensors with these rows, or sums over them.
OfRows = Callable[..., tuple[Tensor, ...]]

#: What reads numbers behind the back of torch's dispatcher.
_READERS = {Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.data_ptr, Tensor.__dlpack__}
#: What no operation may do, and none whose arguments vary.
_DRAWS = {torch.Tag.nondeterministic_seeded}
_VALUES = {*_DRAWS, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


#: Calls before a function is recorded, which takes as long as six of them.
CALLS_BEFORE = 8
#: Rows of a trial, and fewest of a call: one and two are often treated as cases of their own. Those
#: of a recording, of each of which other sizes are hardly ever multiples.
FEW_ROWS, MORE_ROWS = 3, (11, 17, 19)


class Replays:
    """Replays functions that are called again and again with the same meaning.

    It holds tensors of them, and knows nothing of globals and closures that they read: inside of a
    ``with`` statement, for as long as these are sure to stay. Afterwards functions are called.

    >>> def moments(x):
    ...     return x.sum(-1), x.square().sum(-1)
    >>> x = torch.arange(12.0).reshape(4, 3)
    >>> with Replays() as replays:
    ...     found = [replays("moments", moments, x * k) for k in range(20)]
    >>> found[9][0]
    tensor([ 27., 108., 189., 270.])
    """

    def __init__(self) -> None:
        self._known: dict[Any, _Replayed] = {}
        self._parts: list[Replays] = []
        self.is_open = False

    def __enter__(self) -> Replays:
        self.is_open = True
        return self

    def __exit__(self, *exception: Any) -> None:
        self.is_open = False
        self._known.clear()
        for part in self._parts:
            part.__exit__()
        self._parts.clear()

    def __reduce__(self) -> tuple:
        # A copy is closed: a program is of tensors that are not copied.
        return Replays, ()

    def part(self) -> Replays:
        """Open another object with functions of its own, which is closed with this one."""
        part = Replays()
        if self.is_open:
            self._parts.append(part.__enter__())
        return part

    def __call__(
        self, key: Any, function: OfRows, *rows: Tensor, leaves: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return what the function gives.

        :param key: of the function among others of this object: which one it is.
        :param rows: its arguments, with ``K`` rows each.
        :param leaves: tensors besides that may change from one call to the next, in place.
        :return: without derivatives.
        """
        if not self.is_open:
            return function(*rows)
        known = self._known.setdefault(key, _Replayed())
        return known(function, rows, leaves)


class _Replayed:
    """A function, and what is known of replaying it."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.calls = self.uses = 0
        self.is_refused = False

    def __call__(
        self, function: OfRows, rows: Sequence[Tensor], leaves: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        self.calls += 1
        if self.program is None:
            self._record(function, rows, leaves)
        if self.program is None or not self.program.is_for(rows):
            self.program = None
            return function(*rows)
        try:
            found = self.program(*rows)
        except Exception:  # noqa: BLE001  the function raises the user's
            return self._refuse(function(*rows))
        self.uses += 1
        if str(self.uses).strip("0") != "1":
            return found
        expected = function(*rows)
        return expected if all(map(_agree, found, expected)) else self._refuse(expected)

    def _record(self, function: OfRows, rows: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
        if self.is_refused or self.calls <= CALLS_BEFORE or len(rows[0]) < FEW_ROWS:
            return
        try:
            self.program = recorded(function, rows, leaves)
        except Exception:  # noqa: BLE001  the function raises the user's
            self._refuse(None)

    def _refuse(self, result: Any) -> Any:
        self.program, self.is_refused = None, True
        return result


def recorded(function: OfRows, rows: Sequence[Tensor], leaves: Sequence[Tensor] = ()) -> Program:
    """Return the function as a program.

    :raises NotReplayableError: if it does what cannot be replayed.
    """
    num = len(rows[0])
    others = [part[[-1 - i % num for i in range(FEW_ROWS)]] for part in rows]
    for count in MORE_ROWS:
        some = [part[[i % num for i in range(count)]] for part in rows]
        program = Program(RecordingMode(leaves).record(function, some))
        with contextlib.suppress(Exception):  # of a size that is a multiple by chance
            if all(map(_agree, program(*others), function(*others))):
                return program
    raise NotReplayableError("it depends on more than the rows")


def apart(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return what the function gives, without derivatives; one step of a recording if there is one.

    It may decide on numbers.
    """
    mode = _get_current_dispatch_mode()
    return mode.call(function, tensors) if isinstance(mode, RecordingMode) else function(*tensors)


def _agree(one: Tensor, other: Tensor) -> bool:
    if not other.is_floating_point():
        return torch.equal(one, other)
    close = torch.finfo(other.dtype).eps ** 0.5
    return torch.allclose(one, other, rtol=close, atol=close, equal_nan=True)


class _NoReading(TorchFunctionMode):
    """Refuses to give numbers away to what torch does not see."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in _READERS:
            raise NotReplayableError(func)
        return func(*args, **(kwargs or {}))


class RecordingMode(OperationMode):
    """Writes down what torch does.

    :param leaves: tensors that may change.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self._found = Recording(0)
        self._slots: dict[int, int] = {}
        self._leaves = {id(leaf) for leaf in leaves}
        # Storages of what follows from rows and leaves, and of what is written into.
        self._varying = set(map(_storage, leaves))
        self._written: set[int] = set()
        self._is_paused = False

    def record(self, function: OfRows, rows: Sequence[Tensor]) -> Recording:
        """Call the function, and return what it has done.

        :raises NotReplayableError: if that cannot be replayed.
        """
        found = self._found
        found.num_rows, found.inputs = len(rows[0]), [self._new(part) for part in rows]
        self._varying.update(map(_storage, rows))
        with _NoReading(), self:
            results = function(*rows)
        found.outputs = [self._slot(result) for result in results]
        kept = [found.tensors[slot] for slot in (*found.inputs, *found.external)]
        if not self._written.isdisjoint(map(_storage, kept)):
            raise NotReplayableError("writes into a tensor that is not its own")
        return found

    def call(self, function: Callable, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Write a call of the function down, whatever it does."""
        self._is_paused = True
        try:
            results = function(*tensors)
            results = tuple(r.clone() if id(r) in self._slots else r for r in results)
        finally:
            self._is_paused = False
        self._add(Operation(function, self._refs(tuple(tensors), []), {}), results, True)
        return results

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        op, given = func, args
        if func is aten.lift_fresh.default:
            # What is made of numbers may be written into, which is done anew in every call.
            op, given = aten.clone.default, (args[0].clone(),)
        tensors: list[Tensor] = []
        step = Operation(op, self._refs(given, tensors), self._refs(kwargs, tensors))
        written = _written(func, args, kwargs)
        varies = not self._varying.isdisjoint(map(_storage, tensors))
        deciding = tensors
        if func is aten.index.Tensor:  # of which masks alone decide on a shape
            deciding = [part for part in tensors[1:] if part.dtype in (torch.bool, torch.uint8)]
        decides = not self._varying.isdisjoint(map(_storage, deciding))
        refused = _VALUES if decides else _DRAWS
        if not refused.isdisjoint(func.tags):
            raise NotReplayableError(func)
        self._written.update(written)
        if varies:
            self._varying.update(written)
        results = func(*args, **kwargs)
        self._add(step, results, varies)
        step.has_effects = bool(written) or (varies and not step.outs)
        return results

    def _add(self, step: Operation, results: Any, varies: bool) -> None:
        step.is_many = isinstance(results, (tuple, list))
        for result in results if step.is_many else [results]:
            if isinstance(result, Tensor):
                is_known = id(result) in self._slots
                step.outs.append(None if is_known else self._new(result))
                if varies:
                    self._varying.add(_storage(result))
        self._found.steps.append(step)

    def _refs(self, tree: Any, tensors: list[Tensor]) -> Any:
        """Return the same with references, and note the tensors."""

        def ref(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            tensors.append(leaf)
            return Ref(self._slot(leaf))

        return mapped(ref, tree)

    def _slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor, whoever has made it."""
        if id(tensor) in self._slots:
            return self._slots[id(tensor)]
        is_leaf = id(tensor) in self._leaves
        if type(tensor) not in (Tensor, Parameter) or (tensor.requires_grad and not is_leaf):
            raise NotReplayableError("a tensor of another kind")
        slot = self._new(tensor)
        self._found.external.append(slot)
        if is_leaf:
            self._found.leaves.add(slot)
        return slot

    def _new(self, tensor: Tensor) -> int:
        tensors = self._found.tensors
        self._slots[id(tensor)] = len(tensors)
        tensors.append(tensor)
        return len(tensors) - 1


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> set[int]:
    """Storages that an operation writes into."""
    if not func._schema.is_mutable:
        return set()
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    into = [
        named[one.name]
        for one in func._schema.arguments
        if one.alias_info is not None and one.alias_info.is_write and one.name in named
    ]
    return set(map(_storage, tensors_in(into)))


def _storage(tensor: Tensor) -> int:
    """Return the identity of a living tensor's storage, the same for all that share it."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata
