"""The sealed models: files that are those of the page, and the command that opens a part."""

from __future__ import annotations

import ast
import csv
import hashlib
import re
import sys
import zipfile

import pytest

from benchmarks.models import PPLS, entries
from benchmarks.pages import ROOT

PAGE = (ROOT / "docs" / "unseen.md").read_text("utf-8")
PARTS = re.findall(r"^\| (part_\d+) \| `([0-9a-f]{64})` \|", PAGE, re.MULTILINE)
FOLDER = ROOT / "benchmarks" / "unseen"

TWO = """
import numpy as np
from benchmarks.models.entries import entry

def one(ppl, y):
    mu = ppl.sample("mu", ppl.Normal(0.0, 10.0))
    ppl.rows(ppl.Normal(mu, 1.0), y)

entry("trivial", lambda: (np.arange(9.0),), "one", part="part_0")(one)
entry("trivial", lambda: (np.arange(5.0),), "two", part="part_0", precision="float32")(one)
"""


def test_the_page_lists_the_sealed_files():
    assert [name for name, _ in PARTS] == sorted(path.stem for path in FOLDER.glob("*.zip"))


@pytest.mark.parametrize("name, digest", PARTS)
def test_a_sealed_file_has_the_hash_of_the_page_and_the_helpers_that_it_imports(name, digest):
    path = FOLDER / f"{name}.zip"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == [f"{name}.py"]
        tree = ast.parse(file.read(f"{name}.py"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module == entries.__name__]
    assert ours and all(hasattr(entries, one.name) for node in ours for one in node.names)


@pytest.mark.slow
def test_a_part_is_opened_into_a_csv_and_counted(tmp_path, monkeypatch, capsys):
    pytest.importorskip("jax"), pytest.importorskip("pyro")
    from benchmarks.unseen import __main__ as runner

    with zipfile.ZipFile(tmp_path / "part_0.zip", "w") as file:
        file.writestr("part_0.py", TWO)
    out = tmp_path / "fits.csv"
    monkeypatch.setattr(sys, "argv", ["unseen", "0", "--out", str(out)])
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(entries, "ENTRIES", entries.ENTRIES.copy())
    runner.main(tmp_path)
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert len(rows) == 2 * len(PPLS) * 2 and {row["verdict"] for row in rows} == {"certified"}
    assert {row["draws"] for row in rows} == {"accurate"}
    assert [row["precision"] for row in rows] == ["float64"] * 4 + ["float32"] * 4
    said = "8 of 8 fits certified, false 0, of models with one optimum 8 of 8, exceptions 0"
    assert f"{said}, seeds agree in 4 of 4 pairs" in capsys.readouterr().out
