"""``networks.py`` and ``uci.py`` of the benchmarks: what they compute beside the runs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import networks, uci
from examples.bnn import Scores


def test_a_split_is_scored_in_the_units_of_its_target():
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(20, 2)), 5 + 3 * rng.normal(size=20)
    data = uci.split(inputs, targets, np.arange(4))
    assert data.x.shape == (16, 2)
    assert data.y.std() == pytest.approx(1, abs=1e-5)
    draws = uci.Draws(np.zeros((2, 4)), np.array([1.0, 4.0]))
    found = uci.scored(data, draws, 0.0, 0.0)
    errors, scales = data.test_y - data.middle, data.scale / np.array([[1.0], [2.0]])
    densities = np.exp(-0.5 * (errors / scales) ** 2) / (scales * (2 * np.pi) ** 0.5)
    assert found.log_likelihood == pytest.approx(np.log(densities.mean(0)).mean())
    assert found.rmse == pytest.approx((errors**2).mean() ** 0.5)


def test_minibatches_have_all_rows_once_before_any_comes_again():
    rows = list(uci.minibatches(2 * uci.BATCH, 5, 0))
    assert len(rows) == 5
    assert sorted(np.concatenate(rows[:2])) == sorted(np.concatenate(rows[2:4]))


def test_rows_of_a_path_are_means_over_seeds_at_each_look():
    runs = [
        [Scores(0.5, nll, 0.25, -10.0 * nll, 0.0, np.empty(0)) for _ in networks.LOOKS]
        for nll in (1.0, 2.0)
    ]
    rows = networks.rows_of_path("digits", "IVON()", runs)
    assert [int(row["steps"]) for row in rows] == list(networks.LOOKS)
    assert (rows[0]["data"], rows[0]["seeds"]) == ("digits", "2")
    assert rows[0]["nll"] == "1.500"
    assert rows[0]["bound"] == "-15"
