"""The page of the PPLs' examples: what it counts as lower, and that its CSV loses nothing."""

from __future__ import annotations

import pytest

from benchmarks.ppl_examples.page import append, page, read, verdict


def row(fit, stock=None, other=None, nuts=None):
    def cell(value):
        if value is None or isinstance(value, dict):
            return value or {}
        return {"error": value} if isinstance(value, str) else {"bound": value, "bound_error": 0.01}

    cells = {"fit": cell(fit), "AutoNormal": cell(stock), "AutoMultivariateNormal": cell(other)}
    return {"model": "m", **cells} | ({} if nuts is None else {"NUTS": cell(nuts)})


CASES = {
    "higher than both": (row(-1.0, -3.0, -2.0), "higher"),
    "within the tolerance": (row(-1.0, -0.9), "equal"),
    "below the better one": (row(-1.0, -3.0, -0.8), "lower"),
    "below, but for noise": (row({"bound": -1.0, "bound_error": 0.3}, -0.5), "equal"),
    "no bound at all": (row(float("nan"), -3.0), "lower"),
    "no bound of anybody": (row(float("nan"), "ValueError: x"), "all raise"),
    "no bound, and NUTS runs": (row(float("nan"), "ValueError: x", nuts={}), "lower"),
    "a stock bound that is none": (row(-1.0, -1.2, 1e27), "higher"),
    "only fit gets through": (row(-1.0, "ValueError: x", "ValueError: x"), "alone"),
    "only NUTS gets through": (row("ValueError: x", "ValueError: x", nuts={}), "raises"),
    "a stock guide gets through": (row("ValueError: x", -1.0, nuts="ValueError: x"), "raises"),
    "three steps": (row(-1.0), "not compared"),
    "nobody gets through": (row("E: x", "E: x", "E: x", nuts="E: x"), "all raise"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_judged_the_same_before_and_after_the_csv(name, tmp_path):
    given, expected = CASES[name]
    assert verdict(given) == expected
    append(tmp_path / "rows.csv", "pyro", "a/b", [given], [], "c0ffee1")
    assert [verdict(read) for read in read(tmp_path / "rows.csv")] == [expected]


def test_a_file_that_is_run_again_replaces_its_rows(tmp_path):
    path = tmp_path / "rows.csv"
    append(path, "pyro", "a/b", [row(-5.0, -1.0)], ["more than 300 s"], "c0ffee1")
    append(path, "numpyro", "a/b", [row(-1.0, -1.0)], [], "c0ffee1")
    append(path, "pyro", "a/b", [row(-1.0, -3.0), row(-1.0, -3.0)], [], "c0ffee2")
    assert [verdict(each) for each in read(path)] == ["equal", "higher", "higher"]
    assert "| pyro | 2 | 2 | 0 | 0 | 0 | 0 | 0 | 0 |" in page(path, {})
    assert "300 s" not in page(path, {})
