"""Habits of torch's and optax's users work in a plain loop, or get a sentence."""

from __future__ import annotations

import warnings

import pytest


def _torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    network = torch.nn.Sequential(*layers)
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    return torch, network, lambda: torch.nn.functional.cross_entropy(network(x), y), (x, y)


TORCH = [
    ("IVON(p(), ess=9, betas=(0.9, 0.999))", r"no argument betas=. Is beta1= or beta2= meant"),
    ("IVON(p(), ess=9, learning_rate=0.1)", "no argument learning_rate=. Is lr= meant"),
    ("IVON(p(), num_data=9)", "no argument num_data=. Is ess= meant"),
    ("IVON(p(), ess=9, eps=1e-8)", "no argument eps=. It has params="),
    ("IVON(p, ess=9)", r"write network.parameters\(\), with brackets"),
    ("IVON(p(), ess=9, hess_init=network)", "what initial_hess measures by weight, got an object"),
    ("initial_hess(network)", "missing a required argument: 'losses'"),
    ("initial_hess(network, [loss()])", r"write network.parameters\(\)"),
    ("initial_hess(p(), loss())", "losses must be several, of a minibatch each"),
    ("initial_hess(p(), loss)", "losses must be several, of a minibatch each"),
    ("IVON(p(), ess=9).load_state_dict(torch.optim.AdamW(p()).state_dict())", "of another optim"),
    ("IVON(p(), ess=9).predict(data[0], network)", "network must be a function such as a module"),
    ("example_gradients(loss, network, *data)", "network must be a function such as a module"),
    ("example_gradients(network, loss, *data)", "call network.eval.*, take GroupNorm, or take IVO"),
]


@pytest.mark.parametrize(("call", "words"), TORCH)
def test_a_habit_of_torch_gets_a_sentence(call, words):
    torch, network, loss, data = _torch()
    import ngvi.torch

    names = {"torch": torch, "network": network, "loss": loss, "data": data}
    with pytest.raises((TypeError, ValueError), match=words):
        eval(call, {**vars(ngvi.torch), **names, "p": network.parameters})


@pytest.mark.parametrize("scheduler", ["OneCycleLR", "CyclicLR"])
def test_schedulers_of_torch_cycle_the_momentum_by_their_defaults(scheduler):
    torch, network, loss, _ = _torch()
    from ngvi.torch import IVON

    optimiser = IVON([{"params": network.parameters(), "beta1": 0.7}], ess=20.0)
    options = {"OneCycleLR": {"max_lr": 0.1, "total_steps": 5}}
    of = options.get(scheduler, {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3})
    cycle = getattr(torch.optim.lr_scheduler, scheduler)(optimiser, **of)
    momenta = []
    for _ in range(4):
        with optimiser.sampled_params(train=True):
            loss().backward()
        optimiser.step()
        momenta.append(optimiser.param_groups[0]["betas"][0])
        cycle.step()
    assert max(momenta) - min(momenta) > 0.03
    assert optimiser.param_groups[0]["betas"][1] == 0.99999
    other = IVON(network.parameters(), ess=20.0)
    other.load_state_dict(optimiser.state_dict())
    assert other.param_groups[0]["betas"] == optimiser.param_groups[0]["betas"]


def test_predictions_of_torch_are_draws_in_evaluation_mode():
    torch, network, _, (x, _) = _torch()
    from ngvi.torch import IVON

    optimiser = IVON(network.parameters(), ess=100.0)
    before = [value.clone() for value in network.state_dict().values()]
    draws = optimiser.predict(network, x, n=200)
    assert draws.shape == (200, 20, 3)
    assert not draws.requires_grad
    assert network.training
    assert all(map(torch.equal, before, network.state_dict().values()))
    network.eval()
    error = (draws.mean(0) - network(x)).abs().max()
    assert 0 < error < 0.2  # a standard error of the mean is 0.02


def _optax():
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    import jax.numpy as jnp

    params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
    x, y = jax.random.normal(jax.random.key(0), (30, 3)), jnp.arange(30) % 2

    def network(params, x):
        return x @ params["w"] + params["b"]

    def loss(params):
        of_rows = optax.softmax_cross_entropy_with_integer_labels(network(params, x), y)
        return of_rows.mean()

    return jax, optax, params, network, loss, x


OPTAX = [
    ("ivon(learning_rate=0.1, ess=9)", "no argument learning_rate=. Is step_size= meant"),
    ("ivon(0.1, b1=0.9, ess=9)", "no argument b1=. Is beta1= meant"),
    ("optax.inject_hyperparams(ivon)(learning_rate=0.1, ess=9)", "Is step_size= meant"),
    ("ivon(ess=9, hess_init=initial_hess)", "what initial_hess measures by weight, got <func"),
    ("initial_hess(jax.grad(loss))", "gradients must be several pytrees, of a minibatch each"),
    ("initial_hess(params)", "gradients must be several pytrees, of a minibatch each"),
    ("sample(state, 0, params)", r"key must be one JAX random key, jax.random.key\(0\), got 0"),
    ("sample(key, params, state)", r"has none. It is called .* sample\(state, key, params\)"),
    ("sample((state, state), key, params)", "has 2, each of its own weights"),
    ("sample(optax.adam(0.1).init(params), key, params)", "needs the state of one ivon"),
    ("predict(params, x, 4, state=state, key=key, params=params)", "network must be a function"),
    ("predict(network, x, 4)", "missing a required .*argument: 'state'"),
]


@pytest.mark.parametrize(("call", "words"), OPTAX)
def test_a_habit_of_optax_gets_a_sentence(call, words):
    jax, optax, params, network, loss, x = _optax()
    import ngvi.optax

    names = {"jax": jax, "optax": optax, "params": params, "network": network, "loss": loss}
    names |= {"state": ngvi.optax.ivon(ess=9).init(params), "key": jax.random.key(0), "x": x}
    with warnings.catch_warnings(), pytest.raises((TypeError, ValueError), match=words):
        warnings.simplefilter("error")
        eval(call, {**vars(ngvi.optax), **names})


def test_samples_and_predictions_find_the_state_within_others():
    jax, optax, params, network, loss, x = _optax()
    from ngvi.optax import initial_hess, ivon, predict, sample

    hess = initial_hess([jax.grad(loss)(params)])
    plain = ivon(0.1, ess=400, hess_init=hess)
    inject = optax.inject_hyperparams(ivon)(step_size=0.1, ess=400, hess_init=hess)
    ends = []
    for tx in (plain, optax.chain(optax.clip_by_global_norm(1e9), plain), inject):
        now, state = params, tx.init(params)

        @jax.jit
        def step(now, state, key, tx=tx):
            weights = sample(state, key, now)
            updates, state = tx.update(jax.grad(loss)(weights), state, now, sample=weights)
            return optax.apply_updates(now, updates), state

        for seed in range(3):
            now, state = step(now, state, jax.random.key(seed))
        ends.append(predict(network, x, 5, state=state, key=jax.random.key(9), params=now))
    assert ends[0].shape == (5, 30, 2)
    assert abs(ends[0] - ends[1]).max() < 1e-5
    assert abs(ends[0] - ends[2]).max() < 1e-5
    assert ends[0].std(0).min() > 0.01
