"""``benchmarks``: one command that lists and runs all of them, and a page that is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_page_leads_to_what_is_there_and_has_all_pages_of_figures():
    links = re.findall(r"\]\((.*?)\)", README)
    for link in links:
        assert (FOLDER / link).exists(), link
    for name in re.findall(r"`(\w+\.py|\w+/)`", README):
        assert (FOLDER / name).exists(), name
    pages = (ROOT / "docs" / "benchmarks").glob("*.md")
    assert {f"../docs/benchmarks/{page.name}" for page in pages} <= set(links)
    names = set(re.findall(r"`python -m benchmarks (\w+)", README))
    assert names <= {script.name for script in SCRIPTS} | {"NAME"}


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
