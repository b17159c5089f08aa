"""Sphinx's settings: pages in Markdown (MyST), the reference from the docstrings.

``make docs`` builds the site and runs the Python of its pages; ``sphinx-build -D execute=0`` leaves
that out. With ``DOCS_ONLINE=1`` names of other libraries are links to their sites, whose lists of
names Sphinx then fetches; without it nothing is fetched.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import ngvi  # noqa: E402
from docs import notebooks  # noqa: E402

project = "ngvi"
author = "The ngvi authors"
copyright = "The ngvi authors. Apache-2.0"
version = release = ngvi.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "executed",
]
exclude_patterns = ["_build", "_executed/*/*.md"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

copybutton_selector = "div.highlight-python pre, div.highlight-sh pre"  # not what code prints

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "numpyro": ("https://num.pyro.ai/en/stable", None),
    "pyro": ("https://docs.pyro.ai/en/stable", None),
    "jax": ("https://docs.jax.dev/en/latest", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "arviz": ("https://python.arviz.org/en/stable", None),
}
if os.environ.get("DOCS_ONLINE") == "1":
    extensions.append("sphinx.ext.intersphinx")

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"  # of what the docstring tells
add_module_names = False
suppress_warnings = ["ref.python"]  # of types that are named alike in the three packages

html_theme = "furo"
html_title = f"ngvi {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

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


def _colab(_app: Any, docname: str, source: list[str]) -> None:
    """In the gallery a link to Colab beside every notebook, once the repository is public."""

    def both(found: re.Match) -> str:
        opened = notebooks.colab((HERE / found[1]).with_suffix(".md"))
        return f"{found[0]} [Colab]({opened})" if opened else found[0]

    if docname == "gallery":
        source[0] = re.sub(r"\[[^\]]*\]\(([\w/]+\.ipynb)\)", both, source[0])


def setup(app: Any) -> None:
    """Hooks of our own."""
    app.connect("source-read", _colab)
    app.connect("autodoc-process-docstring", _docstring)
