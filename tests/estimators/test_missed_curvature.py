"""Where a Hessian misses the curvature, by the change of the gradient along a segment."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.estimators.missed_curvature import missed
from ngvi.estimators.options import DEFAULTS

CENTRE, STEP = np.array([0.1, -0.2]), np.array([0.5, 0.4])
EPS = np.finfo(float).eps


def verdict(**functions):
    """:param functions: gradient and Hessian's diagonal, by name, elementwise."""
    calls = []

    def at_nodes(nodes, names):
        calls.append((len(nodes), names))
        theta = CENTRE + nodes[:, None] * STEP
        return {
            name: function and (function[0](theta), function[1](theta) * STEP)
            for name, function in functions.items()
        }

    return missed(at_nodes, STEP, EPS), calls


def wave(x):
    return np.sin(30.0 * x)


def test_a_kink_is_named_and_what_is_merely_wavy_is_not():
    kink = (np.sign, np.zeros_like)
    waves = (wave, lambda x: 30.0 * np.cos(30.0 * x))
    names, calls = verdict(kink=kink, waves=waves, line=(np.ones_like, np.zeros_like))
    assert names == ["kink"]
    assert calls[1] == (DEFAULTS.segment_panels * DEFAULTS.segment_nodes + 2, {"kink", "waves"})


def test_a_half_kink_counts_and_a_tenth_does_not():
    def mixed(part):
        return (lambda x: 3.0 * part * np.sign(x) + x, np.ones_like)

    assert verdict(mixed=mixed(0.5))[0] == ["mixed"]
    assert verdict(mixed=mixed(0.02))[0] == []


def test_without_a_second_derivative_there_is_no_hessian():
    assert verdict(once=None)[0] == ["once"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_judged(bad):
    def broken(x):
        return np.full_like(x, bad)

    assert verdict(broken=(broken, broken))[0] == []
