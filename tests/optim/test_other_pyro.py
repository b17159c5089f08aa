"""The PyroOptim contract: model parameters, clipping, and state."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, random_gradients, start

pytest.importorskip("pyro")

from pyro_ngvi import Snngm
from pyro_ngvi.optim import Nagm


def test_clip_norm_clips_the_joint_natural_gradient(pyro_backend, rng):
    point = start(rng)
    (gradient,) = random_gradients(point, 1, rng, size=100.0)
    run = driver(pyro_backend, Nagm({"lr": 0.01, "momentum": 0.0}, {"clip_norm": 1.0}), point)
    free = driver(pyro_backend, Nagm({"lr": 0.01, "momentum": 0.0}), point)
    norm = np.sqrt(sum((g**2).sum() for _, *gs in gradient.values() for g in gs))
    # torch's clip_grad_norm_ divides by norm + 1e-6.
    free.step({k: (f, g / (norm + 1e-6), h / (norm + 1e-6)) for k, (f, g, h) in gradient.items()})
    run.step(gradient)
    assert_same(run, {k: (f, *free.gaussian(k)) for k, (f, _, _) in point.items()})


# -- state ----------------------------------------------------------------------------


def test_runs_whose_parameters_are_gone_are_forgotten(pyro_backend, rng):
    """So that one optimiser for many ``SVI``, one after the other, does not grow with them."""
    optimiser, tensors = Snngm(), []
    for _ in range(3):
        point = start(rng)
        run = driver(pyro_backend, optimiser, point)
        run.step(*random_gradients(point, 1, rng))
        tensors.extend(map(weakref.ref, run.params.values()))
        del run
    gc.collect()
    first_runs = tensors[: 2 * len(tensors) // 3]
    assert [reference() for reference in first_runs] == [None] * len(first_runs)


def test_the_state_of_another_model_is_refused(pyro_backend, rng):
    point = start(rng)
    first = driver(pyro_backend, Snngm(), point)
    (gradient,) = random_gradients(point, 1, rng)
    first.step(gradient)
    family = point["dense"][0]
    point["dense"] = (family, *table5.reference.random_gaussian(family, 4, rng))
    optimiser = Snngm()
    optimiser.set_state(first.optimiser.get_state())
    with pytest.raises(ValueError, match=r"another model.*'dense.*shape \(3.*shape \(4"):
        driver(pyro_backend, optimiser, point).step(*random_gradients(point, 1, rng))
