"""The README's ```python blocks are one program, which runs as printed and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import pages
from docs.executed import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _labels(report):
    """The first column of a report, and its bound."""
    bound = re.search(r"^  bound +(\S+)", report, re.MULTILINE)
    return re.findall(r"^ {0,2}[A-Z]?[A-Za-z\- ]+?(?=:|  )", report, re.MULTILINE), float(bound[1])


def _outputs(text):
    return re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_code_runs_and_its_report_is_the_one_that_is_printed():
    """Numbers differ in their last digits from machine to machine, and seconds entirely."""
    pytest.importorskip("numpyro")
    printed = _outputs(run(README, "README.md"))
    ours, claimed = map(_labels, filter(re.compile("FitResult").match, printed))
    assert ours[0] == claimed[0]
    assert ours[1] == pytest.approx(claimed[1], abs=0.1)
    assert printed[-1].startswith("bound -31.")  # that of SVI


def test_its_figures_are_the_demos():
    ((steps, nats, stock_steps),) = re.findall(
        r"after (\d+) steps;\n.*Adam.* is ([\d.]+) nats below it after (\d+) steps", README
    )
    for row in pages.read("demo.csv"):
        guide, gap = row["guide and optimiser"], row["below the optimum [nats]"]
        if "BLR" in guide:
            assert (row["steps"], float(gap)) == (steps, 0.0)
        if "Adam" in guide:
            assert (row["steps"], gap) == (stock_steps, nats)


def test_the_versions_are_those_of_the_constraints():
    """The column "tested" of the table, and the version of the citation."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", _text("constraints.txt"), re.MULTILINE))
    rows = re.findall(r"^\| ([a-zA-Z, -]+?)(?: \(.*?\))? \| .*? \| (.*?) \|", README, re.MULTILINE)
    checked = 0
    for names, versions in rows:
        for name, version in zip(names.split(", "), versions.split(", "), strict=False):
            if name.lower() in pins:
                assert pins[name.lower()] == version, name
                checked += 1
    assert checked == 8
    assert f'version: "{_version()}"' in _text("CITATION.cff")
    assert f"## [{_version()}]" in _text("CHANGELOG.md")


def _text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def _version():
    return re.search(r'__version__ = "(.*?)"', _text("ngvi/__init__.py"))[1]
