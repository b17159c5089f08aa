"""The scripts of Tan's figures and of its tables of networks, in miniature."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("pyro")
pytest.importorskip("matplotlib")

from examples.benchmarks import pages, tan_figure3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a command writes, in place of the documentation."""
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    monkeypatch.setattr(pages, "pages", list)
    return tmp_path


def test_adam_on_natural_gradients_leaves_the_gaussians_as_in_figure_3_and_snngm_does_not():
    *_, run = tan_figure3.exact_numpyro("Adam, natural", "Covariance", 50)
    assert np.isnan(run.bound)
    *_, run = tan_figure3.exact_numpyro("Snngm", "Covariance", 50)
    assert len(run.states) == 50
    assert run.bound > tan_figure3.until_it_is_there(np.array([[2.0, 0.01]])).bound + 1


def test_both_packages_take_as_many_steps_in_figure_3(monkeypatch):
    monkeypatch.setattr(tan_figure3, "STARTS", [(1.05, 0.002)])
    counts = [
        len(run("Snngm", "CovarianceCholesky", 100)[0].states)
        for run in (tan_figure3.exact_numpyro, tan_figure3.exact_pyro)
    ]
    assert 5 < counts[0] == counts[1] < 100


@pytest.mark.slow
def test_the_command_of_figure_3(folder, monkeypatch):
    monkeypatch.setattr("sys.argv", ["", "--exact-steps", "20", "--max-steps", "3"])
    tan_figure3.main()
    assert len(pages.read("tan_figure3.csv")) == 9
    assert len(pages.read("tan_figure3_svi.csv")) == 4
    assert (folder / "tan_figure3.png").exists()
