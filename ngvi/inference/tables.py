"""Rows that a result has, as a table: in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row")


class Table(tuple[Row, ...]):
    """A tuple whose rows have the same ``_fields``; it prints as a table."""

    def __repr__(self) -> str:
        if not self:
            return "()"
        cells = [list(self[0]._fields), *map(_cells, self)]  # type: ignore[attr-defined]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(one.ljust(width) for one, width in zip(row, widths, strict=True))
            for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        names = self[0]._fields if self else ()  # type: ignore[attr-defined]
        return html_table(names, map(_cells, self))


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """For notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def in_digits(value: Any) -> str:
    """A number with the digits that matter; anything else as it is."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.3f}" if 0.1 <= abs(value) < 1e9 else f"{value:.2g}"


def _cells(row: Any) -> list[str]:
    return [in_digits(getattr(row, name)) for name in row._fields]
