"""The page of mechanisms has what was measured."""

from __future__ import annotations

import pytest

from benchmarks import pages


def test_the_cells_of_mechanisms_are_those_of_the_csv():
    pytest.importorskip("numpyro")
    from benchmarks.ablate import MECHANISMS, NAME, worth

    page = (pages.ROOT / "docs" / "mechanisms.md").read_text("utf-8")
    rows = pages.read(NAME)
    for mechanism in {row["mechanism"] for row in rows} & MECHANISMS.keys():
        assert worth(mechanism, rows) in page, mechanism
