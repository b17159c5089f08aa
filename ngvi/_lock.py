"""One thread at a time: the handlers of both PPLs, and Pyro's parameters, are the process's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar

_LOCK = threading.RLock()

Function = TypeVar("Function", bound=Callable)


def serialised(function: Function) -> Function:
    """``function``, waiting while another thread is in one of these."""

    @functools.wraps(function)
    def waiting(*args, **kwargs):
        with _LOCK:
            return function(*args, **kwargs)

    return waiting  # type: ignore[return-value]
