"""Sphinx's settings: pages in Markdown (MyST), the reference from the docstrings.

``make docs`` builds the site and runs the Python of its pages; ``sphinx-build -D execute=0`` leaves
that out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import ngvi  # noqa: E402

project = "ngvi"
author = "The ngvi authors"
copyright = "The ngvi authors. Apache-2.0"
version = release = ngvi.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "executed"]
exclude_patterns = ["_build", "_executed/*/*.md"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the fields of the docstrings say more
add_module_names = False

html_theme = "furo"
html_title = f"ngvi {release}"

#: What may be above something indented that is no equation: a field, a directive, a list.
NO_PARAGRAPH = re.compile(r" |:(param|ivar|return|raises)\b|\.\. |- ")


def _docstring(_app: Any, what: str, name: str, _object: Any, _options: Any, lines: list[str]):
    """Show equations as they stand, which are indented, and modules with their names."""
    for i in reversed(range(1, len(lines))):
        begins = lines[i].startswith("    ") and not lines[i - 1].strip()
        above = next((line for line in reversed(lines[:i]) if line.strip()), "")
        if begins and not NO_PARAGRAPH.match(above) and not above.endswith("::"):
            lines[i:i] = ["::", ""]
    if what == "module":
        lines[:0] = [f".. rubric:: {name}", ""]


def _benchmarks(_app: Any, docname: str, source: list[str]) -> None:
    """The gallery's table: the first line of every benchmark."""
    if docname != "gallery" or not (HERE.parent / "benchmarks").is_dir():
        return
    from benchmarks.registry import scripts

    rows = ["| `python -m benchmarks` | what it measures |", "|---|---|"]
    rows += [f"| `{one.name}` | {one.about.replace('``', '`')} |" for one in scripts()]
    source[0] = re.sub(r"<!-- the scripts.*?-->", "\n".join(rows), source[0])


def setup(app: Any) -> None:
    """Hooks of our own."""
    app.connect("source-read", _benchmarks)
    app.connect("autodoc-process-docstring", _docstring)
