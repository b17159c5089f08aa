"""Pages of the benchmarks: a CSV in ``docs/benchmarks``, tables that show it, one look of plots.

The first line of ``NAME.csv`` says how it was made and on what. A page shows the rows whose column
``data`` is ``German``, and that line below them, between two comments; what stands there is written
by :func:`fill`. The column ``commit`` has the code of a row; not a table but that line shows it::

    <!-- NAME.csv data=German -->
    <!-- end -->

It needs no PPL, so that a test can tell cheaply whether pages and CSVs agree.
"""

from __future__ import annotations

import csv
import datetime
import functools
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "benchmarks"
#: Where CSVs and pictures are written: ``python -m benchmarks --publish NAME`` writes the pages'.
OUT = Path("benchmark_output")
INDEX = "index.csv"  # the list of all pages

BLOCK = re.compile(r"^(<!-- (\w+\.csv)((?: \S+=\S+)*) -->)\n.*?^<!-- end -->$", re.M | re.S)
NUMBER = re.compile(r"[\d.,e+\-±%() /]*")


def write(name: str, rows: Iterable[dict[str, Any]], about: str) -> None:
    """Write a CSV, and where it is published its tables on all pages.

    :param about: how it was made and on what: command, sizes, seeds, machine; one line.
    """
    rows = list(rows) if name == INDEX else [{"commit": commit()} | row for row in rows]
    OUT.mkdir(exist_ok=True)
    with (OUT / name).open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {about}\n")
        columns = dict.fromkeys(column for row in rows for column in row)
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for path in pages() if OUT == FOLDER else ():
        text = path.read_text("utf-8")
        if name in text:
            path.write_text(fill(text, name), "utf-8")
            if path.parent == FOLDER and name != INDEX:
                _note_run(path.name)


@functools.cache
def commit() -> str:
    """The code that is measured: its commit, abbreviated."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _note_run(page: str) -> None:
    """The list of all pages: this one was run today, with the present code."""
    rows = read(INDEX)
    for row in rows:
        if f"]({page})" in row["page"]:
            row |= {"last run": str(datetime.date.today()), "code": commit()}
    write(INDEX, rows, about(INDEX))


def replace(name: str, rows: list[dict[str, str]], about: str, keys: Sequence[str]) -> None:
    """:func:`write` rows in the place of those of a CSV that have the same keys, or at its end."""
    old = [{"commit": ""} | row for row in read(name)] if (OUT / name).exists() else []
    new = {tuple(row[key] for key in keys): row for row in rows}
    kept = [new.pop(tuple(row[key] for key in keys), row) for row in old]
    write(name, [*kept, *new.values()], about)


def read(name: str) -> list[dict[str, str]]:
    """The rows of a CSV, as text."""
    return list(csv.DictReader(_path(name).read_text("utf-8").splitlines()[1:]))


def about(name: str) -> str:
    """How a CSV was made and on what."""
    return _path(name).read_text("utf-8").split("\n", 1)[0].removeprefix("# ")


def _path(name: str) -> Path:
    return OUT / name if (OUT / name).exists() else FOLDER / name


def pages() -> list[Path]:
    """Where tables may stand."""
    docs = ROOT / "docs"
    found = [path for path in docs.rglob("*.md") if path.relative_to(docs).parts[0][0] != "_"]
    return [ROOT / "README.md", *sorted(found)]


def fill(text: str, only: str | None = None) -> str:
    """A page with its tables as the CSVs have them.

    :param only: the CSV whose tables are written.
    """
    return BLOCK.sub(
        lambda block: block[0] if only not in (None, block[2]) else _block(block), text
    )


def _block(match: re.Match[str]) -> str:
    opening, name, conditions = match.groups()
    wanted = dict(part.split("=", 1) for part in conditions.split())
    rows = [row for row in read(name) if wanted.items() <= row.items()]
    shown = [{k: v for k, v in row.items() if k not in {*wanted, "commit"}} for row in rows]
    commits = ", ".join(dict.fromkeys(one for row in rows for one in row.get("commit", "").split()))
    below = f"{about(name)}{commits and f'; commits: {commits}'}"
    return "\n".join([opening, *table(shown), "", below, "<!-- end -->"])


def table(rows: list[dict[str, str]]) -> list[str]:
    """The lines of a table, without columns that are empty; those of numbers are to the right."""
    if not rows:
        return ["*Not run yet.*"]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    rule = ["---:" if all(NUMBER.fullmatch(r[n]) for r in rows) else "---" for n in names]
    cells = [names, *([row[name] for name in names] for row in rows)]
    head, *body = (f"| {' | '.join(line)} |" for line in cells)
    return [head, f"|{'|'.join(rule)}|", *body]


def figure(
    num_rows: int = 1, num_columns: int = 1, size: tuple[float, float] = (4.0, 3.4), **options: Any
) -> Any:
    """An empty figure and its axes, an array of two dimensions.

    :param size: of one panel, in inches.
    :param options: of ``matplotlib.pyplot.subplots``.
    """
    from examples.demo.plots import STYLE, plt  # which chooses the backend

    plt.rcParams.update(STYLE | {"font.size": 9})
    whole = (size[0] * num_columns, size[1] * num_rows)
    return plt.subplots(num_rows, num_columns, figsize=whole, squeeze=False, **options)


def save(figure: Any, name: str) -> None:
    """The picture of a page."""
    OUT.mkdir(exist_ok=True)
    figure.savefig(OUT / name, dpi=110, bbox_inches="tight")
