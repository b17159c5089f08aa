"""``benchmarks``: a package whose scripts are all listed, and run as modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
README = (FOLDER / "README.md").read_text("utf-8")


def _scripts():
    """By the name that follows ``python -m benchmarks.``."""
    for path in sorted(FOLDER.rglob("*.py")):
        if "ArgumentParser(" in path.read_text("utf-8"):
            yield ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__main__")


def _listed():
    return re.findall(r"^\| `([\w.]+)", README, re.MULTILINE)[1:]  # after the head


def test_every_script_is_listed_once_and_nothing_else():
    assert sorted(_listed()) == sorted(_scripts())
    assert len(_listed()) > 25


def test_the_list_leads_to_pages_and_modules_that_are_there():
    links = re.findall(r"\]\((.*?)\)", README)
    assert len(links) > 15
    for link in links:
        assert (FOLDER / link).exists(), link
    for name in re.findall(r"`(\w+\.py|\w+/)`", README):
        assert (FOLDER / name).exists(), name


@pytest.mark.parametrize("name", list(_scripts()))
def test_a_script_says_how_it_is_run_as_a_module(name):
    path = FOLDER.joinpath(*name.split("."))
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert f"python -m benchmarks.{name}" in said


def test_no_command_runs_a_benchmark_as_a_file():
    """As a file a script does not find its neighbours. CSVs say as well how they were made."""
    folders = (ROOT / name for name in ("docs", "examples", "ngvi", "pyro_ngvi", "numpyro_ngvi"))
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.*"))]
    texts = [path for path in paths if path.suffix in {".md", ".py", ".csv", ".rst"}]
    assert len(texts) > 300
    as_a_file = re.compile("python[0-9.]* benchmarks/")
    assert not [path for path in texts if as_a_file.search(path.read_text("utf-8"))]
