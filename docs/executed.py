"""The Python of a page, run: what it prints and draws goes onto the page, below the block.

A block is a fence that begins with a line "```python"; "```python no-run" is shown only. All blocks
of a page are one program, which ``python docs/executed.py page.md folder`` runs in a folder of its
own. Sphinx calls it as an extension; the tests call it as it is. The page needs no mark-up for it.

A link on a line of its own to a script of ``examples/stories`` is run, and shown, as the script.

A page that is read as it is, such as the README, has output of its own, in a fence "```text" below
a block. ``python docs/executed.py --publish README.md`` replaces it; the tests compare it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*\n", re.MULTILINE | re.DOTALL)

#: A block that is run, with the output that the page has below it.
PUBLISHED = re.compile(BLOCK.pattern + r"\n^```text\n.*?^```\n", re.MULTILINE | re.DOTALL)

#: A line that stands for a script.
SCRIPT = re.compile(r"^\[[^\]]*\]\(((?:\.\./)+examples/stories/\w+\.py)\)$", re.MULTILINE)

#: Where Sphinx finds the pictures, from the root of the pages.
PICTURES = "_executed"


def with_scripts(page: Path) -> str:
    """The text of a page, with scripts in the place of the lines that stand for them."""

    def script(found: re.Match) -> str:
        return f"```python\n{(page.parent / found[1]).read_text('utf-8')}```"

    return SCRIPT.sub(script, page.read_text("utf-8"))


def run(text: str, page: str) -> str:
    """The page with its output, and ``0.png``, ``1.png``... in the working directory.

    :param page: where the text is from, for tracebacks.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pictures = 0

    def with_output(block: re.Match) -> str:
        nonlocal pictures
        printed = io.StringIO()
        lines_above = text[: block.start()].count("\n") + 1
        code = compile("\n" * lines_above + block[1], page, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)  # noqa: S102
        parts = [block[0]]
        if printed.getvalue().strip():
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```\n")
        if "matplotlib.pyplot" in sys.modules:
            plt: Any = sys.modules["matplotlib.pyplot"]
            for number in plt.get_fignums():
                plt.figure(number).savefig(f"{pictures}.png", dpi=100, bbox_inches="tight")
                parts.append(f"![]({pictures}.png)\n")
                pictures += 1
            plt.close("all")
        return "\n".join(parts)

    return BLOCK.sub(with_output, text)


def in_a_process(page: Path, folder: Path) -> str:
    """The same in an interpreter of its own, whose settings no other page sees.

    :raises RuntimeError: with the traceback, if the page raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).parent.parent)
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "agg", "TQDM_DISABLE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), str(page.resolve())]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{page} does not run:\n{ended.stderr}")
    return ended.stdout


# -- Sphinx ---------------------------------------------------------------------------


def _on_source(app: Any, docname: str, source: list[str]) -> None:
    """A page's own text is the cache's key: ``make docs`` runs what has changed."""
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return
    if SCRIPT.search(source[0]):
        source[0] = with_scripts(page)
    if not app.config.execute or not BLOCK.search(source[0]):
        return
    name = docname.replace("/", "-")
    folder = Path(app.srcdir) / PICTURES / name
    key = hashlib.sha256(source[0].encode()).hexdigest()
    kept = folder / f"{key}.md"
    if not kept.exists():
        begun = time.perf_counter()
        text = in_a_process(page, folder)
        print(f"code of {docname}: {time.perf_counter() - begun:.0f} s", flush=True)
        for old in folder.glob("*.md"):
            old.unlink()
        kept.write_text(text, encoding="utf-8")
    where = f"/{PICTURES}/{name}/"
    source[0] = re.sub(r"!\[\]\((\d+\.png)\)", rf"![]({where}\1)", kept.read_text("utf-8"))


def setup(app: Any) -> dict[str, bool]:
    """A Sphinx extension with one setting, ``execute``."""
    app.add_config_value("execute", True, "env", [bool, str])
    app.connect("source-read", _on_source)
    return {"parallel_read_safe": True}


def published(text: str, page: str) -> str:
    """The page with what it prints today in the place of its own output."""

    def code(found: re.Match) -> str:
        return found[0].partition("\n```\n")[0]

    bare = PUBLISHED.sub(lambda found: f"{code(found)}\n```\n", text)
    printed = {code(found): found[0] for found in PUBLISHED.finditer(run(bare, page))}
    return PUBLISHED.sub(lambda found: printed[code(found)], text)


if __name__ == "__main__":
    *options, path = sys.argv[1:]
    given = with_scripts(Path(path))
    if options == ["--publish"]:
        Path(path).write_text(published(given, path), encoding="utf-8")
    else:
        print(run(given, path))
