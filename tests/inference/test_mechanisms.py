"""The ledger of mechanisms: every switch has a row, and a fit ends without any of them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from ngvi.inference.options import FitOptions
from tests.inference.numpy_problem import Target
from tests.inference.test_multistart import TWO, solved

ROOT = Path(__file__).parent.parent.parent
SWITCHES = [one.name for one in dataclasses.fields(FitOptions) if isinstance(one.default, bool)]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "mechanisms.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and "| switch |" not in line
]


def test_every_switch_has_one_row_and_every_row_a_switch_and_a_file():
    switches = [re.fullmatch("`(.*)`", row[2])[1] for row in ROWS]
    assert sorted(one for one in switches if not one.endswith("=")) == sorted(SWITCHES)
    for mechanism, purpose, _, file, worth in ROWS:
        assert mechanism and purpose and worth
        assert (ROOT / file.strip("`")).is_file(), file


def test_rows_that_name_an_argument_name_one_of_fit_sample_or_nuts(ppl):
    kind = ppl.package.FitResult
    known = {
        name
        for function in (ppl.package.fit, kind.sample, kind.nuts)
        for name in inspect.signature(function).parameters
    }
    assert {row[2].strip("`=") for row in ROWS if row[2].endswith("=`")} <= known


def test_every_switch_has_models_that_measure_its_worth():
    pytest.importorskip("jax")
    ablate = pytest.importorskip("benchmarks.ablate")
    assert sorted(ablate.MECHANISMS) == sorted([*SWITCHES, *ablate.WITHOUT])
    ablate.opened(1)
    for mechanism, pattern in ablate.MECHANISMS.items():
        assert ablate.chosen(pattern, ablate.PARTS.get(mechanism, "newest"))


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fit_ends_without_any_of_them(switch):
    target = Target(TWO, of_prior=(3.0, 4.0))
    outcome = solved(target, options=FitOptions(**{switch: False}))
    assert outcome.converged and target.cost.total < 50_000
