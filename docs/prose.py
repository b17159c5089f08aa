"""How the pages read: no sentence is long, few numbers are in the text, and nothing is history.

``python docs/prose.py`` prints what is wrong, by page, and ``--list`` which pages are read, for
other linters; ``make lint`` and the tests call it. Code, tables, equations and what links point to
are no prose, and a piece of code in a sentence is one word. Pages of benchmarks are there for their
numbers, and are left out. Of docstrings, which the reference shows, the length of sentences counts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Limits(NamedTuple):
    """Beyond which a page is hard to read."""

    words: int = 40  #: of a sentence
    numbers: float = 3.0  #: per hundred words of a page
    few: int = 100  #: words, below which a page has as many numbers as one of so many


LIMITS = Limits()

#: Pages of figures: of these neither sentences nor numbers are counted.
EVIDENCE = ("benchmarks", "reliability.md")

#: What a reader who comes now has no use for.
HISTORY = re.compile(r"\b(the redesign|today|nowadays|formerly|in earlier versions)\b", re.I)

#: A slip of the pen.
TWICE = re.compile(r"\b([a-z]+) \1\b", re.I)

#: What stands on lines of its own and is no prose: a fence, what benchmarks have filled in
#: (``benchmarks/pages.py``), a comment, an equation.
APART = re.compile(
    r"^```.*?^```\s*?$|<!-- \w+\.csv.*?<!-- end -->|<!--.*?-->|\$\$.*?\$\$",
    re.MULTILINE | re.DOTALL,
)
#: A table's line, a line of a directive, a picture.
NO_TEXT = re.compile(r"^\s*[|:].*$|!\[[^\]]*\]\([^)]*\)", re.MULTILINE)
CODE = re.compile(r"(`+).+?\1|\$[^$\n]+\$", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)|(?<=\n)(?=#)")
#: Where a sentence ends; "et al. (2024)" and "e.g." go on.
END = re.compile(r"(?<!\bal\.)(?<!e\.g\.)(?<!i\.e\.)(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z])")
#: The year of a paper or of data: "Tan (2025)", "(Rubin, 1981)".
YEAR = re.compile(r"(?<=[( ])(1[6-9]|20)\d\d(?=[);,])")


def pages() -> list[Path]:
    """Those that are read as text: all but the evidence and the list of changes."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        first = path.relative_to(ROOT / "docs").parts[0]
        if first not in EVIDENCE and not first.startswith("_"):
            found.append(path)
    return found


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page, each on one line, with a word in the place of code."""
    text = NO_TEXT.sub("", APART.sub("\n\n", text))
    text = LINK.sub(r"\1", CODE.sub("Code", text))
    for block in BLOCK.split(text):
        block = re.sub(r"^\s*(?:#+|[-*>]|\d+\.)\s+", "", block.strip())
        for sentence in END.split(" ".join(block.split())):
            if words(sentence):
                yield sentence


def words(sentence: str) -> list[str]:
    """The words of a sentence, numbers among them."""
    return [word for word in sentence.split() if re.search(r"\w", word)]


def faults(text: str, limits: Limits = LIMITS) -> list[str]:
    """What is wrong with a page, a line for each."""
    found = []
    num_words = num_numbers = 0
    for sentence in sentences(text):
        count = len(words(sentence))
        num_words += count
        num_numbers += sum(bool(re.search(r"\d", word)) for word in words(YEAR.sub("", sentence)))
        if count > limits.words:
            found.append(f"a sentence of {count} words: {sentence[:60]}...")
        for what, pattern in (("history", HISTORY), ("twice", TWICE)):
            if seen := pattern.search(sentence):
                found.append(f"{what}, {seen[0]!r}: {sentence[:60]}...")
    density = 100 * num_numbers / max(num_words, limits.few)
    if density > limits.numbers:
        found.append(f"{density:.1f} numbers per hundred words, {num_numbers} of {num_words}")
    return found


DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each is, of modules and what is public in them, and its text as a page has it."""
    for package in ("ngvi", "pyro_ngvi", "numpyro_ngvi"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(_read(path))):
                name = getattr(node, "name", "")
                if isinstance(node, DOCUMENTED) and not name.startswith("_"):
                    yield f"{path.relative_to(ROOT)} {name}", as_page(ast.get_docstring(node) or "")


def as_page(docstring: str) -> str:
    """Without roles and equations; each field begins anew."""
    text = re.sub(r":[\w:]+:(`[^`]*`)", r"\1", docstring)
    text = re.sub(r"(?<=\n\n) {4}.*?(?=\n\S|\Z)", "", text, flags=re.DOTALL)
    text = re.sub(r"^=+ +=+$.*^=+ +=+$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^\s*:(param|ivar|return|raises)[^:]*:|:+$", "\n\n", text, flags=re.MULTILINE)


def long_docstrings(limits: Limits = LIMITS) -> list[str]:
    """Sentences that are too long, a line for each."""
    return [
        f"{where}: a sentence of {len(words(one))} words: {one[:60]}..."
        for where, text in docstrings()
        for one in sentences(text)
        if len(words(one)) > limits.words
    ]


def main() -> int:
    """Print the faults of all pages and docstrings; whether there are any is the exit status."""
    if sys.argv[1:] == ["--list"]:
        print(*pages())
        return 0
    found = [f"{path.relative_to(ROOT)}: {one}" for path in pages() for one in faults(_read(path))]
    found += long_docstrings()
    print("\n".join(found) or f"{len(pages())} pages, no fault")
    return bool(found)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
