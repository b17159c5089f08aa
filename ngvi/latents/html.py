"""Tables of HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

LEFT = "style='text-align:left'"


def table(caption: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows of text; the first of each is its name.

    :param caption: may be empty.
    :param header: names of the columns, if they have any.
    """
    lines = [f"<caption {LEFT}><b>{html.escape(caption)}</b></caption>"] if caption else []
    if header:
        lines.append(f"<tr>{''.join(_cell('th', name) for name in header)}</tr>")
    for name, *values in rows:
        cells = _cell("th", name) + "".join(_cell("td", value) for value in values)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(tag: str, text: str) -> str:
    return f"<{tag} {LEFT}>{html.escape(text)}</{tag}>"
