"""Kill -9 of a process in the midst of ``SVI``: the next one goes on to the same result."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.lives import life

SVI = "tests.optim.killed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BLR", "IVON"])
def test_a_run_of_svi_that_is_killed_at_any_moment_goes_on_to_the_same_bits(ppl, name, tmp_path):
    *steps, result = life(SVI, ppl.name, name, tmp_path / "whole")
    assert result[0] == "result" and len(steps) == 60
    moment = np.random.default_rng(int(time.time_ns() % 2**32)).uniform(0.0, 0.4)
    lines = life(SVI, ppl.name, name, tmp_path / "killed", seconds=moment)
    assert lines[-1][0] == "step", moment
    lines += life(SVI, ppl.name, name, tmp_path / "killed")
    assert lines[-1] == result, moment
    # A step whose save was lost is taken again, alike.
    assert {tuple(line) for line in lines} == {tuple(line) for line in [*steps, result]}, moment
