"""Searches in lockstep: what each is told, by whom, and what ends them."""

from __future__ import annotations

import _thread
import threading
import time

import numpy as np
import pytest

from ngvi.inference import lockstep
from ngvi.inference.lockstep import in_lockstep


def assert_as_many_threads(count):
    """Soon: the last word of a thread is not quite its end."""
    for _ in range(1000):
        if _thread._count() == count:
            return
        time.sleep(0.001)
    pytest.fail("a thread is left")


def asking(count, told):
    """Asks so many times, and notes the answers."""

    def task(ask):
        for step in range(count):
            told.append(ask(np.array([count, step], float)))

    return task


def test_all_that_ask_are_answered_at_once_and_by_the_caller():
    counts, rounds, told = (3, 1, 2), [], [[], [], []]

    def answers(points):
        assert threading.current_thread() is threading.main_thread()
        rounds.append(points.tolist())
        return points.sum(1), 2 * points

    in_lockstep([asking(*pair) for pair in zip(counts, told, strict=True)], answers)
    assert rounds == [[[3, 0], [1, 0], [2, 0]], [[3, 1], [2, 1]], [[3, 2]]]
    assert [value for value, _ in told[0]] == [3.0, 4.0, 5.0]
    np.testing.assert_array_equal(told[2][1][1], [4.0, 2.0])
    in_lockstep([], answers)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_the_model_raises_ends_all(error):
    def answers(points):
        raise error("no")

    before = _thread._count()
    with pytest.raises(error, match="no"):
        in_lockstep([asking(2, []), asking(3, [])], answers)
    assert_as_many_threads(before)


def test_what_a_search_raises_ends_all_too():
    def fails(ask):
        ask(np.zeros(2))
        raise ZeroDivisionError

    before = _thread._count()
    with pytest.raises(ZeroDivisionError):
        in_lockstep([asking(9, []), fails], lambda points: (points.sum(1), points))
    assert_as_many_threads(before)


@pytest.mark.parametrize("fails", ["to start", "without a word"])
@pytest.mark.parametrize("started", [0, 1])
def test_without_memory_for_a_thread_it_ends_with_a_memory_error(fails, started, monkeypatch):
    """Python's own ``Thread.start`` would wait for ever for a thread that is lost."""
    start, left = _thread.start_new_thread, [started]

    def short_of_memory(function, arguments):
        left[0] -= 1
        if left[0] >= 0:
            return start(function, arguments)
        if fails == "to start":
            raise RuntimeError("can't start new thread")
        return 0

    monkeypatch.setattr(_thread, "start_new_thread", short_of_memory)
    monkeypatch.setattr(lockstep, "LOOK_EVERY", 0.01)
    before = _thread._count()
    with pytest.raises(MemoryError, match="no memory for a thread"):
        in_lockstep([asking(2, []), asking(3, [])], lambda points: (points.sum(1), points))
    assert_as_many_threads(before)
