"""Minibatches of any size, and the user's batches, add up to all rows."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.data_passes import minibatches, over_minibatches
from ngvi.inference.problem import Rows
from tests.inference.numpy_problem import Target, normal
from tests.ppl import SLOW_IN_NUMPYRO, load

# -- minibatches -----------------------------------------------------------------------


def _counts(size: int, visited: int, seed: int = 0) -> tuple[np.ndarray, int]:
    """How often each row counts, and how many minibatches there are."""
    batches, shares = minibatches(Rows("data", size, visited), seed)
    counts, count = np.zeros(size), 0
    for rows, share in zip(batches, shares, strict=True):
        assert rows.shape == (visited,)
        np.add.at(counts, rows, share * size / visited)
        count += 1
    assert sum(shares) == pytest.approx(1.0)  # of what is no row's, as the prior
    return counts, count


def test_rows_count_once_of_all_sizes():
    rng = np.random.default_rng(0)
    for visited in range(1, 400):
        size = int(rng.integers(visited, 3 * visited + 2))
        np.testing.assert_allclose(_counts(size, visited)[0], 1.0, atol=1e-12)


Y = np.random.default_rng(4).normal(1.0, 2.0, 23)


def of_rows(visited, **options):
    """Latents whose data come in rows, 23 of them, of which a minibatch has some."""

    def density(theta, rows):
        return -0.5 * (Y[rows] - theta[:, :1] - 0.1 * theta[:, 1:] * rows) ** 2

    rows = Rows("rows", len(Y), visited)
    return Target(lambda theta: normal(theta / 3.0), rows=rows, of_rows=density, **options)


@pytest.mark.parametrize("visited", [1, 4, 5, 22])
def test_bounds_gradients_and_values_are_those_of_all_rows(visited):
    target, rng = of_rows(visited, is_subsampled=True), np.random.default_rng(0)
    one = over_minibatches(target.problem()).objective
    assert not one.is_subsampled and one.cost is target.cost
    state, theta, sample = target.initial, rng.normal(size=(5, 2)), target.sample(rng, 3)
    found, expected = one.bound(state, sample), target.bound(state, sample)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-10)
    np.testing.assert_allclose(found.natural, expected.natural, rtol=1e-5)
    np.testing.assert_allclose(found.mean.gradient, expected.mean.gradient, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(one.log_density(state, theta), target.log_density(state, theta))
    for part, whole in zip(one.gradient(state, theta), target.gradient(state, theta), strict=True):
        np.testing.assert_allclose(part, whole, rtol=1e-5)


@pytest.mark.fast_in_numpyro
def test_minibatches_that_do_not_fill_the_rows_have_the_bound_of_all(ppl):
    """Counts of a broad spread, so that a row that counts a little more is seen: 143 in 30."""
    rng = np.random.default_rng(2)
    y = np.exp(rng.normal(0.0, 2.0, 143))

    def model(y, size):
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 5.0))
        with ppl.plate("rows", len(y), subsample_size=size) as rows:
            ppl.sample("y", ppl.dist.Normal(mean, 1.0), obs=y[rows])

    with ppl.float64():
        found = [ppl.fit(model, ppl.array(y), size, effort="quick") for size in (143, 30)]
    whole, parts = found
    assert parts.converged
    assert parts.bound == pytest.approx(whole.bound, rel=1e-12)


@SLOW_IN_NUMPYRO
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
        guides = (ppl.guide(model, create_plates=plates) for _ in range(2))
        runs = zip((23, 9), guides, strict=True)
        whole, parts = (
            ppl.fit(model, ppl.array(y), n, guide=guide, effort="quick") for n, guide in runs
        )
    assert parts.converged
    assert parts.bound == pytest.approx(whole.bound, abs=0.1)
    means = [ppl.numpy(found.posterior.mean) for found in (whole, parts)]
    np.testing.assert_allclose(*means, atol=0.05)


# -- the user's batches --------------------------------------------------------------

NUM_ROWS = 30


def _model(ppl):
    def model(X, y, scale=1.0):
        prior = ppl.dist.Normal(ppl.array(np.zeros(2)), 2.0).to_event(1)
        weights = ppl.sample("weights", prior)
        with ppl.plate("data", NUM_ROWS, subsample_size=len(y)):
            ppl.sample("y", ppl.dist.Normal(X @ weights, scale), obs=y)

    return model


def _rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(NUM_ROWS, 2))
    return X, X.sum(1) + rng.normal(size=NUM_ROWS)


@pytest.mark.parametrize("name", ["pyro", pytest.param("numpyro", marks=pytest.mark.slow)])
def test_batches_of_unequal_sizes_in_any_order_give_the_fit_of_all_rows(name):
    ppl = load(name)
    with ppl.float64():
        X, y = _rows()
        parts = [(X[rows], y[rows]) for rows in np.split(np.arange(NUM_ROWS), [12, 24])]
        passes = []

        def batches():
            passes.append(1)
            order = parts if len(passes) % 2 else parts[::-1]
            return ([ppl.array(part) for part in batch] for batch in order)

        model, options = _model(ppl), {"scale": 0.5, "effort": "quick"}
        whole = ppl.fit(model, ppl.array(X), ppl.array(y), **options)
        found = ppl.fit(model, batches=batches, **options)
        for key, values in whole.sample(1).items():
            assert found.sample(1)[key].shape == values.shape
        mean, expected = (ppl.numpy(result.family.loc) for result in (found, whole))
        np.testing.assert_allclose(mean, expected, rtol=1e-9)
        assert found.bound == pytest.approx(whole.bound, abs=1e-9)
        assert found.cost.gradients < 1.2 * whole.cost.gradients  # a pass counts once
        assert "in batches" in found.diagnostics.accuracy.fault

        bad = [
            [X[rows], np.where(rows == 20, np.nan, y[rows])] for rows in np.split(np.arange(30), 3)
        ]
        bad = [tuple(map(ppl.array, part)) for part in bad]
        with pytest.warns(
            UserWarning, match=r"not finite at any start.*batch 2, counted from zero"
        ):
            assert not ppl.fit(model, batches=bad, **options).converged
        with pytest.raises(ValueError, match=r"cover 80% of the rows.*drop_last"):
            ppl.fit(model, batches=[tuple(map(ppl.array, part)) for part in parts[:2]], scale=0.5)


def _loader(ppl, X, y, size):
    """Shuffled minibatches, by a ``DataLoader``; in JAX as of tf.data or Grain, numpy's arrays."""
    if ppl.is_numpyro:

        class Loader:
            def __init__(self):
                self.rng = np.random.default_rng(0)

            def __iter__(self):
                order = self.rng.permutation(len(y))
                return ((X[rows], y[rows]) for rows in np.split(order, len(y) // size))

        return Loader()
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    numbers = torch.Generator().manual_seed(0)
    data = TensorDataset(ppl.array(X), ppl.array(y))
    return DataLoader(data, batch_size=size, shuffle=True, generator=numbers)


@pytest.mark.parametrize("name", ["pyro", pytest.param("numpyro", marks=pytest.mark.slow)])
def test_a_loader_feeds_fit_and_svi(name):
    """``fit`` with all its batches at every question, ``SVI`` with one of them a step."""
    ppl = load(name)
    ppl.forget()
    with ppl.float64():
        X, y = _rows()
        precision = np.eye(2) / 4 + X.T @ X
        exact, sd = np.linalg.solve(precision, X.T @ y), np.linalg.inv(precision).diagonal() ** 0.5
        model, loader = _model(ppl), _loader(ppl, X, y, 10)
        found = ppl.fit(model, batches=loader, effort="quick")
        np.testing.assert_allclose(ppl.numpy(found.family.loc), exact, rtol=1e-6)
        ppl.forget()
        options = {}
        if ppl.is_numpyro:
            import jax

            options["rng_key"] = jax.random.key(0)
        guide, loss = ppl.guide(model, "full"), ppl.elbo("NaturalELBO")
        svi = ppl.package.SVI(model, guide, ppl.optimiser("BLR"), loss, **options)
        for _ in range(20):
            for batch in loader:
                svi.step(*batch)
        params = (svi.params,) if ppl.is_numpyro else ()
        mean = ppl.numpy(guide.get_posterior(*params).mean)
        assert (abs(mean - exact) < 0.5 * sd).all()
