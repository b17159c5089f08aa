"""Everything that the pages say, measured anew: each benchmark of ``registry.RUNS``, one by one.

    python -m benchmarks all --data-dir DIR [--only networks ivon] [--at-once 1]

runs each with ``--publish`` as a process of its own, on a core of its own with one thread, for at
most as long as ``RUNS`` gives it, and three hours in all. What prints goes to
``benchmark_output/NAME.log``. A benchmark whose data are missing is left out, and the table at the
end says which files it wants; the others run on. The exit status is 1 if not all ran.

Time: 3 hours on two cores. Data: those of all benchmarks.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks import pages
from benchmarks.registry import RUNS, scripts

LIMIT = 3 * 3600.0  #: seconds of all
RUNNING: set[int] = set()  #: leaders of groups of processes
DATA = {script.name: script.data for script in scripts()}


def missing(name: str, folder: Path) -> list[str]:
    """Files that a benchmark wants and the folder has not."""
    wanted = DATA.get(name, "none").partition(";")[0].split(", ")
    patterns = [one.removesuffix("/") for one in wanted if one != "none"]
    return [pattern for pattern in patterns if not any(folder.glob(pattern))]


def command(run: str, folder: Path) -> str:
    """For a shell: ``examples.demo`` is a module of its own, the rest are benchmarks."""
    lines = []
    for part in run.format(commit=pages.commit()).split(" && "):
        name, *arguments = part.split()
        if name.startswith("examples."):
            line = ["-m", name, *arguments, "--publish"]
        else:
            data = [] if DATA[name] == "none" else ["--data-dir", str(folder.resolve())]
            line = ["-m", "benchmarks", "--publish", name, *arguments, *data]
        lines.append(shlex.join([sys.executable, *line]))
    return " && ".join(lines)


def measure(run: str, folder: Path, seconds: float) -> dict[str, str]:
    """A row of the table: run it here, and end it when its time is up."""
    name, begin = run.split()[0], time.monotonic()
    if files := missing(name, folder):
        return {"run": run, "outcome": f"no data: put {', '.join(files)} into {folder}"}
    log = Path("benchmark_output", re.sub(r"\W+", "_", run.partition(" && ")[0]) + ".log")
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command(run, folder),
            shell=True,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts ends with it
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=pages.ROOT,
        )
    RUNNING.add(process.pid)
    timer = threading.Timer(max(seconds, 0.0), os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    _, status, used = os.wait4(process.pid, 0)
    timer.cancel()
    RUNNING.discard(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begin
    ended = "ran" if process.returncode == 0 else f"failed, see {log}"
    return {
        "run": run,
        "outcome": ended if wall < seconds else f"more than {seconds / 60:.0f} minutes",
        "wall min": f"{wall / 60:.1f}",
        "CPU min": f"{(used.ru_utime + used.ru_stime) / 60:.1f}",
        "of min": f"{RUNS[run]}",
    }


def measure_all(runs: list[str], folder: Path, at_once: int) -> list[dict[str, str]]:
    """The longest first, so many at once, each on one core."""
    todo = iter(sorted(runs, key=lambda run: -RUNS[run]))  # of all workers
    rows: list[dict[str, str]] = []
    begin = time.monotonic()

    def work(core: int) -> None:
        if hasattr(os, "sched_setaffinity"):  # of this thread, and of what it starts
            os.sched_setaffinity(0, {core})
        for run in todo:
            left = LIMIT - (time.monotonic() - begin)
            rows.append(measure(run, folder, min(60.0 * RUNS[run], left)))
            print(*rows[-1].values(), sep=" | ", flush=True)

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(at_once)
    workers = [threading.Thread(target=work, args=(core,), daemon=True) for core in cores[:at_once]]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:  # of an interrupt
        for pid in RUNNING:
            os.killpg(pid, signal.SIGTERM)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="benchmarks, all by default")
    parser.add_argument("--at-once", type=int, default=2, help="benchmarks, each on its core")
    options = parser.parse_args(arguments)
    runs = [run for run in RUNS if options.only is None or run.split()[0] in options.only]
    rows = measure_all(runs, options.data_dir, options.at_once)
    for path in pages.pages():  # two may have written a page at the same moment
        text = path.read_text("utf-8")
        if (filled := pages.fill(text)) != text:
            path.write_text(filled, "utf-8")
    columns = ("run", "outcome", "wall min", "CPU min", "of min")
    print("", *pages.table([{c: row.get(c, "") for c in columns} for row in rows]), sep="\n")
    return int(any(row["outcome"] != "ran" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
