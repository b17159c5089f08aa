"""Rows that a result has, as a table: in a terminal and in a notebook."""

from __future__ import annotations

from typing import Any, TypeVar

from ngvi.latents import html

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
        return html.table("", map(_cells, self), names)


def in_digits(value: Any) -> str:
    """Return a number with the digits that matter, and anything else as it is."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.3f}" if 0.1 <= abs(value) < 1e9 else f"{value:.2g}"


def two_digits(value: float) -> str:
    """Return a positive number with two digits, and without an exponent where it is large."""
    return f"{float(f'{value:.2g}'):,.10g}"


def _cells(row: Any) -> list[str]:
    return [in_digits(getattr(row, name)) for name in row._fields]
