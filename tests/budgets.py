"""The size of each layer, held against ``docs/budgets.md``.

``python -m tests.budgets`` writes what is measured into the page. A layer that has outgrown its row
stays as it is: a budget is raised by hand, in a commit that says what goes elsewhere.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "budgets.md"
#: The part of a budget that may be left over; more would let a gain be spent again unseen.
SLACK = 0.05
_UNSEEN = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@functools.cache
def lines_of_code(text: str) -> int:
    """Number of lines that hold more than blanks, comments and docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _UNSEEN:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def _is_number(value: ast.expr | None) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(_is_number, value.elts))
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    return isinstance(value, ast.BinOp)


@functools.cache
def numeric_fields(text: str) -> int:
    """Number of annotated class attributes whose default is a number or a tuple of numbers."""
    return sum(
        isinstance(field, ast.AnnAssign) and _is_number(field.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for field in node.body
    )


def _files(place: str) -> list[Path]:
    """Sources of a place; of a whole package with ``/*``, those that stand in no folder of it."""
    if place.endswith("/*"):
        return sorted((ROOT / place[:-2]).glob("*.py"))
    return sorted((ROOT / place).rglob("*.py"))


MEASURES = {
    "lines": lambda text: len(text.splitlines()),
    "code": lines_of_code,
    "fields": numeric_fields,
}


def measured(places: list[str], names: Iterable[str] = MEASURES) -> dict[str, int]:
    """Lines, lines of code and numeric fields of several places together."""
    texts = [path.read_text(encoding="utf-8") for place in places for path in _files(place)]
    return {name: sum(map(MEASURES[name], texts)) for name in names}


def rows() -> list[tuple[list[str], dict[str, tuple[int, int]]]]:
    """Places of each row of the page, and by measure the budget and the target."""
    text = PAGE.read_text(encoding="utf-8").partition("\n| class |")[0]
    lines = [line for line in text.splitlines() if line[:1] == "|"]
    names = [name.strip() for name in lines[0].strip("|").split("|")][1:]
    found = []
    for line in lines[2:]:
        place, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        values = [int(cell.replace(",", "")) if cell else None for cell in cells]
        numbers = dict(zip(names, values, strict=True))
        budgets = {
            name: (number, numbers[f"{name}, target"])
            for name, number in numbers.items()
            if not name.endswith("target") and number is not None
        }
        found.append((_places(place), budgets))
    return found


def _places(line: str) -> list[str]:
    return re.findall(r"`([^`]+)`", line) if line[:1] in "|`" else []


def _write() -> int:
    text, grown = PAGE.read_text(encoding="utf-8"), []
    for places, budgets in rows():
        now = measured(places)
        line = next(line for line in text.splitlines() if _places(line) == places)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for at, name in ((1, "code"), (3, "fields"), (5, "lines")):
            if name in budgets:
                if now[name] > budgets[name][0]:
                    grown.append(
                        f"{', '.join(places)}: {now[name]} {name}, {budgets[name][0]} allowed"
                    )
                cells[at] = f"{min(now[name], budgets[name][0]):,}"
        text = text.replace(line, "| " + " | ".join(cells) + " |")
    PAGE.write_text(text, encoding="utf-8")
    print("\n".join(grown))
    return bool(grown)


if __name__ == "__main__":
    sys.exit(_write())
