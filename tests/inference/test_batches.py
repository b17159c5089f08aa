"""A fit whose rows come in batches is that of all rows."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.batches import Batches, averaging, fraction
from ngvi.inference.engine import Engine
from tests.ppl import load

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

        model = _model(ppl)
        whole = ppl.fit(model, ppl.array(X), ppl.array(y), scale=0.5)
        found = ppl.fit(model, batches=batches, scale=0.5)
        for key, values in whole.sample(1).items():
            assert found.sample(1)[key].shape == values.shape
        mean, expected = (ppl.numpy(result.family.loc) for result in (found, whole))
        np.testing.assert_allclose(mean, expected, rtol=1e-9)
        assert found.bound == pytest.approx(whole.bound, abs=1e-9)
        assert found.num_gradients < 1.2 * whole.num_gradients  # a pass counts once
        assert "in batches" in found.diagnostics.verdict
        assert found.diagnose() is found.diagnostics  # of the first batch they would be wrong

        bad = [
            [X[rows], np.where(rows == 20, np.nan, y[rows])] for rows in np.split(np.arange(30), 3)
        ]
        bad = [tuple(map(ppl.array, part)) for part in bad]
        with pytest.warns(
            UserWarning, match=r"not finite at any start.*batch 2, counted from zero"
        ):
            assert not ppl.fit(model, batches=bad, scale=0.5).converged
        empty = ppl.array(X[:0]), ppl.array(y[:0])
        with pytest.raises(ValueError, match="Batch 0 of batches=.*Leave an empty batch out"):
            ppl.fit(model, batches=[empty, *bad], scale=0.5)
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
        found = ppl.fit(model, batches=loader)
        np.testing.assert_allclose(ppl.numpy(found.family.loc), exact, rtol=1e-6)
        ppl.forget()
        options = {}
        if ppl.is_numpyro:
            import jax

            options["rng_key"] = jax.random.key(0)
        guide, loss = ppl.guide(model, "full"), ppl.elbo("NaturalELBO")
        svi = ppl.package.SVI(model, guide, ppl.optimiser("BLR"), loss, **options)
        for _ in range(60):
            for batch in loader:
                svi.step(*batch)
        params = (svi.params,) if ppl.is_numpyro else ()
        mean = ppl.numpy(guide.get_posterior(*params).mean)
        assert (abs(mean - exact) < 0.5 * sd).all()


class _Inner:
    """Two batches, of one and of three rows of four: values that are linear in them."""

    num_gradients = num_hessian_products = num_values = 0

    def see(self, args, kwargs):
        self.row = args[0]
        return {1.0: 0.25, 5.0: 0.75}[self.row]

    def values(self, place, theta):
        self.num_values += len(theta)
        return self.row * theta[:, 0]

    def values_and_gradients(self, place, theta):
        self.num_gradients += len(theta)
        return np.full(len(theta), self.row), self.row * theta


def test_answers_are_weighted_by_rows_and_a_pass_is_one_evaluation():
    engine = averaging(Engine(_Inner(), None, None), Batches([1.0, 5.0], (), {}))
    theta = np.array([[1.0], [2.0]])
    np.testing.assert_allclose(engine.evaluator.values(None, theta), [4.0, 8.0])
    values, gradients = engine.evaluator.values_and_gradients(None, theta[1:])
    assert (values[0], gradients[0, 0]) == (4.0, 8.0)
    assert (engine.evaluator.num_values, engine.evaluator.num_gradients) == (2, 1)


def test_an_empty_batch_is_told_by_its_number():
    engine = averaging(Engine(_Inner(), None, None), Batches([1.0, np.zeros((0, 2))], (), {}))
    with pytest.raises(ValueError, match="Batch 1 of batches=.*Leave an empty batch out"):
        engine.evaluator.values(None, np.zeros((1, 1)))


def test_the_error_of_a_batch_has_its_number():
    engine = averaging(Engine(_Inner(), None, None), Batches([1.0, 7.0], (), {}))
    with pytest.raises(KeyError) as error:
        engine.evaluator.values(None, np.zeros((1, 1)))
    assert "batch 1 of batches=" in error.value.__notes__[0]


@pytest.mark.parametrize("at", [0, 1])
def test_the_error_of_whatever_reads_the_batches_is_told_from_the_models(at):
    def read():
        for number in range(2):
            if number == at:
                raise OSError("the disk is gone")
            yield 1.0

    engine = averaging(Engine(_Inner(), None, None), Batches(read, (), {}))
    with pytest.raises(OSError, match="the disk is gone") as error:
        engine.evaluator.values(None, np.zeros((1, 1)))
    assert f"batches= raised this where batch {at}, " in error.value.__notes__[0]


def test_a_function_that_returns_no_batches_is_told():
    with pytest.raises(TypeError, match="batches= is a function that returned None"):
        Batches(lambda: None, (), {}).first()


@pytest.mark.parametrize("batch", [{"X": 1, "y": 2}, (1, 2), [1, 2]])
def test_a_batch_is_arguments_by_name_or_by_place(batch):
    args, kwargs = Batches(lambda: iter([batch]), (), {"scale": 3}).first()
    assert kwargs["scale"] == 3 and [*args, *kwargs.values()] in ([1, 2, 3], [3, 1, 2])


def test_batches_that_cannot_be_read_again_or_are_none_are_refused():
    with pytest.raises(TypeError, match="only once.*function that makes it"):
        Batches(iter([1]), (), {})
    with pytest.raises(TypeError, match="iterable of batches"):
        Batches(3, (), {})
    with pytest.raises(ValueError, match="by their names"):
        Batches([1], (2,), {})
    with pytest.raises(ValueError, match="holds none"):
        Batches([], (), {}).first()


def test_plates_that_are_whole_or_disagree_are_named():
    with pytest.raises(ValueError, match=r"every batch for all rows.*plate\(y\)"):
        fraction({}, "plate(y)")
    with pytest.raises(ValueError, match="50% of 'a', 20% of 'b'"):
        fraction({"a": (1, 2), "b": (1, 5)}, "")
