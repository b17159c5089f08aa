"""A sweep has every row, whatever the size of its minibatches."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.sweep import Rows, sweep


def _counts(size: int, visited: int, seed: int = 0) -> tuple[np.ndarray, int]:
    """How often each row counts, and how many minibatches there are."""
    batches, shares = sweep(Rows("data", size, visited), seed)
    counts, count = np.zeros(size), 0
    for rows, share in zip(batches, shares, strict=True):
        assert rows.shape == (visited,)
        np.add.at(counts, rows, share * size / visited)
        count += 1
    assert sum(shares) == pytest.approx(1.0)  # of what is no row's, as the prior
    return counts, count


@pytest.mark.parametrize(
    "size, visited",
    [(6, 3), (60, 7), (1000, 64), (1000, 700), (5, 4), (1000, 99), (4406, 300), (997, 996), (9, 1)],
)
def test_rows_count_once_if_they_fill_the_minibatches_or_not(size, visited):
    counts, count = _counts(size, visited)
    np.testing.assert_allclose(counts, 1.0, atol=1e-12)
    assert count <= size // visited + 10


def test_rows_count_once_of_all_sizes():
    rng = np.random.default_rng(0)
    for visited in range(1, 400):
        size = int(rng.integers(visited, 3 * visited + 2))
        np.testing.assert_allclose(_counts(size, visited)[0], 1.0, atol=1e-12)


def test_minibatches_that_do_not_fill_the_rows_have_the_bound_of_all(ppl):
    """Counts of a broad spread, so that a row that counts a little more is seen: 143 in 30."""
    rng = np.random.default_rng(2)
    y = np.exp(rng.normal(0.0, 2.0, 143))

    def model(y, size):
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 5.0))
        with ppl.plate("rows", len(y), subsample_size=size) as rows:
            ppl.sample("y", ppl.dist.Normal(mean, 1.0), obs=y[rows])

    with ppl.float64():
        found = [ppl.fit(model, ppl.array(y), size, reparametrize=False) for size in (143, 30)]
    whole, parts = found
    assert parts.converged
    assert parts.bound == pytest.approx(whole.bound, rel=1e-12)


def test_latents_of_rows_that_stand_twice_in_a_minibatch_have_the_bound_of_all(ppl):
    rng = np.random.default_rng(3)
    y = rng.normal(0.0, 2.0, 23)

    def model(y, size=23):
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 5.0))
        with ppl.plate("rows", len(y), subsample_size=size) as rows:
            own = ppl.sample("own", ppl.dist.Normal(mean, 1.0))
            ppl.sample("y", ppl.dist.Normal(own, 1.0), obs=y[rows])

    def plates(y, size=23):
        return ppl.plate("rows", len(y), subsample_size=size)

    with ppl.float64():
        y, options = ppl.array(y), {"reparametrize": False, "create_plates": plates}
        whole, parts = (ppl.fit(model, y, size, **options) for size in (23, 9))
    assert parts.converged
    assert parts.bound == pytest.approx(whole.bound, abs=0.1)
    means = [ppl.numpy(found.posterior.mean) for found in (whole, parts)]
    np.testing.assert_allclose(*means, atol=0.05)
