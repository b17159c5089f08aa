"""Searches in lockstep: what each is told, by whom, and what ends them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ngvi.inference.lockstep import in_lockstep


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

    before = threading.active_count()
    with pytest.raises(error, match="no"):
        in_lockstep([asking(2, []), asking(3, [])], answers)
    assert threading.active_count() == before


def test_what_a_search_raises_ends_all_too():
    def fails(ask):
        ask(np.zeros(2))
        raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        in_lockstep([asking(9, []), fails], lambda points: (points.sum(1), points))
    assert threading.active_count() == before
