"""Kill -9 of a process in the midst of ``SVI``: the next one goes on to the same result."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def _life(ppl, name, folder, seconds=None):
    """What it has told; it is killed so long after its first step."""
    command = [sys.executable, "-m", "tests.optim.killed", ppl.name, name, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline()]
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        lines += process.stdout.readlines()
    return [line.split() for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BLR", "IVON"])
def test_a_run_of_svi_that_is_killed_at_any_moment_goes_on_to_the_same_bits(ppl, name, tmp_path):
    *steps, result = _life(ppl, name, tmp_path / "whole")
    assert result[0] == "result" and len(steps) == 60
    moment = np.random.default_rng(int(time.time_ns() % 2**32)).uniform(0.0, 0.4)
    told = _life(ppl, name, tmp_path / "killed", moment)
    assert told[-1][0] == "step", moment
    told += _life(ppl, name, tmp_path / "killed")
    assert told[-1] == result, moment
    # A step whose save was lost is taken again, alike.
    assert {tuple(line) for line in told} == {tuple(line) for line in [*steps, result]}, moment
