"""Kill -9 of a process in the midst of ``fit``: the next one goes on to the same result."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def _process(ppl, checkpoint):
    command = [sys.executable, "-m", "tests.fit.killed", ppl.name, str(checkpoint)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _life(ppl, checkpoint, seconds=None):
    """What it has told; it is killed so long after its first step."""
    with _process(ppl, checkpoint) as process:
        lines = [process.stdout.readline()]
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        lines += process.stdout.readlines()
    return [line.split() for line in lines]


@pytest.mark.slow
def test_a_fit_that_is_killed_at_any_moment_goes_on_to_the_same_bits(ppl, tmp_path):
    *steps, whole = _life(ppl, tmp_path / "whole")
    assert whole[0] == "result" and len(steps) > 5
    rng, path = np.random.default_rng(int(time.time_ns() % 2**32)), tmp_path / "killed"
    moments = rng.uniform(0.0, 0.04 * len(steps), size=3)
    for moment in moments:
        told = _life(ppl, path, moment)
        if told[-1][0] == "result":  # it was quicker
            break
    assert _life(ppl, path)[-1] == whole, moments
