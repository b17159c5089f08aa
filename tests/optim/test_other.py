"""Model parameters, several runs of one optimiser, and optax's ways of combining optimisers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, random_gradients, start
from tests.ppl import SLOW_IN_NUMPYRO

STEPS = 20


def pair(ppl, kind):
    """What is given as ``other=``, and an optimiser that does the same alone."""
    if ppl.is_numpyro:
        import optax

        if kind == "default":
            return None, ppl.module("optim.transformation").adaptive_adam()
        if kind == "sgd":
            return (optax.sgd(0.1, momentum=0.5),) * 2
        return ppl.lib.optim.Adam(0.01), optax.adam(0.01)
    optim = ppl.lib.optim
    if kind == "default":
        return None, optim.PyroOptim(ppl.module("optim.pyro_optim").AdaptiveAdam, {})
    made = optim.SGD if kind == "sgd" else optim.ClippedAdam
    return made({"lr": 0.1}), made({"lr": 0.1})


def alone(ppl, optimiser, w, gradients):
    w = ppl.array(w)
    if not ppl.is_numpyro:
        w.requires_grad_()
        for g in gradients:
            w.grad = ppl.array(g)
            optimiser({w})
        return ppl.numpy(w)
    import optax

    params, state = {"w": w}, optimiser.init({"w": w})
    for g in gradients:
        updates, state = optimiser.update({"w": ppl.array(g)}, state, params)
        params = optax.apply_updates(params, updates)
    return ppl.numpy(params["w"])


@pytest.mark.fast_in_numpyro("default-Snngm")
@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.parametrize("kind", ["default", "sgd", "the PPL's Adam"])
def test_model_parameters_move_as_with_other_alone(ppl, name, kind, rng):
    point, w = start(rng), rng.normal(size=3)
    w_gradients = list(rng.normal(size=(STEPS, 3)))
    other, same = pair(ppl, kind)
    run = driver(ppl, ppl.optimiser(name, 0.01, other=other), point, {"w": w})
    for gradient, g in zip(random_gradients(point, STEPS, rng), w_gradients, strict=True):
        run.step(gradient, {"w": g})
    # NumPyro's Adam differs from optax's in the order of a few roundings.
    np.testing.assert_allclose(run.parameter("w"), alone(ppl, same, w, w_gradients), rtol=1e-12)


@SLOW_IN_NUMPYRO
@pytest.mark.parametrize("dim", [3, 4])
def test_one_optimiser_serves_two_runs_in_turn(ppl, dim, rng):
    """As for a second ``SVI`` after ``clear_param_store``, or under ``module_local_params``."""
    points = start(rng), start(rng)
    family = points[1]["dense"][0]
    points[1]["dense"] = (family, *table5.reference.random_gaussian(family, dim, rng))
    optimiser = ppl.package.Snngm()
    runs = [driver(ppl, optimiser, point) for point in points]
    apart = [driver(ppl, ppl.package.Snngm(), point) for point in points]
    for turn in (0, 0, 1, 1) if ppl.is_numpyro else (0, 0, 1, 1, 0, 1):
        (gradient,) = random_gradients(points[turn], 1, rng)
        for each in (runs[turn], apart[turn]):
            each.step(gradient)
    for run, expected, point in zip(runs, apart, points, strict=True):
        assert_same(run, {k: (f, *expected.gaussian(k)) for k, (f, *_) in point.items()}, rtol=0)


def test_snngm_after_a_rescaling_of_gradients_in_a_chain_is_snngm(numpyro_backend, rng):
    import optax

    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)
    run = driver(
        numpyro_backend, optax.chain(optax.scale(3.0), numpyro_backend.package.Snngm(0.01)), point
    )
    expected = table5.snngm(point, gradients, lambda t: 0.01, 0.9)
    for gradient, target in zip(gradients, expected, strict=True):
        run.step(gradient)
        assert_same(run, target)


def test_multi_steps_is_one_step_on_the_mean_gradient(numpyro_backend, rng):
    import optax

    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)
    several = optax.MultiSteps(numpyro_backend.package.Snngm(0.01), every_k_schedule=4)
    run = driver(numpyro_backend, several, point)
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
