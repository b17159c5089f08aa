"""One command for all benchmarks: budgets, missing data, failures."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from benchmarks import all as every
from benchmarks import pages
from benchmarks.registry import RUNS, scripts

PROGRAMS = {"ivon": "print('done')", "quick": "raise SystemExit(3)", "soak": "while True: pass"}


def test_all_runs_are_benchmarks_within_three_hours_of_two_cores():
    names = {script.name for script in scripts()} | {"examples.demo"}
    assert {run.split()[0] for run in RUNS} <= names
    commands = " ".join(row["command"] for row in pages.read("index.csv"))
    assert set(re.findall(r"python -m (?:benchmarks )?([\w.]+)", commands)) <= {
        run.split()[0] for run in RUNS
    }
    assert 60 * sum(RUNS.values()) <= 2 * every.LIMIT


def test_the_rest_runs_on_where_data_are_missing_or_a_benchmark_fails(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    runs = {"ivon": 1, "quick": 1, "soak": 0.02, "networks": 30}
    monkeypatch.setattr(every, "RUNS", runs)
    monkeypatch.setattr(
        every, "command", lambda run, _: shlex.join([sys.executable, "-c", PROGRAMS[run]])
    )
    assert every.main(["--data-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    table = {line.split(" | ")[0]: line for line in printed.splitlines() if " | " in line}
    assert f"put images/mnist.npz into {tmp_path}" in table["networks"]
    assert "ran" in table["ivon"] and "failed" in table["quick"]
    assert "more than" in table["soak"]
    assert (tmp_path / "benchmark_output" / "ivon.log").read_text() == "done\n"


@pytest.mark.parametrize(
    ("run", "parts"),
    [
        ("networks --seeds 2", ["networks --seeds 2 --data-dir"]),
        ("ivon", ["benchmarks --publish ivon"]),
        ("examples.demo", ["-m examples.demo --publish"]),
        ("gauntlet --out a.csv && gauntlet --table a.csv", ["--out a.csv &&", "--table a.csv"]),
    ],
)
def test_the_command_of_a_run(run, parts, tmp_path):
    command = every.command(run, tmp_path)
    assert all(part in command for part in parts)
