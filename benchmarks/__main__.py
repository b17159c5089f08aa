"""Run a benchmark, or list all: ``python -m benchmarks [[--publish] NAME [arguments]]``."""

from __future__ import annotations

import runpy
import sys
import textwrap

from . import pages
from .registry import scripts

HEAD = """\
python -m benchmarks NAME [arguments] runs one of these, and NAME --help lists its arguments.
Tables and pictures go to benchmark_output/; of --publish NAME to docs/benchmarks and the pages.
Times are rough, of all that it does by default on two cores. Data are files in the folder of
--data-dir; where none are needed they are simulated or come from R's data sets.
"""


def listing() -> str:
    """Name, what is measured, time and data of each benchmark."""
    lines = [HEAD]
    for script in scripts():
        lines.append(f"{script.name:20} {script.about.replace('``', '`')}")
        lines += textwrap.wrap(
            f"Time: {script.time}. Data: {script.data}.",
            100,
            initial_indent=21 * " ",
            subsequent_indent=21 * " ",
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """The command."""
    if not arguments or arguments[0] in ("-h", "--help", "list"):
        print(listing())
        return
    if arguments[0] == "--publish":
        pages.OUT, arguments = pages.FOLDER, arguments[1:]
    name, *rest = arguments
    name = name.removeprefix("--")  # of --quick
    if name == "everyday":  # another set of the same runner
        name, rest = "gauntlet", ["--part", name, *rest]
    if name not in {script.name for script in scripts()}:
        raise SystemExit(f"There is no benchmark {name!r}; python -m benchmarks lists them.")
    sys.argv = [name, *rest]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
