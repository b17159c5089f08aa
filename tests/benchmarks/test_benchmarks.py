"""``benchmarks``: one command that lists and runs all of them, and a page that is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.registry import FOLDER, scripts

ROOT = Path(__file__).parents[2]
README = (FOLDER / "README.md").read_text("utf-8")
SCRIPTS = list(scripts())


def test_every_module_with_a_command_line_is_listed():
    with_one = {path for path in FOLDER.rglob("*.py") if ".parse_args(" in path.read_text("utf-8")}
    assert with_one == {script.path for script in SCRIPTS}
    assert len(SCRIPTS) > 25


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_says_what_it_measures_and_how_it_is_run(script):
    assert script.about.endswith(".")
    assert f"python -m benchmarks {script.name}" in script.docstring


def test_the_list_is_printed_without_importing_a_benchmark():
    code = (
        "import runpy, sys; sys.argv = ['benchmarks']; "
        "runpy.run_module('benchmarks', run_name='__main__'); "
        "print(sorted({'jax', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    assert {script.name for script in SCRIPTS} <= {line.split(" ")[0] for line in lines}


def test_a_benchmark_is_run_by_its_name():
    command = [sys.executable, "-m", "benchmarks"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "check": False}
    helped = subprocess.run([*command, "horseshoe"], **options)
    assert helped.returncode and "lists them" in helped.stderr
    helped = subprocess.run([*command, "soak", "--help"], **options)
    assert not helped.returncode and "--steps" in helped.stdout


def test_the_page_leads_to_what_is_there():
    for link in re.findall(r"\]\((.*?)\)", README):
        assert (FOLDER / link).exists(), link
    for name in re.findall(r"`(\w+\.py|\w+/)`", README):
        assert (FOLDER / name).exists(), name


def test_one_page_lists_all_with_day_machine_command_and_code():
    rows = pages.read(pages.INDEX)
    listed = [re.search(r"\]\((.*)\)", row["page"])[1] for row in rows]
    there = {path.name for path in pages.FOLDER.glob("*.md")} - {"index.md"}
    assert there == {name for name in listed if not name.startswith("../")}
    names = {script.name for script in SCRIPTS}
    for row, name in zip(rows, listed, strict=True):
        assert set(re.findall(r"python -m benchmarks (\w+)", row["command"])) <= names
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["last run"]) and "core" in row["machine"]
        assert re.fullmatch(r"\d+\.\d+\.\d+|before the redesign", row["code"])
        if "of the search before the redesign" in (pages.FOLDER / name).read_text("utf-8"):
            assert row["code"] == "before the redesign", name


def test_a_run_is_noted_on_the_list(tmp_path, monkeypatch):
    for name in ("index.csv", "index.md", "ivon.md"):
        (tmp_path / name).write_text((pages.FOLDER / name).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    monkeypatch.setattr(pages, "pages", lambda: sorted(tmp_path.glob("*.md")))
    old = [row | {"last run": "2000-01-01"} for row in pages.read(pages.INDEX)]
    pages.write(pages.INDEX, old, "as it was")
    pages.write("ivon.csv", [{"what": "memory", "method": "new"}], "as it was")
    (changed,) = [new for new, was in zip(pages.read(pages.INDEX), old, strict=True) if new != was]
    assert "ivon.md" in changed["page"] and "| new |" in (tmp_path / "ivon.md").read_text("utf-8")
    assert f"| {changed['last run']} |" in (tmp_path / "index.md").read_text("utf-8")


def test_no_command_runs_a_benchmark_as_a_file():
    """As a file a script does not find its neighbours. CSVs say as well how they were made."""
    folders = (ROOT / name for name in ("docs", "examples", "ngvi", "pyro_ngvi", "numpyro_ngvi"))
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.*"))]
    texts = [path for path in paths if path.suffix in {".md", ".py", ".csv", ".rst"}]
    assert len(texts) > 300
    as_a_file = re.compile("python[0-9.]* benchmarks/")
    assert not [path for path in texts if as_a_file.search(path.read_text("utf-8"))]


def test_examples_run_without_the_benchmarks():
    """Which a source distribution does not have."""
    for path in (ROOT / "examples").rglob("*.py"):
        assert not re.search(r"^(from|import) benchmarks", path.read_text("utf-8"), re.MULTILINE)
