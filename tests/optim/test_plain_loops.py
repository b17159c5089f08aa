"""In a plain loop rules are the PPL's, and a step in torch is a few calls that wait for none."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

DIM, ROWS, ESS, DELTA, RATE = 5, 4, 50.0, 0.05, 0.1
OPTIONS = {"ess": ESS, "weight_decay": DELTA, "beta1": 0.8, "beta2": 0.9, "hess_init": 0.4}


def slopes(theta, shift):
    """Of the losses of the examples of a minibatch, shape ``(ROWS, DIM)``."""
    return np.arange(1, DIM + 1) * np.sin(theta + shift) + theta / 4


# -- VOGN and SLANG -------------------------------------------------------------------

#: Of each rule the rank of the factor ``U`` of its curvature ``U U^T + D``, steps and tolerance.
RULES = {"VOGN": (0, 20, 1e-9), "SLANG": (2, 8, 1e-8)}
START = np.linspace(-1, 1, DIM)


def family(ppl, mean, factor, diagonal):
    """``q`` of the precision ``ESS (U U^T + D)``."""
    if not factor.shape[1]:
        return ppl.families.Diagonal(*map(ppl.array, (mean, (ESS * diagonal) ** -0.5)))
    arrays = mean, ESS**0.5 * factor, ESS * diagonal
    return ppl.families.LowRankPrecision(*map(ppl.array, arrays), rank=factor.shape[1])


def of_the_ppl(ppl, name, shifts, noise):
    """Means, factors times their transposes, and diagonals, by the rule of ``SVI``."""
    from ngvi.optim.von import vogn

    rank, begun = RULES[name][0], OPTIONS["hess_init"] + DELTA
    algebra = ppl.module("optim.algebra").algebra
    rule = vogn(algebra, RATE * begun, OPTIONS["beta1"], OPTIONS["beta2"])
    families = [family(ppl, START, np.zeros((DIM, rank)), begun * np.ones(DIM))]
    state, path = rule.init(families), []
    for count, (shift, z) in enumerate(zip(shifts, noise, strict=True)):
        (q,) = families
        found = slopes(ppl.numpy(q.sample(ppl.array(z))), shift)
        gradient = ppl.array(-ESS * (found.mean(0) + DELTA * ppl.numpy(q.loc)))
        if rank:
            rows = ppl.array((ESS / ROWS) ** 0.5 * found)
            step = q.natural_gradient_from_rows(
                gradient, rows, ppl.array(ESS * DELTA * np.ones(DIM))
            )
        else:
            step = q.bonnet_price(gradient, ppl.array(-ESS * ((found**2).mean(0) + DELTA)))
        families, state = rule.step([step.map(lambda x: -x)], state, families, count)
        (q,) = families
        mean, *rest = map(ppl.numpy, q.coordinates().values())
        factor, diagonal = rest if rank else (np.zeros((DIM, 0)), rest[0] ** -2.0)
        path.append((mean, factor @ factor.T / ESS, diagonal / ESS))
    return [np.array(same) for same in zip(*path, strict=True)]


def in_torch(ppl, name, shifts, noise):
    from torch.nn import Parameter

    from ngvi import torch as plain

    rank = RULES[name][0]
    options = {"rank": rank, **OPTIONS} if rank else OPTIONS
    params = [Parameter(ppl.array(part)) for part in (START[:1], START[1:])]
    optimiser = getattr(plain, name)([{"params": [p]} for p in params], RATE, **options)

    def state():
        mean = np.concatenate([ppl.numpy(p.detach()).copy() for p in params])
        own, factor = [optimiser.state[p] for p in params], np.zeros((DIM, rank))
        if not own[0]:
            return mean, factor, OPTIONS["hess_init"] + DELTA * np.ones(DIM)
        if rank:
            factor = np.concatenate([ppl.numpy(x["factor"]) for x in own])
        return mean, factor, np.concatenate([ppl.numpy(x["hess"]) for x in own]) + DELTA

    path = []
    for shift, z in zip(shifts, noise, strict=True):
        found = slopes(ppl.numpy(family(ppl, *state()).sample(ppl.array(z))), shift)
        with optimiser.sampled_params(train=True):
            for half in (found[:1], found[1:]):  # of one example, and of the others
                parts = np.split(half, [1], axis=1)
                optimiser.backward({p: ppl.array(x) for p, x in zip(params, parts, strict=True)})
        optimiser.step()
        mean, factor, diagonal = state()
        path.append((mean, factor @ factor.T, diagonal))
    return [np.array(same) for same in zip(*path, strict=True)]


def in_optax(ppl, name, shifts, noise):
    import jax
    import optax

    from ngvi import optax as plain

    rank = RULES[name][0]
    options = {"rank": rank, **OPTIONS} if rank else OPTIONS

    def parts(x):
        return {"a": ppl.array(x[..., :1]), "b": ppl.array(x[..., 1:])}

    def whole(tree):
        return np.concatenate([ppl.numpy(tree["a"]), ppl.numpy(tree["b"])], -1)

    def read():
        factor = whole(state.factor).T if rank else np.zeros((DIM, 0))
        return whole(params), factor, whole(state.hess) + DELTA

    tx, params, path = getattr(plain, name.lower())(RATE, **options), parts(START), []
    state, update = tx.init(params), jax.jit(lambda *of: tx.update(*of[:3], sample=of[3]))
    for shift, z in zip(shifts, noise, strict=True):
        theta = ppl.numpy(family(ppl, *read()).sample(ppl.array(z)))
        updates, state = update(parts(slopes(theta, shift)), state, params, parts(theta))
        params = optax.apply_updates(params, updates)
        mean, factor, diagonal = read()
        path.append((mean, factor @ factor.T, diagonal))
    return [np.array(same) for same in zip(*path, strict=True)]


@pytest.mark.fast_in_numpyro("VOGN")
@pytest.mark.parametrize("name", RULES)
def test_a_loop_takes_the_steps_of_the_ppls_rule_on_the_same_noise(ppl, name, rng):
    rank, num_steps, rtol = RULES[name]
    shifts, noise = rng.normal(size=(num_steps, ROWS, DIM)), rng.normal(size=(num_steps, DIM))
    expected = of_the_ppl(ppl, name, shifts, noise)
    found = (in_optax if ppl.is_numpyro else in_torch)(ppl, name, shifts, noise)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12 if rank else 0.0)
    assert np.abs(found[0][-1] - found[0][0]).max() > 0.1
    assert not rank or np.abs(found[1][-1]).max() > 0.1


def test_rules_have_the_same_options_in_both_and_as_ivon():
    pytest.importorskip("pyro"), pytest.importorskip("numpyro")
    from torch import nn

    from ngvi import optax, torch

    found = []
    for of, one in (("VOGN", "vogn"), ("IVON", "ivon"), ("SLANG", "slang")):
        taken = getattr(torch, of)([nn.Parameter(nn.Linear(9, 9).weight)], ess=1.0).defaults
        taken = {**taken, "step_size": taken["lr"], "ess": None}
        taken["beta1"], taken["beta2"] = taken["betas"]
        parameters = inspect.signature(getattr(optax, one)).parameters
        given = {key: p.default for key, p in parameters.items() if key != "axis_name"}
        found += [{key: taken[key] for key in given}, given]
    assert found[0] == found[1]
    assert {**found[0], "beta2": found[2]["beta2"]} == found[2] == found[3]
    assert found[4] == found[5] == {**found[0], "rank": 10}


def test_vogn_in_optax_averages_draws_and_refuses_a_minibatchs_gradient():
    pytest.importorskip("numpyro")
    import jax
    import jax.numpy as jnp

    from ngvi.optax import vogn

    params, tx = {"w": jnp.linspace(-1.0, 1.0, 3)}, vogn(ess=9.0, beta2=0.5, weight_decay=0.0)
    state = tx.init(params)
    draws = tx.sample(jax.random.key(0), params, state, num_draws=2)
    gradients = {"w": jax.random.normal(jax.random.key(1), (2, 4, 3))}
    _, new = tx.update(gradients, state, params, sample=draws)
    np.testing.assert_allclose(new.hess["w"], 0.5 + 0.5 * (gradients["w"] ** 2).mean((0, 1)), 1e-6)
    with pytest.raises(ValueError, match="the gradient of each example, with an axis of examples"):
        tx.update(params, state, params, sample=jax.tree.map(lambda x: 1 + x, params))
    with pytest.raises(ValueError, match="VOGN needs ess"):
        vogn()


def test_example_gradients_are_those_of_single_examples_and_misuse_has_a_sentence():
    torch = pytest.importorskip("torch")
    from ngvi.torch import VOGN, example_gradients

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    network[0].bias.requires_grad_(False)
    X, y, criterion = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), torch.nn.CrossEntropyLoss()
    optimiser = VOGN(network.parameters(), ess=50.0)
    with optimiser.sampled_params(train=True):
        found = example_gradients(network, criterion, X, y)
        assert len(found) == 3
        for row in range(5):
            own = torch.autograd.grad(criterion(network(X[[row]]), y[[row]]), list(found))
            for gradient, one in zip(own, found.values(), strict=True):
                torch.testing.assert_close(one[row], gradient)
        optimiser.backward(found)
        torch.testing.assert_close(network[2].bias.grad, found[network[2].bias].mean(0))
        with pytest.raises(ValueError, match="gradients by example, of shape"):
            optimiser.backward({network[2].bias: torch.ones(5, 3)})
    before = network[2].bias.detach().clone()
    optimiser.step()
    assert not torch.equal(before, network[2].bias) and optimiser.num_skipped == 0
    with pytest.raises(RuntimeError, match="inside of sampled_params"):
        optimiser.backward(found)
    with (
        optimiser.sampled_params(),  # a prediction
        pytest.raises(RuntimeError, match=r"inside of sampled_params\(train=True\)"),
    ):
        optimiser.backward(found)
    with (
        pytest.raises(RuntimeError, match="VOGN needs the gradient of each example"),
        optimiser.sampled_params(train=True),
    ):
        criterion(network(X), y).backward()
    with optimiser.sampled_params(train=True):
        optimiser.backward({p: g * np.inf for p, g in found.items()})
    with pytest.warns(UserWarning, match="A step was skipped"):
        optimiser.step()


# -- what a step in torch costs -------------------------------------------------------


def _loop(num_tensors, rule):
    """A step of parameters of one size together, whatever their number is."""
    import torch

    from ngvi import torch as plain

    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.ones(240 // num_tensors)) for _ in range(num_tensors)]
    optimiser = getattr(plain, rule)(params, ess=50.0, beta2=0.9)

    def step(scale=1.0):
        with optimiser.sampled_params(train=True):
            if rule != "IVON":
                optimiser.backward({p: scale * p.detach().expand(2, -1) for p in params})
            else:
                for param in params:
                    param.grad = scale * param.detach()
        with _counted() as found:
            optimiser.step()
        return found

    return params, optimiser, step


def _counted():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Calls(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    return Calls()


def test_calls_of_a_step_do_not_grow_with_the_tensors_and_read_one_number():
    pytest.importorskip("torch")
    counts = {}
    for num_tensors in (2, 40):
        _, optimiser, step = _loop(num_tensors, "IVON")
        step()
        names = step().names
        with _counted() as sampling, optimiser.sampled_params():
            pass
        counts[num_tensors] = len(names), len(sampling.names)
        reads = [one for one in names + sampling.names if "local_scalar" in one or "nonzero" in one]
        assert len(reads) == 1  # whether the step is taken
        draws = [one for one in sampling.names if "normal" in one or "rand" in one]
        assert len(draws) == 1
    assert counts[2] == counts[40]
    assert counts[2][0] <= 50 and counts[2][1] <= 15, counts


def test_a_prediction_between_a_sample_and_its_step_changes_nothing():
    torch = pytest.importorskip("torch")

    runs = []
    for predicts in (False, True):
        params, optimiser, _ = _loop(3, "IVON")
        with optimiser.sampled_params(train=True):
            for param in params:
                param.grad = 2 * param.detach()
        if predicts:
            with optimiser.sampled_params():
                pass
        optimiser.step()
        runs.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
