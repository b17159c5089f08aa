"""Measured figures in the prose of pages come from the CSVs of the benchmarks.

A row of ``docs/benchmarks/figures.csv`` has the page, words of the page with the figures in them,
and for each figure, between semicolons, how it is got: a CSV, the row, and the column, or the ratio
or difference of two such. ``count``, ``median``, ``sum``, ``min`` or ``max`` are over many rows::

    verdicts.csv: class=all -> false; sum verdicts.csv: fits=10 -> certified
    count quick.csv: verdict=certified
    demo.csv: PPL=Pyro & steps=30 -> all steps [s] / demo.csv: PPL=NumPyro & steps=30 -> steps

A page of benchmarks shows its CSVs, and needs no rows for figures that are cells of theirs. Cells
of mechanisms, which ``ablate`` writes, are compared with its CSV in ``test_ablate.py``.
"""

from __future__ import annotations

import csv
import re
import statistics

import pytest

from benchmarks import pages
from docs import prose

#: What is read: neither the data that stories are about, nor budgets, which have their own test.
READ = [
    path
    for path in pages.pages()
    if path.parent.name not in ("stories", "reference") and path.name != "budgets.md"
]
#: Pages with figures that no CSV has, and how many at most: a debt, which only becomes smaller.
WITHOUT = {
    "docs/mechanisms.md": 6,
    "docs/benchmarks/time_to_posterior.md": 1,
}
#: Thresholds, defaults and arguments: these are not measured.
DEFINED = (
    "95 %",
    "99 % of the bins",
    "within 10 %",
    "within 0.1 standard deviations",
    "more than 0.1 nats",
    "after 100,000 gradients",
    "`IVON()` | 0.05 |",
    "`VOGN()` | 0.05 |",
    "Python | 3.11 | 3.11 | 3.13 |",
)
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNIT = (
    r"(?:%|percent\b|[mµ]?s\b|(?:milli)?seconds?\b|minutes?\b|hours?\b|nats?\b|gradients?\b"
    r"|times (?:as|more|less|long|fast)|-?fold\b|[kMG]B\b|[mg][ie]gabytes?\b|CPU\b|sds?\b"
    r"|standard deviations\b|effective\b)"
)
#: A number with a unit, alone or first of several; one of so many; a cell of a table.
FIGURE = re.compile(
    rf"(?<![\w.,/^-]){NUMBER}(?=(?:(?:,| to| and| or| ±) {NUMBER})*[ -]?{UNIT}"
    rf"|(?: of| of the| in) {NUMBER})|(?<=\| ){NUMBER}(?= \|)"
)
#: The cell of a mechanism.
WRITTEN = re.compile(r"\d+ fits: certified [^|;]*CPU s \* [\d.]+")
LINK = re.compile(r"(?<=\])\([^)\s]*\)")
TERM = re.compile(r"(?:(count|median|sum|min|max) )?(\w+\.csv)(?:: (.+?))?(?: -> (.+))?")


def rows_of(name):
    return list(csv.DictReader((pages.FOLDER / name).read_text("utf-8").splitlines()[1:]))


def number(text):
    return float(re.search(rf"-?{NUMBER}", text)[0].replace(",", ""))


def term(text):
    """The value of one term."""
    over, name, wanted, column = TERM.fullmatch(text.strip()).groups()
    conditions = dict(one.split("=", 1) for one in wanted.split(" & ")) if wanted else {}
    found = [row for row in rows_of(name) if conditions.items() <= row.items()]
    if over == "count":
        return len(found)
    values = [number(row[column]) for row in found if row[column]]
    if over:
        return {"sum": sum, "min": min, "max": max, "median": statistics.median}[over](values)
    (value,) = values
    return value


def value(text):
    """Of a term, a ratio or a difference."""
    for sign in (" / ", " - "):
        if sign in text:
            left, right = map(term, text.split(sign))
            return left / right if sign == " / " else left - right
    return term(text)


def agrees(printed, exact):
    """Whether a number is this one, rounded to its digits; thousands may end with zeros."""
    decimals = len(printed.partition(".")[2])
    whole = printed.replace(",", "")
    if not decimals and len(whole) > 3:
        decimals = -min(len(whole) - len(whole.rstrip("0")), len(whole) - 2)
    return abs(abs(exact) - number(printed)) <= 0.5001 * 10.0**-decimals


def plain(text):
    """A page on one line without code, tables that are filled in, and pictures."""
    return " ".join(re.sub(r"!\[[^\]]*\]\([^)]*\)", "", prose.APART.sub("\n\n", text)).split())


def uncovered(text, words, cells=()):
    """Figures that neither stand in such words nor are among the cells."""
    text = plain(text)
    spans = [m.span() for one in words for m in re.finditer(re.escape(one), text)]
    spans += [m.span() for m in WRITTEN.finditer(text)]
    hidden = LINK.sub(lambda m: "_" * len(m[0]), prose.CODE.sub(lambda m: "_" * len(m[0]), text))
    return [
        text[max(0, m.start() - 50) : m.end() + 30]
        for m in FIGURE.finditer(hidden)
        if not any(first <= m.start() and m.end() <= last for first, last in spans)
        and not any(agrees(m[0], cell) for cell in cells)
    ]


def cells_of(path):
    """Numbers of the CSVs that a page of benchmarks shows, and of how they were made."""
    if path.parent != pages.FOLDER:
        return ()
    names = {name for _, name, _ in pages.BLOCK.findall(path.read_text("utf-8"))}
    text = " ".join((pages.FOLDER / name).read_text("utf-8") for name in names)
    return [float(one.replace(",", "")) for one in set(re.findall(NUMBER, text))]


FIGURES = rows_of("figures.csv")


@pytest.mark.parametrize("row", FIGURES, ids=lambda row: f"{row['page']}: {row['words'][:30]}")
def test_a_figure_is_that_of_its_csv(row):
    assert row["words"] in plain((pages.ROOT / row["page"]).read_text("utf-8")), "not on the page"
    printed, exact = re.findall(NUMBER, row["words"]), row["value"].split(";")
    assert len(printed) == len(exact), printed
    for one, how in zip(printed, exact, strict=True):
        assert agrees(one, value(how)), f"{one} is {value(how):g}: {how.strip()}"


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_no_page_has_a_figure_without_a_row(path):
    name = str(path.relative_to(pages.ROOT))
    words = [row["words"] for row in FIGURES if row["page"] == name]
    found = uncovered(path.read_text("utf-8"), [*words, *DEFINED], cells_of(path))
    assert len(found) <= WITHOUT.get(name, 0), "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It takes 3.2 s, and 4 to 5 ms.", 3),
        ("1 of 143 is false, by 0.1 nats.", 2),
        ("`x = 3 s`, [here](a_3_s.md), seed 3 and d = 20; within 10 %.", 0),
        ("<!-- demo.csv -->\n| 3 s |\n<!-- end -->", 0),
    ],
)
def test_a_figure_is_a_number_with_a_unit(text, count):
    assert len(uncovered(text, DEFINED)) == count
