"""Updates of large data: what they cost, and how near a fit of all rows they end."""

from __future__ import annotations

import numpy as np
import pytest

from tests import models

NUM_ROWS, NUM_BATCHES, NUM_COVARIATES = 100_000, 10, 4


def data():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(NUM_ROWS, NUM_COVARIATES))
    likely = 1 / (1 + np.exp(-X @ rng.normal(size=NUM_COVARIATES) / 2))
    return X, (rng.uniform(size=NUM_ROWS) < likely).astype(float)


@pytest.mark.slow
def test_an_update_costs_its_own_rows_and_ten_are_a_fit_of_all(ppl, monkeypatch):
    rows = ppl.module("workflow.rows").ModelRows
    seen, whole = [], rows.__init__

    def counted(self, *args, **kwargs):
        whole(self, *args, **kwargs)
        seen.append(len(self.weights))

    monkeypatch.setattr(rows, "__init__", counted)
    (X, y), model = data(), models.logistic(ppl)
    size = NUM_ROWS // NUM_BATCHES
    full = ppl.fit(model, ppl.array(X), ppl.array(y))
    some = ppl.fit(model, ppl.array(X[:size]), ppl.array(y[:size]))
    for start in range(size, NUM_ROWS, size):
        batch = slice(start, start + size)
        some = some.update(ppl.array(X[batch]), ppl.array(y[batch]))
        assert some.cost.gradients == 0  # of the model with its prior and other rows
    assert set(seen) == {size} and some.converged
    step = ppl.numpy(some.posterior.mean) - ppl.numpy(full.posterior.mean)
    precision = np.linalg.inv(ppl.numpy(full.family.covariance_matrix))
    ratio = precision @ ppl.numpy(some.family.covariance_matrix)
    sizes = np.trace(ratio) - len(step) - np.linalg.slogdet(ratio)[1]
    assert 0.5 * (step @ precision @ step + sizes) < 0.05
    assert abs(some.bound - full.bound) < 0.05
