"""A sweep has every row, whatever the size of its minibatches."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.fit.sweep import Rows, sweep


def _counts(size: int, visited: int, seed: int = 0) -> tuple[np.ndarray, int]:
    """How often each row counts, and how many minibatches there are."""
    batches, shares = sweep(Rows("data", size, visited), seed)
    counts, count = np.zeros(size), 0
    for rows, share in zip(batches, shares, strict=True):
        assert len(np.unique(rows)) == visited
        counts[rows] += share * size / visited
        count += 1
    return counts, count


@pytest.mark.parametrize("size, visited", [(6, 3), (60, 7), (1000, 64), (1000, 700), (5, 4)])
def test_rows_count_once_if_they_fill_the_minibatches_or_not(size, visited):
    counts, _ = _counts(size, visited)
    np.testing.assert_allclose(counts, 1.0)


def test_of_sizes_without_a_common_divisor_rows_count_about_once():
    """Exactly would take 109 windows."""
    counts, count = _counts(1000, 99)
    assert count == 29
    assert np.abs(counts - 1.0).max() < 0.05
    mean = np.mean([_counts(1000, 99, seed)[0] for seed in range(200)], 0)
    assert np.abs(mean - 1.0).max() < 0.005
