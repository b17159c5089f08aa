"""Tutorials and stories as notebooks: ``make notebooks`` writes ``NAME.ipynb`` beside ``NAME.md``.

The page is the only source. Jupytext makes cells of it; the first cell installs the package where
it is missing, which on Colab is from the address of the repository. Outputs are left out: they are
on the site, and a notebook that is run has its own. Nothing in a file depends on when it was made.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent)]

from docs.executed import with_scripts  # noqa: E402

INSTALL = """\
import importlib.util

if not importlib.util.find_spec("ngvi"):
    %pip install --quiet "{source}"{besides}\
"""


def pages() -> list[Path]:
    """Those that have a notebook."""
    return sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "stories").glob("*.md")])


def address() -> str | None:
    """Where the repository is, by ``pyproject.toml``; None as long as it is nowhere public."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def source_of_package() -> str:
    """What ``pip install`` takes."""
    where = address()
    return f"ngvi[examples] @ git+{where}" if where else "ngvi[examples]"


def colab(page: Path) -> str | None:
    """The address at which Colab opens a page's notebook, None without a public repository."""
    where = address() or ""
    if not where.startswith("https://github.com/"):
        return None
    path = page.relative_to(DOCS.parent).with_suffix(".ipynb")
    name = where.removeprefix("https://github.com/").rstrip("/")
    return f"https://colab.research.google.com/github/{name}/blob/main/{path.as_posix()}"


def notebook(page: Path) -> str:
    """The file of a page."""
    import jupytext

    text = re.sub(r"^```python no-run$", "```text", with_scripts(page), flags=re.MULTILINE)
    found: Any = jupytext.reads(text, fmt="md")
    besides = " flax" if "from flax import" in text else ""
    install = INSTALL.format(source=source_of_package(), besides=besides)
    first = {"cell_type": "code", "source": install}
    cells = []
    for number, cell in enumerate([first, *found.cells]):
        kept = {"cell_type": cell["cell_type"], "id": f"{page.stem[:40]}-{number}", "metadata": {}}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": []}
        cells.append(kept | {"source": cell["source"].splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    for path in pages():
        path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")
