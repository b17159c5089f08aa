"""What Python reads of a device, for which it waits: seldom, and much at once.

On a CPU a number is read in a fraction of a microsecond. Elsewhere Python runs ahead of the device,
and whoever reads a number waits until all is done that it follows from. A step needs to know a few:
the loss, which ``SVI`` returns, whether draws are to be left out, whether a matrix is definite.
Three ways keep the waits few:

- Numbers that are known early and wanted late wait for one another (:class:`Reads`).
- What nearly always holds is taken to hold, computed with, and read with what follows from it
  (:func:`likely`, :class:`Foresight`).
- Whether a step may be taken is decided on the device, by ``where``, and Python hears of it without
  waiting, mostly when it begins the next step (:class:`Arriving`).

What is left, and why, besides the loss; ``tests/test_host_reads.py`` counts it:

- ``BLR()`` reads the slopes at the end of its last step, which the next one's radius follows from,
  and how far an attempt leads, as another one may be a factorisation. ``IVON()`` and ``Snngm()``
  read the products that their step size follows from. The arithmetic between these numbers would be
  a hundred small kernels (:class:`~pyro_ngvi.optim.algebra.Algebra`), and a step size that
  came a step late would be another rule.
- ``VON`` reads whether its step is definite, which decides between a sum and eigenvectors; so do
  the benchmarks' families by a whole matrix.
- Factors of sites have a rule of their own, whose slopes come after those of the Gaussian's.
- Of ``LowRankPrecision`` eigenvalues and singular values, for which torch itself waits.

``lax.cond`` and ``where`` do all of this in JAX, where nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

#: What is taken to hold without having been read; None where flags are read at once.
_FORESEEN: ContextVar[list[Any] | None] = ContextVar("FORESEEN", default=None)


class _ReadAtOnce(list):
    """Flags as booleans, for whoever wants to know whether they could have been foreseen."""


def likely(flag: Tensor) -> bool:
    """Whether it holds, as it nearly always does: whoever foresees reads it later."""
    flags = _FORESEEN.get()
    if flags is None:
        return bool(flag)
    is_read = isinstance(flags, _ReadAtOnce)
    flags.append(bool(flag) if is_read else flag)
    return flags[-1] if is_read else True


def likely_all(flags: Tensor, count: Callable[[], int]) -> bool:
    """Whether all of them hold, whose number is :func:`likely` to be read elsewhere.

    :param count: reads it.
    """
    foreseen = _FORESEEN.get()
    if foreseen is not None and not isinstance(foreseen, _ReadAtOnce):
        return likely(flags.all())
    is_whole = count() == flags.numel()
    if foreseen is not None:
        foreseen.append(is_whole)
    return is_whole


class Foresight:
    """As :meth:`Reads.foreseen`, of a long computation that is repeated: what turned out not to
    hold is not taken to hold the next time.

    :ivar holds: whether all that was :func:`likely` held the last time.
    """

    def __init__(self) -> None:
        self.holds = True

    def __call__(
        self,
        compute: Callable[[], tuple[Reads, Any]],
        measure: Callable[[Any], Sequence[Tensor]],
        is_allowed: bool = True,
    ) -> tuple[Any, list[float]]:
        """What a function returns, and numbers that follow from it.

        :param compute: gives a new object to read with, too. It is called twice if something does
            not hold that did the last time, and has no effects but on random numbers.
        :param measure: the numbers, perhaps none, from the result.
        :param is_allowed: False reads at once.
        """
        if self.holds and is_allowed:
            flags: list[Tensor] = []
            reads, result, numbers = _with_flags(flags, compute, measure)
            found = reads.now(*flags, *numbers)
            if all(found[: len(flags)]):
                return result, found[len(flags) :]
        known = _ReadAtOnce()
        reads, result, numbers = _with_flags(known, compute, measure)
        self.holds = all(known)
        return result, reads.now(*numbers)


def _with_flags(flags: list, compute: Callable, measure: Callable) -> tuple[Reads, Any, Sequence]:
    token = _FORESEEN.set(flags)
    try:
        reads, result = compute()
        return reads, result, measure(result)
    finally:
        _FORESEEN.reset(token)


def _vector(tensor: Tensor) -> Tensor:
    """Its numbers in a row, in a precision that can count draws."""
    vector = tensor.reshape(-1)
    return vector.float() if vector.dtype in (torch.float16, torch.bfloat16) else vector


class FailedError(Exception):
    """A condition does not hold under which numbers were to be read."""


class Reads:
    """Numbers that are read together.

    :param conditions: flags that are read with the first numbers.
    """

    def __init__(self, *conditions: Tensor) -> None:
        self._conditions = conditions
        self._waiting: list[tuple[Sequence[Tensor], list[float]]] = []

    def later(self, *numbers: Tensor) -> Callable[[], list[float]]:
        """Read them when others are read, or when the function is called that tells them.

        :param numbers: of any shapes and dtypes, all on one device.
        """
        found: list[float] = []
        self._waiting.append((numbers, found))
        return lambda: found if found else (self.now(), found)[1]

    def now(self, *numbers: Tensor) -> list[float]:
        """Read these, and what waits.

        :raises FailedError: if a condition does not hold.
        """
        waiting, self._waiting = self._waiting, []
        rows = [*(row for row, _ in waiting), numbers]
        if not any(rows):
            return []
        conditions, self._conditions = self._conditions, ()
        rows = [conditions, *rows]
        values = torch.cat([_vector(one) for row in rows for one in row]).tolist()
        parts = []
        for row in rows:
            count = sum(one.numel() for one in row)
            parts.append(values[:count])
            values = values[count:]
        for (_, found), part in zip(waiting, parts[1:-1], strict=True):
            found += part
        if not all(parts[0]):
            raise FailedError
        return parts[-1]

    def foreseen(
        self, compute: Callable[[], Any], measure: Callable[[Any], Sequence[Tensor]]
    ) -> tuple[Any, list[float]]:
        """What a function returns, and numbers that follow from it, by one read for both.

        Only if something :func:`likely` turns out not to hold, it is called again.

        :param compute: has no effects.
        :param measure: the numbers, perhaps none, from the result.
        """
        flags: list[Tensor] = []
        token = _FORESEEN.set(flags)
        try:
            result = compute()
            numbers = measure(result)
        finally:
            _FORESEEN.reset(token)
        if flags or numbers:
            found = self.now(*flags, *numbers)
            if all(found[: len(flags)]):
                return result, found[len(flags) :]
            result = compute()
            numbers = measure(result)
        return result, self.now(*numbers) if numbers else []


class Arriving:
    """A flag on its way from the device.

    :ivar is_here: whether there is nothing to wait for, as on a CPU.
    """

    def __init__(self, flag: Tensor) -> None:
        self.is_here = flag.device.type == "cpu"
        self._flag, self._event = flag, None
        if flag.device.type == "cuda":
            self._flag = torch.empty_like(flag, device="cpu", pin_memory=True)
            self._flag.copy_(flag, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(flag.device))

    def __bool__(self) -> bool:
        if self._event is not None:
            self._event.synchronize()  # long past, if a loss has been read since
        return bool(self._flag.numpy() if self._flag.device.type == "cpu" else self._flag)


def on_device(values: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the host as a tensor on the device of ``like``.

    No one waits for a copy from memory that cannot be paged out.

    :param dtype: None for that of ``like``.
    """
    tensor = torch.as_tensor(values, dtype=like.dtype if dtype is None else dtype)
    if like.device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(like.device, non_blocking=True)
    return tensor.to(like.device)
