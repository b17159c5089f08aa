"""The language model, in miniature: it runs, and what its benchmark measures is right."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyro")
pytest.importorskip("matplotlib")

import torch

from benchmarks import language_model
from examples import language_model as example

#: The rates are those of a network of some 10,000 weights on the whole text.
SMALL = (
    "--adamw-rates 3e-3 1e-2 3e-2 --adamw-decays 0.01 --adamw-beta2 0.999 --ivon-rates 1 3 10 "
    "--ivon-decay 1e-4 --temperatures 1 --hess-init 0.1 --beta2 0.997 --clip-radius 0.03 "
    "--characters 400000 --shorter 1 "
)
TINY = SMALL + (
    "--width 8 --layers 1 --heads 2 --context 16 --batch 8 --steps 40 --draws 2 --seeds 1 "
    "--windows 16 --warm 2"
)


def test_calibration_error_of_a_forecaster_that_says_nine_tenths_and_is_right_half_the_time():
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1]])
    assert example.calibration_error(probabilities, np.array([0, 1])) == pytest.approx(0.4)
    assert example.calibration_error(probabilities, np.array([0, 0])) == pytest.approx(0.1)


def test_area_counts_the_pairs_in_order():
    assert language_model.area(np.array([0.0, 2.0]), np.array([1.0, 3.0])) == 0.75


@pytest.mark.slow
def test_the_language_model_learns_by_both_optimisers_and_finished_runs_are_kept(tmp_path):
    of_ivon = "--hess-init 0 --hess-batches 5 --ivon-rates 1e-2 3e-2 --clip-radius 1"
    given = [*TINY.split(), *of_ivon.split(), "--runs", str(tmp_path / "runs")]
    options = language_model.parser().parse_args(given)
    text = example.python_reference()
    found = language_model.all_runs(text, options)
    for runs in found["series"].values():
        (_, _, first), *_, (_, _, last) = runs[0]["curve"]
        assert last < first - 0.2
        assert all(np.isfinite(losses).all() for losses in runs[0]["pruned"].values())
    again = language_model.all_runs(text, options)
    assert json.loads(json.dumps(found["series"])) == again["series"]
    quality, pruning = language_model.tables(found, options).values()
    # IVON at equal time is a series of its own, unless a step takes as long by both.
    assert len(quality) == {2: 5, 3: 8}[len(found["series"])] and len(pruning) == 3
    language_model.plot(found, tmp_path / "plot.png")


def test_the_batches_that_measure_the_curvature_count_as_steps():
    text = example.Text(torch.arange(256) % 4, torch.arange(64) % 4, 4)
    given = ["--hess-init", "0", "--hess-batches", "5", "--steps", "8"]
    options = language_model.parser().parse_args([*TINY.split(), *given])
    setting = example.Setting(rate=1e-2, decay=1e-4, temperature=1.0)
    curve = language_model.Curve(text, options)
    _, optimizer = example.train("IVON", setting, 8, 0, text, options, curve)
    assert optimizer.param_groups[0]["count"] == 3
    assert [step for step, _, _ in curve.points] == [6, 7, 8]
    before = [group["ess"] for group in optimizer.param_groups]
    with example.at_temperature(optimizer, 4.0, text):
        assert optimizer.param_groups[0]["ess"] == 64
    assert [group["ess"] for group in optimizer.param_groups] == before == [256]


def test_no_character_of_the_future_is_seen():
    torch.manual_seed(0)
    network = example.GPT(20, 16, 8, 2, 2)
    piece = torch.arange(16)[None]
    other = piece.clone()
    other[0, 9] = 19
    with torch.no_grad():
        before, after = network(piece), network(other)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(-1).any()


def test_pruning_by_signal_to_noise_keeps_what_the_posterior_is_sure_of():
    text = example.Text(torch.arange(64) % 4, torch.arange(64) % 4, 4)
    options = language_model.parser().parse_args(TINY.split())
    setting = example.Setting(rate=1.0, decay=1e-4, temperature=1.0)
    network, optimizer = example.start("IVON", setting, text, 0, options)
    with optimizer.sampled_params():
        pass
    sure = network.position.weight
    optimizer.state[sure]["hess"] += 1e6
    ranks = language_model.ranking(network, optimizer, "signal-to-noise")
    weights = [weight for weight in network.parameters() if weight.dim() >= 2]
    (mine,) = (rank for rank, weight in zip(ranks, weights, strict=True) if weight is sure)
    torch.testing.assert_close(mine, sure.detach().abs() * (64 * (1e6 + 0.1 + 1e-4)) ** 0.5)
    whole = [weight.clone() for weight in weights]
    language_model.pruned(network, ranks, text, options)
    assert all(map(torch.equal, weights, whole))
