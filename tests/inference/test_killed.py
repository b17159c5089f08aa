"""Kill -9 of a process in the midst of ``fit``: the next one goes on to the same result."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.lives import life

FIT = "tests.inference.killed"


@pytest.mark.slow
def test_a_fit_that_is_killed_at_any_moment_goes_on_to_the_same_bits(ppl, tmp_path):
    *steps, whole = life(FIT, ppl.name, tmp_path / "whole")
    assert whole[0] == "result" and len(steps) > 5
    rng, path = np.random.default_rng(int(time.time_ns() % 2**32)), tmp_path / "killed"
    moments = rng.uniform(0.0, 0.04 * len(steps), size=3)
    for moment in moments:
        lines = life(FIT, ppl.name, path, seconds=moment)
        if lines[-1][0] == "result":  # it was quicker
            break
    assert life(FIT, ppl.name, path)[-1] == whole, moments
