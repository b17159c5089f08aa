"""Processes of ``jax.distributed`` end together.

A process that waits in a reduction cannot be interrupted from Python, so one that would wait for
ever has to be ended. JAX does so where a process is killed or falls silent. It doesn't where one
raises: that one waits at its exit for the others, the others wait for it in a reduction, and all of
them are alive. Here each process tells, and asks, by the key-value store of JAX's coordination
service.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

import jax

#: Where a process that fails says so.
FOLDER = "ngvi/failed/"
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
    - If the first process, to which all report, cannot be reached for longer than the timeout, the
      others end. JAX mostly ends them at once, by an error of its own.
    - Of another one that is killed, JAX tells, after ``heartbeat_timeout_seconds=`` of
      ``jax.distributed.initialize``.

    A process that is ended says why on the standard error, and its exit code is 1.

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


def _state() -> Any:
    """JAX's own, of which it shows no more in public than whether there is one."""
    from jax._src import distributed  # only where there are processes

    return distributed.global_state


class _Watch:
    def __init__(self, client: Any, rank: int, size: int, timeout: float) -> None:
        self.client, self.timeout = client, timeout
        self._place = f"process {rank} of {size}"
        self._own = f"{FOLDER}{rank}"
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
        self._thread.start()

    def _tell(self, kind: type, error: BaseException) -> None:
        """Tell the others of an exception that ends this process."""
        self._has_failed = True
        line = f"{kind.__name__}: {error}".splitlines()[0]
        try:
            self.client.key_value_set(self._own, line[:500])
        except Exception:  # noqa: BLE001  the first process is gone, which they see for themselves
            return

    def _at_exit(self) -> None:
        """JAX's own exit, which comes after this, waits for the others."""
        if self._has_failed:  # keep watching: nobody may be there to wait for
            return
        self._ends.set()
        self._thread.join(self.timeout)

    def _is_over(self) -> bool:
        return self._ends.is_set() or _state().client is not self.client

    def _run(self) -> None:
        last_answer = time.monotonic()
        while not self._ends.wait(PERIOD):
            try:
                failed = dict(self.client.key_value_dir_get(FOLDER))
            except Exception as error:  # noqa: BLE001  whatever it is, there was no answer
                silence = time.monotonic() - last_answer
                if silence > self.timeout:
                    self._end(
                        f"the first process has not answered for {silence:.0f} s, and this one "
                        f"would wait for it for ever ({error})".splitlines()[0]
                    )
            else:
                last_answer = time.monotonic()
                failed = {key: words for key, words in failed.items() if key != self._own}
                if failed and not self._has_failed:
                    rank, words = next(iter(failed.items()))
                    self._end(
                        f"process {rank.rsplit('/', 1)[-1]} has failed ({words}), and this one "
                        "would wait for it for ever; its own output says why"
                    )
            if self._is_over():
                return

    def _end(self, why: str) -> None:
        if self._is_over():
            return
        try:
            print(f"numpyro_ngvi: {self._place} ends: {why}.", file=sys.stderr)
            sys.stderr.flush()
            sys.stdout.flush()
        finally:  # a closed pipe must not keep it alive
            os._exit(1)
