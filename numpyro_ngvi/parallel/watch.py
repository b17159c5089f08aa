"""Processes of ``jax.distributed`` end together.

A process that waits in a reduction cannot be interrupted from Python, so one that would wait for
ever has to be ended. JAX does so where a process is killed or falls silent. It doesn't where one
raises or leaves: that one waits at its exit for the others, and they for it in a reduction. Here
each process reports its end, and asks for the others', in the key-value store of JAX's
coordination service, which the first process holds.
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

#: Where a process reports that it is there, and how it ends.
THERE, ENDED = "ngvi/there/", "ngvi/ended/"

_watch: _Watch | None = None


def watch_processes(timeout: float = 10.0) -> None:
    """End this process with an error when another one of the run has failed, from now on.

    ``fit`` and ``SVI.step`` call it when their data are on several processes. Call it yourself, in
    each process, right after ``jax.distributed.initialize`` where something may fail before that,
    or for a loop of your own. It starts a thread, once, which asks once a second and ends at an
    ordinary exit.

    - When a process raises an exception that nobody catches, the others end.
    - So they do when one leaves, by ``sys.exit`` say, in the midst of ``fit`` or after fewer calls
      of ``SVI.step`` than they have begun. Where others wait for it in a program of yours, JAX ends
      them, ``shutdown_timeout_seconds=`` of ``jax.distributed.initialize`` later (300).
    - If the first process, to which all report, is there and silent for longer than the timeout,
      the others end. If it is killed, JAX ends them at once, by an error of its own.
    - If another one is killed or silent, JAX does, ``heartbeat_timeout_seconds=`` later (100).
    - Before ``jax.distributed.initialize`` has returned nobody watches: for a process that is lost
      by then, or has never begun, the others wait ``initialization_timeout=`` (300).

    A process that is ended says why on the standard error, and its exit code is 1, or that of
    JAX's abort.

    >>> from numpyro_ngvi.parallel import watch_processes
    >>> watch_processes()   # a single process has nobody to watch

    :param timeout: in seconds.
    :raises ValueError: if it isn't positive.
    """
    global _watch
    if not timeout > 0:
        raise ValueError(f"timeout= is {timeout}, and must be positive: seconds.")
    state = _state()
    if state.client is None or state.num_processes < 2:
        return
    if _watch is None or _watch.client is not state.client:
        _watch = _Watch(state.client, state.process_id, state.num_processes)
    _watch.timeout = timeout


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
    if watch is not None:
        watch.is_needed = True
    try:
        yield
    except Exception:
        if watch is not None:
            watch.is_needed = False  # all of them raise, or one raises what nobody catches
        raise
    if watch is not None:
        watch.is_needed = False


def _state() -> Any:
    """JAX's own, of which it shows no more in public than whether there is one."""
    from jax._src import distributed  # only where there are processes

    return distributed.global_state


class _Watch:
    """Reports how this process ends, and ends it when another one has failed."""

    timeout = 10.0
    period = 1.0  #: seconds between two questions; each is a small message to the first process

    def __init__(self, client: Any, rank: int, size: int) -> None:
        self.client, self.num_steps, self.is_needed = client, 0, False
        self._rank, self._size, self._has_failed = str(rank), size, False
        self._is_over = threading.Event()
        before = sys.excepthook

        def hook(kind: type, error: BaseException, trace: Any) -> None:
            before(kind, error, trace)
            self._fail(f"{kind.__name__}: {error}".splitlines()[0][:500])

        sys.excepthook = hook
        atexit.register(self._at_exit)
        client.key_value_set(THERE + self._rank, "", allow_overwrite=True)
        self._thread = threading.Thread(target=self._run, name="ngvi-watch", daemon=True)
        self._thread.start()

    def _fail(self, why: str) -> None:
        self._has_failed = True
        self._report(f"failed {why}")

    def _report(self, end: str) -> None:
        try:
            self.client.key_value_set(ENDED + self._rank, end, allow_overwrite=True)
        except Exception:  # noqa: BLE001  the first process is gone, which they see for themselves
            return

    def _at_exit(self) -> None:
        """JAX's own exit, which comes after this, waits for the others."""
        if self.is_needed and not self._has_failed:
            self._fail("it left in the midst of fit")
        if self._has_failed:  # keep watching: nobody may be there to wait for
            return
        self._report(f"left {self.num_steps}")
        self._is_over.set()
        self._thread.join(self.timeout)

    def _run(self) -> None:
        last_answer = time.monotonic()
        while not self._is_over.wait(self.period) and _state().client is self.client:
            try:
                # Which gives up, as the question after it would not.
                self.client.blocking_key_value_get(THERE + self._rank, int(1000 * self.timeout))
                ends = dict(self.client.key_value_dir_get(ENDED))
            except Exception as error:  # noqa: BLE001  whatever it is, there was no answer
                silence = time.monotonic() - last_answer
                if silence > self.timeout:
                    why = f"the first process has not answered for {silence:.0f} s"
                    self._end(f"{why}, and this one would wait for it for ever ({error})")
                continue
            last_answer = time.monotonic()
            why = "" if self._has_failed else self._lost(ends)
            if why:
                self._end(
                    f"{why}, and this one would wait for it for ever; its own output says why"
                )

    def _lost(self, ends: dict[str, str]) -> str:
        """Why another process is not to be waited for, in words; or nothing."""
        for key, end in ends.items():
            rank, (kind, _, words) = key.rsplit("/", 1)[-1], end.partition(" ")
            if rank == self._rank:
                continue
            if kind == "failed":
                return f"process {rank} has failed ({words})"
            if int(words) < self.num_steps:
                return f"process {rank} has left after {words} of this one's {self.num_steps} steps"
        return ""

    def _end(self, why: str) -> None:
        if self._is_over.is_set() or _state().client is not self.client:
            return
        line = f"numpyro_ngvi: process {self._rank} of {self._size} ends: {why}".splitlines()[0]
        try:
            print(f"{line}.", file=sys.stderr, flush=True)
            sys.stdout.flush()
        finally:  # a closed pipe must not keep it alive
            os._exit(1)
