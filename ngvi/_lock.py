"""A lock for threads, because handlers of both PPLs and Pyro's parameters are global.

A process forked while another thread holds the lock does not have that thread. It gets a new lock,
and the PPL's state from before that thread changed it. An error or Ctrl-C restores the state in the
same way, even in the middle of a handler's own code.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

_lock = threading.RLock()
_depth = 0  # of calls, each in another
_remembering: list[Callable[[], Callable[[], object]]] = []
_restoring: list[Callable[[], object]] = []

Function = TypeVar("Function", bound=Callable)
Value = TypeVar("Value")


def serialised(function: Function) -> Function:
    """Return ``function``, which waits while another thread is in one of these."""

    @functools.wraps(function)
    def waiting(*args, **kwargs):
        global _depth
        with _lock:
            outer = _depth
            try:
                if not outer:
                    _restoring[:] = [remember() for remember in _remembering]
                _depth = outer + 1
                return function(*args, **kwargs)
            except BaseException:
                if not outer:
                    _restore()
                raise
            finally:
                _depth = outer
                if not outer:
                    _restoring.clear()  # or an interrupt before the next would go back to here

    return waiting  # type: ignore[return-value]


class Cached(functools.cached_property[Value]):
    """A property that is computed once, by one thread at a time.

    Before Python 3.12 a cached property has a lock of its own: who waited for ours inside of that,
    and who came the other way, would wait for each other for ever.
    """

    if not TYPE_CHECKING:  # which knows its type
        __get__ = serialised(functools.cached_property.__get__)


def as_now() -> Callable[[], None]:
    """Return a function that lets the PPL be as it is now."""
    restoring = [remember() for remember in _remembering]
    return lambda: _restore(restoring)


def _restore(restoring: list[Callable[[], object]] = _restoring) -> None:
    for restore in restoring:
        restore()


def remembered(remember: Function) -> Function:
    """Call ``remember`` before a thread enters: it returns what lets all be as it was then."""
    _remembering.append(remember)
    return remember


def _in_child() -> None:
    global _lock, _depth
    if _lock.acquire(blocking=False):  # nobody's, or of the thread that has forked
        _lock.release()
        return
    _lock, _depth = threading.RLock(), 0
    _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
