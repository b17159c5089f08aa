"""The examples and tutorials of Pyro and NumPyro through ``fit``, with stock guides beside.

Each script and notebook of a checkout is run until it first calls ``MCMC.run``, ``SVI.step`` or
the like, whose model and arguments are what is fitted; then other models of the same file that
take arguments of the same names. A notebook runs on after each statement, whatever happens. Data
that would have to be downloaded are random numbers of the same shapes, so bounds compare the
columns of a row and say nothing of the data.

    python -m benchmarks ppl_examples CHECKOUT [--only hmm] [--full] [--csv rows.csv]
    python -m benchmarks ppl_examples --csv rows.csv --page > docs/ppl_examples.md

``CHECKOUT`` is a clone of ``pyro-ppl/pyro`` or ``pyro-ppl/numpyro``. Steps are few without
``--full``, so that only exceptions matter. With it ``fit`` may take ``--seconds`` of CPU time from
its first step on (in Pyro from its call), and each stock guide takes steps of Adam at three rates
in as long together, at least 4 s; the best counts. What NumPyro compiles before the first step is
nobody's time. All bounds are means of the PPL's own ELBO over up to 1000 fresh draws, and the last
column but one is by how much ``fit`` is above the better stock guide. An exception of ``fit``
counts where a stock guide or NUTS gets through, and a bound that is not finite is one; where it
asks for ``create_plates=`` (local latents in a plate that is
subsampled), it is given them, as AutoNormal is.

Time: an hour, hours with --full. Data: a clone of Pyro or NumPyro.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

from .child import child
from .files import FOLDERS, LEFT_OUT, OPTIONS, PRELOADED
from .page import append, lead, page
from .runs import STOCK_GUIDES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="a regular expression of names of files")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0, help="of CPU time for fit")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    parser.add_argument("--page", action="store_true", help="print the page of a file of rows")
    parser.add_argument("--timeout", type=int, default=300, help="seconds of CPU for a file")
    parser.add_argument("--commit", default="", help="of this library, for the rows")
    options = parser.parse_args()
    if options.page:
        print(page(options.csv, LEFT_OUT))
        return
    root = options.checkout.resolve()
    ppl = "numpyro" if (root / "numpyro").is_dir() else "pyro"
    for name in (f"{ppl}_ngvi", *PRELOADED[ppl]):  # once for all files, whose processes are forks
        importlib.import_module(name)
    files = [
        path
        for folder in FOLDERS[ppl]
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".py", ".ipynb") and re.search(options.only, str(path.relative_to(root)))
    ]
    for path in files:
        name = str(path.relative_to(root).with_suffix(""))
        left_out = [pattern for patterns in LEFT_OUT.values() for pattern in patterns]
        if any(re.search(rf"\b{p}", name) for p in left_out) or path.stem.startswith("_"):
            continue
        key = (
            f"{ppl}/{path.relative_to(root / 'examples').with_suffix('')}"
            if "examples" in path.parts
            else ""
        )
        for line in OPTIONS.get(key, [""]):
            show(path, root, ppl, line, options)


def show(path: Path, root: Path, ppl: str, line: str, options: Any) -> None:
    """Run a file in a process of its own, and print a row for each of its models."""
    title = f"{path.relative_to(root).with_suffix('')} {line}".strip()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        run = multiprocessing.get_context("fork").Process(
            target=child,
            args=(path, ppl, line, options.full, options.seconds),
            kwargs={"outputs": outputs, "limit": options.timeout},
        )
        run.start()
        run.join()
        log, errors = (output.read_text(errors="replace") for output in outputs)
    end = errors.strip().splitlines()[-1:] if run.exitcode else []
    if run.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        end = [f"more than {options.timeout:.0f} s"]
    printed = [json.loads(row[4:]) for row in log.splitlines() if row.startswith("ROW ")]
    rows = list({row["number"]: row for row in printed}.values())
    for row in rows:
        print(
            f"{title:48.48} {row['model']:24.24}",
            *(figure(row.get(n)) for n in ("fit", *STOCK_GUIDES)),
            f"{lead(row)[0]:+9.2f} {row['fit']['seconds']:5.0f} s",
            row["fit"].get("reason", "")[:60],
            flush=True,
        )
        for what in row:
            if isinstance(row[what], dict) and "error" in row[what]:
                print(f"    {what}: {row[what]['error']}")
        if "NUTS" in row and "error" not in row["NUTS"]:
            print("    NUTS gets through")
    for text in end:
        print(f"{title:48.48} -- {text[:250]}", flush=True)
    if options.csv:
        append(options.csv, ppl, title, rows, end, options.commit)


def figure(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return " " * 11
    return "    raised " if "error" in cell else f"{cell.get('bound', float('nan')):11.2f}"


if __name__ == "__main__":
    main()
