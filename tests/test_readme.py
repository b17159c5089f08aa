"""The README's ```python blocks are one program, which runs as printed and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import pages
from docs.executed import published

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_code_runs_and_prints_what_the_page_says(tmp_path, monkeypatch):
    """But for numbers, which differ in their last digits from machine to machine."""
    monkeypatch.chdir(tmp_path)  # for pictures
    pytest.importorskip("numpyro")
    ours, claimed = published(README, "README.md"), README
    # Nor is it the same everywhere which marginal is the worst.
    number = re.compile(r"(?<=worst: )\S+|[-+]?\d[\d,]*(\.\d+)?")
    assert number.sub("#", ours) == number.sub("#", claimed), "docs/executed.py --publish README.md"
    bounds = [re.findall(r"^ *bound +(-[\d.]+)", page, re.MULTILINE) for page in (ours, claimed)]
    assert len(bounds[1]) == 2  # of SVI, and of the report
    for one, other in zip(*bounds, strict=True):
        assert float(one) == pytest.approx(float(other), abs=0.1)


def test_what_it_says_of_verdicts_is_counted():
    rows = [row for row in pages.read("verdicts.csv") if row["set"] == "gauntlet"]
    (found,) = [row for row in rows if row["class"] == "all"]
    counted = f"{found['false']} of {found['certified']} w(as|ere) false"
    assert re.search(counted, README)


def test_what_it_says_of_a_loop_is_in_the_table_of_the_demo():
    for row in pages.read("demo.csv"):
        what, steps, gap = (row[key] for key in list(row)[1:3] + list(row)[-1:])
        found = rf"^\| {re.escape(what)}.* \| {int(steps):,} \| {gap} \|$"
        assert row["PPL"] == "Pyro" or re.search(found, README, re.MULTILINE), what


def test_a_newcomer_reads_it_in_a_minute_and_meets_no_words_of_the_machinery():
    assert len(README.split()) <= 750
    first = [*(ROOT / "docs" / "start").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
    pages_of_newcomers = {path.stem: path.read_text("utf-8") for path in first}
    del pages_of_newcomers["from_the_papers"]
    assert len(pages_of_newcomers) == 6
    for text in (README, *pages_of_newcomers.values()):
        assert not re.search(r"k-hat|explor|curvature", text, re.IGNORECASE)


def test_the_versions_are_those_of_the_constraints():
    """The column "tested" of the page on installation."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", _text("constraints.txt"), re.MULTILINE))
    page = _text("docs/start/install.md")
    rows = re.findall(r"^\| ([a-zA-Z, -]+?)(?: \(.*?\))? \| .*? \| (.*?) \|", page, re.MULTILINE)
    checked = 0
    for names, versions in rows:
        for name, version in zip(names.split(", "), versions.split(", "), strict=False):
            if name.lower() in pins:
                assert pins[name.lower()] == version, name
                checked += 1
    assert checked == 8


def test_the_version_is_one_everywhere_and_its_day_too():
    day = re.search(r"^date-released: (\S+)$", _text("CITATION.cff"), re.MULTILINE)[1]
    assert f'version: "{_version()}"' in _text("CITATION.cff")
    assert f"## [{_version()}] - {day}" in _text("CHANGELOG.md")
    assert f"now {_version().rpartition('.')[0]}:" in _text("SECURITY.md")


def _text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def _version():
    return re.search(r'__version__ = "(.*?)"', _text("ngvi/__init__.py"))[1]
