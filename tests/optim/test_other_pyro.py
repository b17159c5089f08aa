"""The PyroOptim contract: model parameters, state, schedulers, per-parameter options."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import numpy as np
import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, random_gradients, start
from tests.ppl import algorithm

pytest.importorskip("pyro")

import pyro
import torch

from pyro_ngvi import Snngm
from pyro_ngvi.optim import Nagm
from pyro_ngvi.optim.adaptive_adam import AdaptiveAdam

STEPS = 20


def _other_alone(optimiser, w, gradients):
    w = torch.as_tensor(w).clone().requires_grad_()
    for g in gradients:
        w.grad = torch.as_tensor(g).clone()
        optimiser({w})
    return w.detach().numpy()


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, lambda: pyro.optim.PyroOptim(AdaptiveAdam, {})),
        (lambda: pyro.optim.SGD({"lr": 0.1}), lambda: pyro.optim.SGD({"lr": 0.1})),
        (lambda: pyro.optim.ClippedAdam({"lr": 0.1}), lambda: pyro.optim.ClippedAdam({"lr": 0.1})),
    ],
    ids=["default", "sgd", "clipped adam"],
)
def test_model_parameters_move_as_with_other_alone(pyro_backend, name, other, expected, rng):
    point, w = start(rng), rng.normal(size=3)
    w_gradients = [rng.normal(size=3) for _ in range(STEPS)]
    optimiser = pyro_backend.optimiser(name, 0.01, other=other and other())
    run = driver(pyro_backend, optimiser, point, {"w": w})
    for gradient, g in zip(random_gradients(point, STEPS, rng), w_gradients, strict=True):
        run.step(gradient, {"w": g})
    np.testing.assert_array_equal(run.parameter("w"), _other_alone(expected(), w, w_gradients))


def test_a_torch_scheduler_changes_the_step_size(pyro_backend, rng):
    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)
    scheduler = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    run = driver(pyro_backend, Snngm({"lr": 0.01}, scheduler=scheduler), point)
    expected = table5.snngm(point, gradients, lambda t: 0.01 * 0.9**t, 0.9)
    for gradient, target in zip(gradients, expected, strict=True):
        run.step(gradient)
        run.optimiser.step()
        assert_same(run, target)


def test_a_scheduler_of_steps_that_choose_themselves_is_refused(pyro_backend, rng):
    point = start(rng)
    scheduler = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    run = driver(pyro_backend, Snngm(scheduler=scheduler), point)
    with pytest.raises(ValueError, match="scheduler= needs a number as lr"):
        run.step(*random_gradients(point, 1, rng))


def test_options_may_depend_on_the_parameters_name(pyro_backend, rng):
    point = start(rng)
    seen = []

    def options(name):
        seen.append(name)
        return {"lr": 0.02 if name == "dense.loc" else 0.01}

    run, half = (
        driver(pyro_backend, Snngm(options), point),
        driver(pyro_backend, Snngm({"lr": 0.01}), point),
    )
    (gradient,) = random_gradients(point, 1, rng)
    run.step(gradient)
    half.step(gradient)
    assert set(seen) == {"dense.loc", "dense.scale_tril", "mean_field.loc", "mean_field.scale"}
    loc = point["dense"][1]
    # The same direction at twice the rate, but for roundings.
    np.testing.assert_allclose(
        run.gaussian("dense")[0] - loc, 2 * (half.gaussian("dense")[0] - loc), rtol=1e-12
    )
    np.testing.assert_array_equal(run.gaussian("dense")[1], half.gaussian("dense")[1])


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("BLR", "lr", (0.5, 0.1)),
        ("BLR", "precision_lr", (None, 0.1)),
        ("BLR", "momentum", (0.5, 0.0)),
        ("BLR", "max_kl", ("auto", 0.1)),
        ("VOGN", "beta2", (0.9, 0.99)),
        ("Snngm", "momentum", (0.5, 0.9)),
        ("Snngm", "lr", ("auto", 0.1)),
        ("Nagm", "max_norm", (1.0, 2.0)),
        ("NAdam", "eps", (1e-8, 1e-6)),
    ],
)
def test_what_a_rule_has_one_of_may_not_differ(pyro_backend, name, option, values, rng):
    def options(parameter):
        return {option: values[parameter == "dense.scale_tril"]}

    point = start(rng)
    (gradient,) = random_gradients(point, 1, rng)
    run = driver(pyro_backend, algorithm(pyro_backend.package, name)(options), point)
    with pytest.raises(ValueError, match=rf"one '{option}', and was given.*{values[1]}"):
        run.step(gradient)


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


def test_clip_value_clips_every_entry(pyro_backend, rng):
    point = start(rng)
    (gradient,) = random_gradients(point, 1, rng, size=100.0)
    run = driver(pyro_backend, Snngm({"lr": 0.01}, {"clip_value": 1.0}), point)
    run.step(gradient)
    clipped = {k: (f, np.clip(g, -1, 1), np.clip(h, -1, 1)) for k, (f, g, h) in gradient.items()}
    assert_same(run, table5.snngm(point, [clipped], lambda t: 0.01, 0.9)[0])


def test_unknown_options_are_named(pyro_backend):
    with pytest.raises(ValueError, match="'betas'"):
        Snngm({"lr": 0.01, "betas": (0.9, 0.999)})


def test_pyros_own_attributes_are_kept(pyro_backend):
    optimiser = Snngm({"lr": 0.01}, {"clip_norm": 1.0})
    assert isinstance(optimiser, pyro.optim.PyroOptim)
    assert issubclass(optimiser.pt_optim_constructor, torch.optim.Optimizer)
    assert optimiser.pt_optim_args == {"lr": 0.01}
    assert optimiser.pt_clip_args == {"clip_norm": 1.0}


# -- state ----------------------------------------------------------------------------


def _optimiser(name):
    scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    return {"Snngm": Snngm, "Nagm": Nagm}[name](
        {"lr": 0.01}, other=pyro.optim.Adam({"lr": 0.01}), scheduler=scheduler
    )


def _torch_optimiser(name, point, backend):
    """An optimiser as in plain torch, and the driver whose tensors it moves."""
    run = driver(backend, None, point)
    options = {} if name == "BLR" else {"lr": 0.01}
    constructor = algorithm(backend.package, name).torch_optimizer
    run.optimiser = constructor(list(run.params.values()), **options)
    return run


def _torch_step(run, gradient):
    for name, (family, *values) in gradient.items():
        fields = "loc", table5.reference.SCALE_NAME[family]
        for field, value in zip(fields, values, strict=True):
            run.params[f"{name}.{field}"].grad = torch.as_tensor(value)
    run.optimiser.step()


@pytest.mark.parametrize("name", ["Snngm", "Nagm", "NAdam", "BLR"])
def test_a_torch_optimiser_alone_takes_the_same_steps_and_resumes(pyro_backend, name, rng):
    """The memory of a mean field, which grows, is in the state of ``BLR``."""
    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)
    options = {} if name == "BLR" else {"lr": 0.01}
    whole = driver(pyro_backend, algorithm(pyro_backend.package, name)(options), point)
    alone = _torch_optimiser(name, point, pyro_backend)
    for gradient in gradients[:7]:
        whole.step(gradient)
        _torch_step(alone, gradient)
    resumed = _torch_optimiser(name, {k: (f, *alone.gaussian(k)) for k, (f, *_) in point.items()},
                               pyro_backend)  # fmt: skip
    resumed.optimiser.load_state_dict(copy.deepcopy(alone.optimiser.state_dict()))
    for gradient in gradients[7:]:
        whole.step(gradient)
        _torch_step(resumed, gradient)
    assert_same(resumed, {k: (f, *whole.gaussian(k)) for k, (f, *_) in point.items()}, rtol=0)


def test_families_that_are_seen_in_turn_keep_states_of_their_own(pyro_backend, rng):
    """As with one optimiser for two ``SVI`` objects, or a part of the guides frozen."""
    point = start(rng)
    gradients = random_gradients(point, 6, rng)
    run = driver(pyro_backend, Snngm(), point)
    alone = {name: driver(pyro_backend, Snngm(), {name: point[name]}) for name in point}
    for i, gradient in enumerate(gradients):
        name = list(point)[i % 2]
        for each in (run, alone[name]):
            for tensor in each.params.values():
                tensor.grad = None
            part = {name: gradient[name]}
            for key, (family, *values) in part.items():
                fields = "loc", table5.reference.SCALE_NAME[family]
                for field, value in zip(fields, values, strict=True):
                    each.params[f"{key}.{field}"].grad = torch.as_tensor(value)
            each.optimiser(set(each.params.values()))
    for name in point:
        for a, e in zip(run.gaussian(name), alone[name].gaussian(name), strict=True):
            np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("other", ["as large", "larger"])
def test_tensors_in_the_place_of_others_of_their_names_begin_anew(pyro_backend, other, rng):
    """As with one optimiser for a second ``SVI`` after ``clear_param_store``, or in turn with it
    under ``module_local_params``.
    """
    points = start(rng), start(rng)
    if other == "larger":
        family = points[1]["dense"][0]
        points[1]["dense"] = (family, *table5.reference.random_gaussian(family, 4, rng))
    optimiser = Snngm()
    runs = [driver(pyro_backend, optimiser, point) for point in points]
    alone = [driver(pyro_backend, Snngm(), point) for point in points]
    for turn in (0, 0, 1, 1, 0, 1):
        (gradient,) = random_gradients(points[turn], 1, rng)
        for each in (runs[turn], alone[turn]):
            each.step(gradient)
    for run, expected, point in zip(runs, alone, points, strict=True):
        assert_same(run, {k: (f, *expected.gaussian(k)) for k, (f, *_) in point.items()}, rtol=0)


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


@pytest.mark.parametrize("through", ["state", "file"])
@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_a_resumed_run_is_the_uninterrupted_one(pyro_backend, name, through, rng, tmp_path):
    point = start(rng)
    gradients = random_gradients(point, STEPS, rng)

    def advance(run, begin, end):
        for gradient in gradients[begin:end]:
            run.step(gradient)
            run.optimiser.step()

    whole = driver(pyro_backend, _optimiser(name), point)
    advance(whole, 0, STEPS)
    first = driver(pyro_backend, _optimiser(name), point)
    advance(first, 0, 7)
    middle = {k: (f, *first.gaussian(k)) for k, (f, _, _) in point.items()}
    optimiser = _optimiser(name)
    if through == "state":
        optimiser.set_state(first.optimiser.get_state())
    else:
        first.optimiser.save(str(tmp_path / "optimiser.pt"))
        optimiser.load(str(tmp_path / "optimiser.pt"), map_location="cpu")
    second = driver(pyro_backend, optimiser, middle)
    advance(second, 7, STEPS)
    for k in point:
        for a, e in zip(second.gaussian(k), whole.gaussian(k), strict=True):
            np.testing.assert_array_equal(a, e)
