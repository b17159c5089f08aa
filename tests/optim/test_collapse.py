"""Too large a step does not take a standard deviation to zero, where nothing leads back."""

from __future__ import annotations

import numpy as np

from tests.optim.table5 import driver

NUM_STEPS = 80


def final_scale(backend, family):
    """Of the first of two latents, after one push down and then only pushes up.

    The first gradient shrinks the first latent's scale; every later one moves the second
    latent's mean and lets the first scale grow in proportion to itself, as the entropy does
    (its natural gradient is half the scale). A step is far larger than the scale.
    """
    as_scale = np.diag if family == "covariance_cholesky" else np.asarray
    start = {"q": (family, np.zeros(2), as_scale([1.0, 1.0]))}
    run = driver(backend, backend.optimiser("Snngm", 1.0), start)
    run.step({"q": (family, np.zeros(2), as_scale([1.0, 0.0]))})
    for _ in range(NUM_STEPS):
        scale = run.gaussian("q")[1].ravel()[0]
        run.step({"q": (family, np.array([0.0, 1.0]), as_scale([-0.5 * scale, 0.0]))})
    return abs(run.gaussian("q")[1].ravel()[0])


def test_crossing_zero_leaves_it_behind(backend, family_name):
    # The first step goes from 1 to 1 - alpha with alpha = sqrt(len(lambda)), about -1; the
    # momentum, and then the growth, lead away from zero.
    assert final_scale(backend, family_name) > 0.5
