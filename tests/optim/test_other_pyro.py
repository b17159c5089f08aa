"""The PyroOptim contract: ordinary parameters, state, schedulers, per-parameter options."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, make, random_gradients, start

pytest.importorskip("pyro")

import pyro
import torch

from pyro_ngvi import Nagm, NaturalGaussianGuide, Snngm

STEPS = 20


def _ordinary_alone(optimiser, w, gradients):
    w = torch.as_tensor(w).clone().requires_grad_()
    for g in gradients:
        w.grad = torch.as_tensor(g).clone()
        optimiser({w})
    return w.detach().numpy()


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, lambda: pyro.optim.Adam({"lr": 1e-3})),
        (lambda: pyro.optim.SGD({"lr": 0.1}), lambda: pyro.optim.SGD({"lr": 0.1})),
        (lambda: pyro.optim.ClippedAdam({"lr": 0.1}), lambda: pyro.optim.ClippedAdam({"lr": 0.1})),
    ],
    ids=["default", "sgd", "clipped adam"],
)
def test_ordinary_parameters_move_as_with_other_alone(pyro_backend, name, other, expected, rng):
    point, w = start(rng), rng.normal(size=3)
    w_gradients = [rng.normal(size=3) for _ in range(STEPS)]
    optimiser = make(pyro_backend, name, 0.01, other=other and other())
    run = driver(pyro_backend, optimiser, point, {"w": w})
    for gradient, g in zip(random_gradients(point, STEPS, rng), w_gradients, strict=True):
        run.step(gradient, {"w": g})
    np.testing.assert_array_equal(run.ordinary("w"), _ordinary_alone(expected(), w, w_gradients))


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


def test_clip_norm_clips_the_joint_natural_gradient(pyro_backend, rng):
    point = start(rng)
    (gradient,) = random_gradients(point, 1, rng, size=100.0)
    run = driver(pyro_backend, Nagm({"lr": 0.01, "beta": 0.0}, {"clip_norm": 1.0}), point)
    free = driver(pyro_backend, Nagm({"lr": 0.01, "beta": 0.0}), point)
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


def test_a_checkpoint_of_a_whole_svi_run_resumes_it_exactly(pyro_backend, tmp_path, rng):
    """Parameters by ``pyro.get_param_store().save``, optimiser by ``optim.save``."""
    y = torch.as_tensor(rng.normal(size=20))

    def model():
        slope = pyro.param("slope", torch.tensor(0.5))
        mu = pyro.sample("mu", pyro.distributions.Normal(0.0, 10.0).expand([2]).to_event(1))
        with pyro.plate("data", 20):
            pyro.sample("y", pyro.distributions.Normal(mu[0] + slope * mu[1], 1.0), obs=y)

    def train(svi, steps, seed):
        pyro.set_rng_seed(seed)
        losses = []
        for _ in range(steps):
            losses.append(svi.step())
            svi.optim.step()
        return losses

    def new_svi():
        return pyro.infer.SVI(
            model, NaturalGaussianGuide(model), _optimiser("Snngm"), pyro.infer.Trace_ELBO()
        )

    svi = new_svi()
    train(svi, 5, seed=1)
    pyro.get_param_store().save(tmp_path / "params.pt")
    svi.optim.save(tmp_path / "optim.pt")
    expected = train(svi, 10, seed=2)
    pyro.clear_param_store()
    svi = new_svi()
    pyro.get_param_store().load(tmp_path / "params.pt")
    svi.optim.load(tmp_path / "optim.pt")
    svi.guide()  # the prototype's own random numbers come first
    assert train(svi, 10, seed=2) == expected
