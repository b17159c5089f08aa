"""Model parameters, and optax's own ways of combining optimisers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, random_gradients, start

pytest.importorskip("numpyro")

import jax
import numpyro
import optax

from numpyro_ngvi import Snngm
from numpyro_ngvi.optim import Nagm
from numpyro_ngvi.optim.adaptive_adam import adaptive_adam

STEPS = 20


def _other_alone(optimiser, w, gradients):
    params, state = {"w": w}, optimiser.init({"w": w})
    for g in gradients:
        updates, state = optimiser.update({"w": g}, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, adaptive_adam),
        (lambda: optax.sgd(0.1, momentum=0.5), lambda: optax.sgd(0.1, momentum=0.5)),
        (lambda: numpyro.optim.Adam(0.01), lambda: optax.adam(0.01)),
    ],
    ids=["default", "optax", "numpyro"],
)
def test_model_parameters_move_as_with_other_alone(numpyro_backend, name, other, expected, rng):
    point, w = start(rng), jax.numpy.asarray(rng.normal(size=3))
    w_gradients = [jax.numpy.asarray(rng.normal(size=3)) for _ in range(STEPS)]
    optimiser = numpyro_backend.optimiser(name, 0.01, other=other and other())
    run = driver(numpyro_backend, optimiser, point, {"w": w})
    for gradient, g in zip(random_gradients(point, STEPS, rng), w_gradients, strict=True):
        run.step(gradient, {"w": g})
    # NumPyro's Adam differs from optax's in the order of a few roundings.
    np.testing.assert_allclose(
        run.parameter("w"), _other_alone(expected(), w, w_gradients), rtol=1e-12
    )


def test_snngm_after_a_rescaling_of_gradients_in_a_chain_is_snngm(numpyro_backend, rng):
    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)
    run = driver(numpyro_backend, optax.chain(optax.scale(3.0), Snngm(0.01)), point)
    expected = table5.snngm(point, gradients, lambda t: 0.01, 0.9)
    for gradient, target in zip(gradients, expected, strict=True):
        run.step(gradient)
        assert_same(run, target)


def test_nagm_in_a_chain_sees_the_chains_gradient(numpyro_backend, rng):
    point = start(rng)
    gradients = random_gradients(point, 5, rng)
    run = driver(numpyro_backend, optax.chain(optax.scale(0.5), Nagm(0.05)), point)
    alone = driver(numpyro_backend, Nagm(0.05), point)
    for gradient in gradients:
        run.step(gradient)
        alone.step({k: (f, 0.5 * loc, 0.5 * scale) for k, (f, loc, scale) in gradient.items()})
    assert_same(run, {k: (f, *alone.gaussian(k)) for k, (f, _, _) in point.items()})


def test_multi_steps_is_one_step_on_the_mean_gradient(numpyro_backend, rng):
    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)
    run = driver(numpyro_backend, optax.MultiSteps(Snngm(0.01), every_k_schedule=4), point)
    means = [
        {
            name: (
                family,
                np.mean([g[name][1] for g in gradients[i : i + 4]], 0),
                np.mean([g[name][2] for g in gradients[i : i + 4]], 0),
            )
            for name, (family, _, _) in point.items()
        }
        for i in range(0, STEPS, 4)
    ]
    for gradient in gradients:
        run.step(gradient)
    # MultiSteps accumulates in float32 unless asked for more: 1e-7 of steps of 1e-2.
    assert_same(run, table5.snngm(point, means, lambda t: 0.01, 0.9)[-1], rtol=1e-8)


def test_update_without_parameters_is_an_error(numpyro_backend, rng):
    point = start(rng)
    run = driver(numpyro_backend, Snngm(0.01), point)
    with pytest.raises(ValueError, match="needs the parameters"):
        run.optimiser.update(run.params, run.state)


def _types(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]


def test_state_keeps_its_structure_and_dtypes(numpyro_backend, rng):
    """What ``lax.scan``, and so ``svi.run``, requires."""
    point = start(rng)
    (gradient,) = random_gradients(point, 1, rng)
    for optimiser in (Snngm(), Snngm(0.01), Nagm(0.01), Snngm(lambda t: 0.1 / (1 + t))):
        run = driver(numpyro_backend, optimiser, point, {"w": np.ones(2)})
        before = _types((run.params, run.state))
        run.step(gradient, {"w": np.ones(2)})
        assert _types((run.params, run.state)) == before


@pytest.mark.slow
def test_one_optimiser_serves_two_runs_in_turn(numpyro_backend, rng):
    points = start(rng), start(rng)
    family = points[1]["dense"][0]
    points[1]["dense"] = (family, *table5.reference.random_gaussian(family, 4, rng))
    optimiser = Snngm(0.01)
    runs = [driver(numpyro_backend, optimiser, point) for point in points]
    alone = [driver(numpyro_backend, Snngm(0.01), p) for p in points]
    for turn in (0, 1, 0, 1):
        (gradient,) = random_gradients(points[turn], 1, rng)
        for each in (runs[turn], alone[turn]):
            each.step(gradient)
    for run, expected, point in zip(runs, alone, points, strict=True):
        assert_same(run, {k: (f, *expected.gaussian(k)) for k, (f, *_) in point.items()}, rtol=0)
