"""Numbers of evaluations of a log density that share a pass of a program, and the first wait."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax

from ngvi.estimators.choice import points_at_once
from ngvi.inference.prices import SLOW, warn_of_slow
from numpyro_ngvi.guide.reparametrized import MODES_AT_ONCE

#: Draws share a pass of a program while their rows stay in a processor's cache, and so few always
#: do: passes cost next to nothing to run, and a loop to compile.
ROWS_AT_ONCE, FEWEST_AT_ONCE = 2**17, 16
#: Points share a program that has their gradients, and the last is repeated to fill it up, as long
#: as an array has no more numbers than these: a call then costs more than a point.
POINTS_AT_ONCE, FEW_AT_POINTS = 8, 2**13
#: Values of a call: whoever wants one has the others evaluated as well.
VALUES_AT_ONCE = 128
#: More points, those of chains, share a pass of as many as these.
CHAINS_AT_ONCE = 32


class Passes(NamedTuple):
    """Numbers of evaluations that share a pass."""

    size: int  #: Numbers of the largest array, as far as they are seen.
    num_rows: int  #: Rows of the longest, likewise.
    has_modes: bool  #: Whether modes are searched for.

    @property
    def values(self) -> int:
        """Values of a call."""
        return min(VALUES_AT_ONCE, points_at_once(self.size))

    @property
    def points(self) -> int:
        """Gradients of a call, at points of ascents."""
        return POINTS_AT_ONCE if self.size <= FEW_AT_POINTS else 1

    @property
    def chains(self) -> int:
        """Gradients of a call, at more points than ascents have."""
        return min(CHAINS_AT_ONCE, self.values)

    @property
    def group(self) -> int:
        """Gradients of a call, at points of a group: by the program of ascents, if that may be."""
        return self.points if self.points > 1 else self.chains

    def inside(self, is_short: bool) -> tuple[int, int]:
        """Return how many draws share a pass within a program, with gradients and without.

        :param is_short: whether the program has few draws in all.
        """
        has_modes, most = self.has_modes and not is_short, points_at_once(self.size)
        if jax.default_backend() == "cpu":
            in_cache = max(FEWEST_AT_ONCE, ROWS_AT_ONCE // max(self.num_rows, 1))
            most = MODES_AT_ONCE if has_modes else min(most, in_cache)
        return most, (1 if has_modes else 4) * most


def wait(found: Any, count: int) -> None:
    """Wait for the first evaluations of a model, and say so if these take long.

    :param found: what comes of them, arrays.
    :param count: how many they are.
    """
    start, leaves, seconds = time.perf_counter(), jax.tree.leaves(found), 0.0
    while seconds <= SLOW and not all(leaf.is_ready() for leaf in leaves):
        time.sleep(1e-3)
        seconds = (time.perf_counter() - start) / count
    warn_of_slow(seconds, "more than ")
