"""Numbers that Python reads from a device, for which it waits: seldom, and many at once.

Elsewhere than on a CPU Python runs ahead of the device, and whoever reads a number waits until all
is done that it follows from. A step needs to know a few: the loss, which ``SVI`` returns, whether
draws are to be left out, how far a step leads. Numbers that are known early and wanted late wait
for one another (:class:`Reads`). Whether a step
is taken is one of them.

``tests/test_host_reads.py`` counts what is left. In JAX nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Flags that :meth:`Reads.measured` reads later; None where they are read at once.
_UNREAD: ContextVar[list[Tensor] | None] = ContextVar("UNREAD", default=None)


def doubles(tensor: Tensor) -> np.ndarray:
    """Return the numbers of a tensor in double precision."""
    return tensor.detach().double().cpu().numpy()


def likely(flag: Tensor) -> bool:
    """Tell whether a flag holds, as it mostly does; :meth:`Reads.measured` reads it later."""
    unread = _UNREAD.get()
    if unread is None:
        return bool(flag)
    unread.append(flag)
    return True


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
        """Read them when others are read, or when the function is called that returns them.

        :param numbers: of any shapes and dtypes, all on one device.
        """
        found: list[float] = []
        self._waiting.append((numbers, found))
        return lambda: found if found else (self.now(), found)[1]

    def now(self, *numbers: Tensor) -> list[float]:
        """Read these, and what waits.

        :raises FailedError: if a condition does not hold.
        """
        found: list[float] = []
        waiting, self._waiting = [*self._waiting, (numbers, found)], []
        if not any(row for row, _ in waiting):
            return []
        conditions, self._conditions = self._conditions, ()
        rows = [conditions, *(row for row, _ in waiting)]
        values = iter(torch.cat([_vector(one) for row in rows for one in row]).tolist())
        counts = [sum(one.numel() for one in row) for row in rows]
        holds, *parts = ([next(values) for _ in range(count)] for count in counts)
        for (_, place), part in zip(waiting, parts, strict=True):
            place += part
        if not all(holds):
            raise FailedError
        return found

    def measured(
        self, compute: Callable[[], Any], measure: Callable[[Any], Sequence[Tensor]]
    ) -> tuple[Any, list[float]]:
        """Return what a function returns, and numbers that follow from it, by one read for both.

        Only if something :func:`likely` turns out not to hold, it is called again.

        :param compute: has no effects.
        :param measure: the numbers, perhaps none, from the result.
        """
        flags: list[Tensor] = []
        token = _UNREAD.set(flags)
        try:
            result = compute()
            numbers = measure(result)
        finally:
            _UNREAD.reset(token)
        if not (flags or numbers):
            return result, []
        found = self.now(*flags, *numbers)
        if all(found[: len(flags)]):
            return result, found[len(flags) :]
        result = compute()
        numbers = measure(result)
        return result, self.now(*numbers) if numbers else []


@contextmanager
def label(name: str) -> Iterator[None]:
    """Name what runs inside for torch's profiler, as ``jax.named_scope`` does for JAX's.

    Without a profiler nothing is called, which a recording of operations would see.
    """
    is_on = torch.autograd._profiler_enabled()
    with torch.profiler.record_function(name) if is_on else nullcontext():
        yield


def _vector(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers in a row, in a precision that can count draws."""
    vector = tensor.reshape(-1)
    return vector.float() if vector.dtype in (torch.float16, torch.bfloat16) else vector


def on_device(values: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the host as a tensor on the device of ``like``.

    No one waits for a copy from memory that cannot be paged out.

    :param dtype: None for that of ``like``.
    """
    tensor = torch.as_tensor(values, dtype=like.dtype if dtype is None else dtype)
    if like.device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(like.device, non_blocking=True)
    return tensor.to(like.device)
