"""Processes of ``jax.distributed`` end together.

A process that waits in a reduction cannot be interrupted from Python, so one that would wait for
ever has to be ended. JAX does so where a process is killed or falls silent. It doesn't where one
raises or leaves: that one waits at its exit for the others, the others wait for it in a reduction,
and all of them are alive. Here each process tells, and asks, by the key-value store of JAX's
coordination service.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

#: Where a process says that it is there, that it fails, and after how many steps it leaves.
THERE, FAILED, LEFT = "ngvi/there/", "ngvi/told/failed/", "ngvi/told/left/"
TOLD = "ngvi/told/"
#: Seconds between two questions; each is a small message to the first process.
PERIOD = 1.0

_watch: _Watch | None = None


def watch_processes(timeout: float = 10.0) -> None:
    """End this process with an error when another one of the run has failed, from now on.

    ``fit`` and ``SVI.step`` call it when their data are on several processes. Call it yourself, in
    each process, right after ``jax.distributed.initialize`` where something may fail before that,
    or for a loop of your own. It starts a thread, once, which asks once a second and ends at an
    ordinary exit.

    - A process that raises an exception that nobody catches tells the others, which then end.
    - One that leaves, by ``sys.exit`` say, in the midst of ``fit`` or after fewer calls of
      ``SVI.step`` than others have begun tells them as well. Where others wait for it in a program
      of yours, JAX ends them, ``shutdown_timeout_seconds=`` of ``jax.distributed.initialize`` later
      (300).
    - If the first process, to which all report, is there and silent for longer than the timeout,
      the others end. If it is killed, JAX ends them at once, by an error of its own.
    - Of another one that is killed or silent JAX tells, ``heartbeat_timeout_seconds=`` later (100).
    - Before ``jax.distributed.initialize`` has returned nobody watches: for a process that is lost
      by then, or has never begun, the others wait ``initialization_timeout=`` (300).

    A process that is ended says why on the standard error, and its exit code is 1, or that of
    JAX's abort.

    >>> from numpyro_ngvi.parallel import watch_processes
    >>> watch_processes()   # a process alone has nobody to watch

    :param timeout: in seconds.
    :raises ValueError: if it isn't positive.
    """
    global _watch
    if not timeout > 0:
        raise ValueError(f"timeout= is {timeout}, and must be positive: seconds.")
    state = _state()
    if state.client is None or state.num_processes < 2:
        return
    if _watch is not None and _watch.client is state.client:
        _watch.timeout = timeout
        return
    _watch = _Watch(state.client, state.process_id, state.num_processes, timeout)
    _watch.begin()


def watch_those_of(arguments: Any) -> bool:
    """:func:`watch_processes` if an array is on several processes; whether one is."""
    leaves = jax.tree.leaves(arguments)
    is_shared = not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)
    if is_shared and _watch is None:
        watch_processes()
    return is_shared


def count_step() -> None:
    """Before a program for which the processes wait for each other, of which each runs as many."""
    if _watch is not None:
        _watch.num_steps += 1


@contextmanager
def without_leaving() -> Iterator[None]:
    """In which a process that leaves has failed, for the others cannot go on without it."""
    watch = _watch
    if watch is None:
        yield
        return
    watch.is_needed = True
    try:
        yield
    except Exception:
        watch.is_needed = False  # raised by all of them, or told of if nobody catches it
        raise
    watch.is_needed = False


def _state() -> Any:
    """JAX's own, of which it shows no more in public than whether there is one."""
    from jax._src import distributed  # only where there are processes

    return distributed.global_state


class _Watch:
    def __init__(self, client: Any, rank: int, size: int, timeout: float) -> None:
        self.client, self.timeout = client, timeout
        self.num_steps, self.is_needed = 0, False
        self._rank, self._size = str(rank), size
        self._has_failed = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngvi-watch", daemon=True)

    def begin(self) -> None:
        before = sys.excepthook

        def hook(kind: type, error: BaseException, trace: Any) -> None:
            before(kind, error, trace)
            self._tell(kind, error)

        sys.excepthook = hook
        atexit.register(self._at_exit)
        self.client.key_value_set(THERE + self._rank, "", allow_overwrite=True)
        self._thread.start()

    def _tell(self, kind: type, error: BaseException) -> None:
        """Tell the others of an exception that ends this process."""
        line = f"{kind.__name__}: {error}".splitlines()[0]
        self._fail(line[:500])

    def _fail(self, words: str) -> None:
        self._has_failed = True
        self._set(FAILED, words)

    def _set(self, folder: str, words: str) -> None:
        try:
            self.client.key_value_set(folder + self._rank, words, allow_overwrite=True)
        except Exception:  # noqa: BLE001  the first process is gone, which they see for themselves
            return

    def _at_exit(self) -> None:
        """JAX's own exit, which comes after this, waits for the others."""
        if self.is_needed and not self._has_failed:
            self._fail("it left in the midst of fit")
        if self._has_failed:  # keep watching: nobody may be there to wait for
            return
        self._set(LEFT, str(self.num_steps))
        self._ends.set()
        self._thread.join(self.timeout)

    def _is_over(self) -> bool:
        return self._ends.is_set() or _state().client is not self.client

    def _run(self) -> None:
        last_answer = time.monotonic()
        while not self._ends.wait(PERIOD):
            try:
                # Which gives up, as the question after it would not.
                self.client.blocking_key_value_get(THERE + self._rank, int(1000 * self.timeout))
                told = self.client.key_value_dir_get(TOLD)
            except Exception as error:  # noqa: BLE001  whatever it is, there was no answer
                silence = time.monotonic() - last_answer
                if silence > self.timeout:
                    self._end(
                        f"the first process has not answered for {silence:.0f} s, and this one "
                        f"would wait for it for ever ({error})".splitlines()[0]
                    )
            else:
                last_answer = time.monotonic()
                if not self._has_failed and (why := self._lost(dict(told))):
                    self._end(
                        f"{why}, and this one would wait for it for ever; its own output says why"
                    )
            if self._is_over():
                return

    def _lost(self, told: dict[str, str]) -> str:
        """Why another process is not to be waited for, in words; or nothing."""
        for key, words in told.items():
            rank = key.rsplit("/", 1)[-1]
            if rank == self._rank:
                continue
            if key.startswith(FAILED):
                return f"process {rank} has failed ({words})"
            if int(words) < self.num_steps:
                return f"process {rank} has left after {words} of this one's {self.num_steps} steps"
        return ""

    def _end(self, why: str) -> None:
        if self._is_over():
            return
        try:
            print(
                f"numpyro_ngvi: process {self._rank} of {self._size} ends: {why}.", file=sys.stderr
            )
            sys.stderr.flush()
            sys.stdout.flush()
        finally:  # a closed pipe must not keep it alive
            os._exit(1)
