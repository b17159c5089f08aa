"""The list of benchmarks, read from the first string of each script without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent

#: The last line of a script's docstring.
LAST_LINE = re.compile(r"^Time: (.+?)\. Data: (.+)\.\Z", re.MULTILINE)

#: Of the commit that is measured, so that no old fits are taken for new ones.
FITS = "benchmark_output/fits_{commit}.csv"
#: What ``all`` runs, and the minutes of a core that it may take: three hours of two cores together.
RUNS = {
    "time_to_posterior": 90,
    "ablate --anew": 45,
    f"gauntlet --out {FITS} && gauntlet --table {FITS}": 30,
    "networks": 30,
    "papers": 15,
    "soak --ppl numpyro --fits 2000 --guides 200": 15,
    "soak --ppl pyro --fits 2000 --guides 200": 15,
    "soak --ppl pyro --steps 50000": 8,
    "soak --ppl numpyro": 4,
    "soak --ppl numpyro --optimiser Snngm": 4,
    "draws": 35,
    "language_model": 15,
    "hierarchical": 12,
    "ivon": 10,
    "scaling": 10,
    "loo": 6,
    "quick": 8,
    "examples.demo": 4,
}


class Script(NamedTuple):
    """A benchmark."""

    name: str  #: what follows ``python -m benchmarks``
    about: str  #: what it measures, the first line of its docstring
    time: str  #: roughly, on two cores
    data: str  #: the files that it wants in the folder of ``--data-dir``
    docstring: str
    path: Path


def scripts() -> Iterator[Script]:
    """All benchmarks, by their names: modules whose docstring ends with that line."""
    for path in sorted(FOLDER.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if last := LAST_LINE.search(docstring):
            parts = path.relative_to(FOLDER).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__main__")
            yield Script(name, docstring.partition("\n")[0], *last.groups(), docstring, path)
