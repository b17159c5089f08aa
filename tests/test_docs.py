"""The documentation: all that is public is in it, its paths lead somewhere, its code runs."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.registry import scripts
from docs import notebooks
from docs.executed import BLOCK, in_a_process, with_scripts

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("ngvi", "pyro_ngvi", "numpyro_ngvi")

#: Users import from the package itself and from these of its parts.
PUBLIC_PARTS = ("", "conjugate", "families", "optim", "parallel")


def _read(*path):
    return DOCS.joinpath(*path).read_text(encoding="utf-8")


def _pages():
    return sorted(
        path for path in DOCS.rglob("*.md") if not path.relative_to(DOCS).parts[0].startswith("_")
    )


# -- the reference --------------------------------------------------------------------


def _public(package):
    """What ``__all__`` of the package and its public parts names, without importing them."""
    names = set()
    for part in PUBLIC_PARTS:
        file = ROOT / package / part / "__init__.py"
        for node in ast.walk(ast.parse(file.read_text("utf-8"))) if file.exists() else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names |= set(ast.literal_eval(node.value))
    return names


def _in_reference(package):
    """The last part of each name that a directive of autodoc shows."""
    found = re.findall(r"^\.\. auto\w+:: (\S+)", _read("reference", f"{package}.rst"), re.MULTILINE)
    return {name.split(".")[-1] for name in found}


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_every_public_name_has_a_place_in_the_reference(package):
    assert len(_public(package)) > 20
    assert _public(package) <= _in_reference(package)


def test_every_part_of_a_result_has_a_place_in_the_reference():
    from ngvi.workflow.result import FitResult

    names = {*dir(FitResult), *(field.name for field in dataclasses.fields(FitResult))}
    names = {name for name in names if not name.startswith("_")}
    assert "loo" in names and all(names <= _in_reference(package) for package in PACKAGES[1:])


def test_every_part_of_ngvi_has_a_place_in_the_reference():
    files = [*(ROOT / "ngvi").glob("*.py"), *(ROOT / "ngvi").glob("*/__init__.py")]
    parts = {f.parent.name if f.stem == "__init__" else f.stem for f in files}
    assert {"inference", "families"} <= parts <= _in_reference("ngvi")


# -- paths and figures ----------------------------------------------------------------


def test_the_theory_page_names_code_that_is_there():
    """A path is followed by the names that it defines: "`ngvi/families/base.py` `retract`,
    `along`".
    """
    claims = re.findall(r"`([\w./]+\.py)`((?:,? `\w+`)*)", _read("theory.md"))
    assert len(claims) > 50
    for path, names in claims:
        code = (ROOT / path).read_text("utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^\s*(def |class )?{name}\b", code, re.MULTILINE), f"{path}: {name}"


def test_what_is_promised_of_faults_is_shown_by_tests_that_are_there():
    """A path is followed by the names that it defines; a row has one, or a benchmark."""
    page = _read("reliability.md")
    promises, figures = page.split("## Figures")
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        found = re.findall(r"`(tests/[\w./]+\.py)`((?:,? `\w+`)*)", row.split("|")[-2])
        below = re.findall(r"`(\w+)`, below", row)
        assert (found and all(names for _, names in found)) or below, row
        for path, names in found:
            code = (ROOT / path).read_text("utf-8")
            for name in re.findall(r"\w+", names):
                assert re.search(rf"^def {name}\(", code, re.MULTILINE), f"{path}: {name}"
        for name in below:
            assert f"`{name} --" in figures
    for name in re.findall(r"^\| `(\w+) --", figures, re.MULTILINE):
        assert (ROOT / "benchmarks" / f"{name}.py").exists()


@pytest.mark.parametrize(
    "path", [*sorted(ROOT.glob("*.md")), *_pages()], ids=lambda path: path.stem
)
def test_links_between_pages_lead_somewhere(path):
    """And where a heading is named it is there, by the name that GitHub and MyST give it."""
    for target, heading in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", path.read_text("utf-8")):
        there = path.parent / target if target else path
        assert there.exists(), target
        if heading and there.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", there.read_text("utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in slugs, f"{target}#{heading}"


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.stem)
def test_the_tables_of_a_page_are_their_csvs(path):
    text = path.read_text("utf-8")
    assert text == pages.fill(text)


def test_the_guide_quotes_no_figures_of_benchmarks():
    for path in sorted((DOCS / "guide").glob("*.md")):
        text = " ".join(path.read_text("utf-8").split())
        found = re.findall(r"\d[\d.]*(?: ms\b| GB\b|% | gradients in the median)", text)
        assert not found, path.name


def test_every_command_of_a_page_is_a_benchmark():
    names = {script.name for script in scripts()} | {"everyday"}
    for path in pages.pages():
        for name in re.findall(r"python -m benchmarks ([a-z_.]+)", path.read_text("utf-8")):
            assert name in names, f"{path.name}: {name}"


def test_the_levels_that_the_guide_names_are_the_defaults():
    from ngvi.inference.options import MultiStartOptions

    options = MultiStartOptions()
    for name in ("how_fit_works", "sharp_bits"):
        assert f"`unseen={options.unseen}`" in _read("guide", f"{name}.md")
    how = _read("guide", "how_fit_works.md")
    assert (
        f"or {options.exploration_floor:,} if that is more" in how
        and f"{options.gradient_budget:,}" in how
    )


# -- code -----------------------------------------------------------------------------


def test_no_block_of_code_is_neither_run_nor_said_not_to_be():
    fences = [
        re.findall(r"^```(\S.*)$", path.read_text("utf-8"), re.MULTILINE) for path in _pages()
    ]
    kinds = {fence.split("}")[0] for page in fences for fence in page}
    assert kinds <= {"python", "python no-run", "text", "sh", "{toctree"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [p for p in _pages() if BLOCK.search(with_scripts(p))], ids=lambda path: path.stem
)
def test_the_code_of_a_page_runs(path, tmp_path):
    if "from flax import" in with_scripts(path):
        pytest.importorskip("flax")
    assert "```text" in in_a_process(path, tmp_path)


@pytest.mark.parametrize("path", notebooks.pages(), ids=lambda path: path.stem)
def test_a_notebook_is_its_page(path):
    """Its code is what is run of the page, its text is the rest; it installs, and has no output."""
    cells = json.loads(path.with_suffix(".ipynb").read_text("utf-8"))["cells"]
    assert "%pip install" in "".join(cells[0]["source"])
    code = ["".join(c["source"]).strip() for c in cells[1:] if c["cell_type"] == "code"]
    text = ["".join(c["source"]) for c in cells[1:] if c["cell_type"] == "markdown"]
    page = re.sub(r"^```python no-run$", "```text", with_scripts(path), flags=re.MULTILINE)
    said = "make notebooks writes it anew"
    assert code == [block.strip() for block in BLOCK.findall(page)], said
    assert "".join("".join(text).split()) == "".join(BLOCK.sub("", page).split()), said
    assert not any(cell.get("outputs") for cell in cells)
    gallery = _read("gallery.md")
    assert f"]({path.parent.name}/{path.stem}.ipynb)" in gallery


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    for name in ("sphinx", "sphinx_copybutton", "sphinx_design"):
        pytest.importorskip(name)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "execute=0"]
    built = subprocess.run(
        [*command, DOCS, tmp_path], capture_output=True, text=True, timeout=600, check=False
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "reference" / "ngvi.html").exists()
    index = (tmp_path / "searchindex.js").read_text("utf-8")
    found = json.loads(index.removeprefix("Search.setIndex(").rstrip(";)"))
    for word in ("summari", "loo", "interrupt", "progress", "factor", "evid"):  # by stems
        assert word in found["terms"] or word in found["titleterms"], word
    names = {name for group in found["objects"].values() for *_, name in group}
    assert {"summary", "loo", "influence"} <= names


def test_every_action_is_pinned_by_its_commit_and_tells_its_version():
    used = [
        line.partition("uses:")[2].strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert len(used) > 10 and not [one for one in used if not pinned.fullmatch(one)]


def test_the_licence_has_an_owner():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Copyright 2026 The ngvi authors" in text
    assert (ROOT / "LICENSES" / "Apache-2.0.txt").read_text(encoding="utf-8") == text
