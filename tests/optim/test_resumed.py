"""A run of ``SVI`` that is saved goes on bit for bit in new objects, whatever moves it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import Y
from tests.optim.resumable import RUNS, run_of
from tests.ppl import load

BEFORE, AFTER = 7, 8


@pytest.mark.parametrize("other", ["by default", "Adam"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("ppl_name", ["pyro", pytest.param("numpyro", marks=pytest.mark.slow)])
def test_a_saved_run_goes_on_bit_for_bit_in_new_objects(ppl_name, name, other, tmp_path):
    ppl = load(ppl_name)
    with ppl.float64():
        y = ppl.array(Y)
        whole = run_of(ppl, name, other)
        whole.run(BEFORE, y)
        whole.save(tmp_path)
        expected, numbers = whole.run(AFTER, y), whole.numbers()
        again = run_of(ppl, name, other)
        again.load(tmp_path, y)
        assert again.run(AFTER, y) == expected
        for one, same in zip(again.numbers(), numbers, strict=True):
            np.testing.assert_array_equal(one, same)
    ppl.forget()
