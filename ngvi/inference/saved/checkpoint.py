"""The best result so far in a file, for fits that may be killed."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from ngvi._warn import warn
from ngvi.inference.saved import files
from ngvi.inference.saved.serialize import Saved, read_result

#: Seconds between two writes, which a killed fit loses at most.
WRITE_EVERY = 60.0


class Checkpoint:
    """Keep the best result of a fit in a file, as ``result.save(path, data=False)`` writes it.

    Nothing in the file is believed: a fit that finds it begins there, as at ``init=``, and
    verifies everything anew.

    :raises OSError: if nothing can be written there.
    :raises ValueError: for a device, a pipe or a socket.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path, self._highest, self._written = path, -math.inf, time.monotonic()
        self._has_warned = False
        files.target(path)  # now, rather than after an hour

    def read(self, library: str) -> Saved | None:
        """Return what the file holds; None if there is none yet.

        :raises DamagedFileError: for a file of something else.
        """
        is_there = os.path.exists(self.path) and os.path.getsize(self.path) > 0
        return read_result(self.path, library) if is_there else None

    @property
    def is_due(self) -> bool:
        """True if the last write was long ago."""
        return time.monotonic() - self._written > WRITE_EVERY

    def keep(self, result: Any, bound: float) -> None:
        """Write a result, unless one with a higher bound has been written; warn if that fails.

        :param bound: of independent draws, or minus infinity.
        """
        self._written = time.monotonic()
        if bound < self._highest:
            return
        try:
            result.save(self.path, data=False)
            self._highest = bound
        except (OSError, ValueError) as error:
            if not self._has_warned:
                warn(f"checkpoint={os.fspath(self.path)!r} cannot be written ({error}).")
            self._has_warned = True
