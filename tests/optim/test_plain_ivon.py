"""IVON in a plain loop is Shen et al.'s Algorithm 1, in both libraries, and loses nothing."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest

from tests.ppl import PPLS, load

DIM, STEPS = 5, 100
SETTINGS = {
    "defaults": {"ess": 50.0},
    "others": {"ess": 20.0, "weight_decay": 0.05, "beta1": 0.8, "beta2": 0.9, "hess_init": 0.4},
    "clipped": {"ess": 20.0, "beta2": 0.95, "clip_radius": 0.3, "debias": False},
    "unscaled": {"ess": 20.0, "beta2": 0.95, "hess_init": 2.0, "rescale_lr": False},
    "by weight": {"ess": 20.0, "beta2": 0.95, "hess_init": np.geomspace(0.2, 3.0, DIM)},
}
RATE = 0.1


@pytest.fixture(params=PPLS)
def name(request):
    pytest.importorskip(request.param)
    return request.param


def plain(name):
    """IVON without a PPL in the library of this one, and ``initial_hess``."""
    if name == "pyro":
        from ngvi import torch

        return torch.IVON, torch.initial_hess
    from ngvi import optax

    return optax.ivon, optax.initial_hess


def slope(theta, shift):
    """Of a mean loss with two basins, at a minibatch that moves it."""
    return np.arange(1, DIM + 1) * (theta - np.cos(2 * theta)) / 4 + shift


def algorithm_1(options, shifts, noise):
    """The paper's lines, one after another; all ``m``, and ``h``, and the samples."""
    o = {
        "weight_decay": 1e-4,
        "beta1": 0.9,
        "beta2": 0.99999,
        "hess_init": 1.0,
        "clip_radius": math.inf,
        "debias": True,
        "rescale_lr": True,
        **options,
    }
    lam, delta, beta1, beta2 = o["ess"], o["weight_decay"], o["beta1"], o["beta2"]
    alpha = RATE * (np.mean(o["hess_init"]) + delta) if o["rescale_lr"] else RATE
    m, h, g = np.linspace(-1, 1, DIM), o["hess_init"] * np.ones(DIM), np.zeros(DIM)
    means, hesses, samples = [], [], []
    for t, (shift, z) in enumerate(zip(shifts, noise, strict=True), start=1):
        sigma = 1 / np.sqrt(lam * (h + delta))
        theta = m + sigma * z  # (draws, DIM)
        g_hat = slope(theta, shift)
        h_hat = (g_hat * (theta - m) / sigma**2).mean(0)
        g = beta1 * g + (1 - beta1) * g_hat.mean(0)
        correction = (1 - beta2) ** 2 * (h - h_hat) ** 2 / (2 * (h + delta))
        h = beta2 * h + (1 - beta2) * h_hat + correction
        g_bar = g / (1 - beta1**t) if o["debias"] else g
        direction = np.clip((g_bar + delta * m) / (h + delta), -o["clip_radius"], o["clip_radius"])
        m = m - alpha * direction
        means.append(m), hesses.append(h), samples.append(theta)
    return np.array(means), np.array(hesses), np.array(samples)


def run(name, options, shifts, samples):
    """Means and curvatures after each step of the package, from these samples."""
    ppl = load(name)
    start = np.linspace(-1, 1, DIM)
    with ppl.float64():
        return (_scanned if ppl.is_numpyro else _looped)(ppl, options, start, shifts, samples)


def _looped(ppl, options, start, shifts, samples):
    import torch

    # Two parameters in two groups: one has a single element, the other the rest.
    params = [torch.nn.Parameter(ppl.array(part)) for part in (start[:1], start[1:])]
    if np.ndim(options.get("hess_init", 1.0)):
        parts = np.split(options["hess_init"], [1])
        of = {p: ppl.array(part) for p, part in zip(params, parts, strict=True)}
        options = {**options, "hess_init": of}
    optimiser = plain("pyro")[0]([{"params": [p]} for p in params], RATE, **options)
    means, hesses = [], []
    for shift, draws in zip(shifts, samples, strict=True):
        for theta in draws:
            with optimiser.sampled_params(train=True):
                parts = np.split(theta, [1]), np.split(slope(theta, shift), [1])
                for param, value, gradient in zip(params, *parts, strict=True):
                    param.data.copy_(ppl.array(value))
                    param.grad = ppl.array(gradient)
        optimiser.step()
        means.append(np.concatenate([ppl.numpy(p).copy() for p in params]))
        hesses.append(np.concatenate([ppl.numpy(optimiser.state[p]["hess"]) for p in params]))
    return np.array(means), np.array(hesses)


def _scanned(ppl, options, start, shifts, samples):
    import jax
    import jax.numpy as jnp
    import optax

    params = {"a": jnp.asarray(start[:1]), "b": jnp.asarray(start[1:])}

    def parts(x):
        return {"a": x[..., :1], "b": x[..., 1:]}

    if np.ndim(options.get("hess_init", 1.0)):
        options = {**options, "hess_init": parts(options["hess_init"])}
    ivon = plain("numpyro")[0](RATE, **options)

    def step(carry, inputs):
        params, state = carry
        gradients, theta = map(parts, inputs)
        updates, state = ivon.update(gradients, state, params, sample=theta)
        params = optax.apply_updates(params, updates)
        return (params, state), (params, state.hess)

    gradients = np.array([slope(x, s) for x, s in zip(samples, shifts, strict=True)])
    if samples.shape[1] == 1:  # one sample has no axis of draws
        gradients, samples = gradients[:, 0], samples[:, 0]
    inputs = jnp.asarray(gradients), jnp.asarray(samples)
    _, path = jax.jit(lambda *c: jax.lax.scan(step, c, inputs))(params, ivon.init(params))
    return tuple(np.concatenate([one["a"], one["b"]], 1) for one in path)


@pytest.mark.parametrize(
    ("setting", "num_draws"), [*((setting, 1) for setting in SETTINGS), ("others", 3)]
)
def test_a_hundred_steps_are_the_papers_in_both_libraries(name, setting, num_draws, rng):
    shifts = rng.normal(size=(STEPS, DIM))
    noise = rng.normal(size=(STEPS, num_draws, DIM))
    means, hesses, samples = algorithm_1(SETTINGS[setting], shifts, noise)
    path = run(name, SETTINGS[setting], shifts, samples)
    # Measured: 1e-14. Both packages are so close to these lines, and to each other.
    np.testing.assert_allclose(path[0], means, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(path[1], hesses, rtol=1e-10, atol=1e-10)
    assert np.abs(means[-1] - means[0]).max() > 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs ess, the effective sample size: the number of training examples"),
        ({"ess": 0}, "ess must be positive and finite, got 0"),
        ({"ess": math.inf}, "ess must be positive and finite"),
        ({"ess": 9, "weight_decay": -1.0}, "weight_decay must be finite and at least 0, got -1.0"),
        ({"ess": 9, "beta1": 1.0}, r"beta1 must be in \[0, 1\)"),
        ({"ess": 9, "beta2": 1.0}, r"beta2 must be in \[0, 1\)"),
        ({"ess": 9, "hess_init": 0.0}, "hess_init must be positive"),
        ({"ess": 9, "clip_radius": 0.0}, "clip_radius must be positive"),
        ({"ess": 9, "debias": 1}, "debias must be True or False"),
    ],
)
def test_bad_options_are_refused_by_name(name, options, words):
    first = () if name == "numpyro" else (_weights(),)
    with pytest.raises(ValueError, match=words):
        plain(name)[0](*first, **options)


# -- hess_init by weight ---------------------------------------------------------------

GRADIENTS = [  # of two minibatches; the second tensor has none
    (np.array([3.0, 0.0, 0.0]), np.zeros((2, 2))),
    (np.array([1.0, 2.0, 0.0]), np.zeros((2, 2))),
]
OTHER_SHAPE = "hess_init needs .* shape"


def _measured(name, gradients=GRADIENTS, **options):
    """``initial_hess``, and the parameters or weights that it is of."""
    _, initial_hess = plain(name)
    if name == "numpyro":
        import jax.numpy as jnp

        of = (tuple(map(jnp.asarray, gradient)) for gradient in gradients)
        return initial_hess(of, **options), (jnp.linspace(-1, 1, 3), jnp.ones((2, 2)))
    import torch

    params = _weights()
    parts = ([torch.as_tensor(g, dtype=torch.float32) for g in pair] for pair in gradients)
    losses = (params[0] @ vector for vector, _ in parts)  # the other one is not in it
    return initial_hess(params, losses, **options), params


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_initial_hess_is_in_proportion_to_gradients_and_as_wide_as_one_number(name, size):
    gradients = [(size * a, size * b) for a, b in GRADIENTS]
    found, params = _measured(name, gradients, floor=0.5)
    first, second = (load(name).numpy(x) for x in (found.values() if name == "pyro" else found))
    squares = np.array([(9 + 1) / 2, (0 + 4) / 2, 0.0])
    expected = np.sqrt(squares + 0.25 * squares.mean())
    of_all = np.full((2, 2), np.sqrt(squares.sum() / 7))
    level = (1 / np.concatenate([expected, of_all.reshape(-1)])).mean()
    np.testing.assert_allclose(first, level * expected, rtol=1e-5)
    np.testing.assert_allclose(second, level * of_all, rtol=1e-5)
    if name == "pyro":
        assert list(map(id, found)) == list(map(id, params))


# -- torch ----------------------------------------------------------------------------


def _weights():
    import torch

    return [torch.nn.Parameter(torch.linspace(-1, 1, 3)), torch.nn.Parameter(torch.ones(2, 2))]


@pytest.fixture
def torch_ivon():
    """A function: parameters, the optimiser of them, and a step of ``num_draws``."""
    torch = pytest.importorskip("torch")

    from ngvi.torch import IVON

    torch.manual_seed(0)

    def make(**options):
        params = _weights()
        optimiser = IVON(params, **{"ess": 10.0, "beta2": 0.9, **options})

        def loss():
            return sum((p.square() + p.cos()).sum() for p in params)

        return params, optimiser, loss

    return make


def _step(optimiser, loss, scale=1.0):
    with optimiser.sampled_params(train=True):
        (scale * loss()).backward()
    optimiser.step()


def _equal(left, right):
    import torch

    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_mean_returns_bit_for_bit_after_a_sample_and_after_an_error(torch_ivon):
    params, optimiser, loss = torch_ivon()
    _step(optimiser, loss)
    before = [p.detach().clone() for p in params]
    with optimiser.sampled_params():
        assert not _equal(params, before)
    assert _equal(params, before)
    with pytest.raises(ZeroDivisionError), optimiser.sampled_params(train=True):
        loss().backward()
        _ = 1 / 0
    assert _equal(params, before)
    with pytest.raises(RuntimeError, match="step needs a gradient that was taken at a sample"):
        optimiser.step()  # the broken sample is none


def test_samples_have_the_standard_deviation_of_line_8(torch_ivon):
    import torch

    from ngvi.torch import IVON

    weights = torch.nn.Parameter(torch.full((200_000,), 2.0))
    optimiser = IVON([weights], ess=25.0, hess_init=0.04, weight_decay=0.12)
    with optimiser.sampled_params():
        sample = weights.detach().clone()
    assert sample.mean().item() == pytest.approx(2.0, abs=0.005)
    assert sample.std().item() == pytest.approx(0.5, rel=0.01)  # 1 / sqrt(25 * 0.16)


def test_a_scheduler_may_end_at_zero_and_predictions_follow(torch_ivon):
    import torch

    params, optimiser, loss = torch_ivon()
    scheduler = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=2)
    for _ in range(3):
        before = [p.detach().clone() for p in params]
        _step(optimiser, loss)
        scheduler.step()
    assert optimiser.param_groups[0]["lr"] == 0 and _equal(params, before)  # the third is of 0
    with optimiser.sampled_params():
        assert not _equal(params, before)


def test_zero_grad_may_stand_anywhere_and_clipping_after_the_sample(torch_ivon):
    import torch

    def run(where):
        torch.manual_seed(3)
        params, optimiser, loss = torch_ivon()
        for _ in range(4):
            if where == "before":
                optimiser.zero_grad()
            with optimiser.sampled_params(train=True):
                if where == "inside":
                    optimiser.zero_grad()
                loss().backward()
                if where == "clipped inside":
                    torch.nn.utils.clip_grad_norm_(params, 0.5)
            if where == "clipped outside":
                torch.nn.utils.clip_grad_norm_(params, 0.5)
            optimiser.step()
        return params

    plain, clipped = run("nowhere"), run("clipped inside")
    assert _equal(run("before"), plain) and _equal(run("inside"), plain)
    assert _equal(run("clipped outside"), clipped) and not _equal(clipped, plain)


def test_a_run_that_is_saved_goes_on_bit_for_bit(torch_ivon):
    import torch

    runs = []
    for is_saved in (False, True):
        torch.manual_seed(3)
        params, optimiser, loss = torch_ivon(lr=0.2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
        for step in range(6):
            if is_saved and step == 3:
                file, values = io.BytesIO(), [p.detach().clone() for p in params]
                torch.save([optimiser.state_dict(), scheduler.state_dict(), values], file)
                file.seek(0)
                saved = torch.load(file)
                params, optimiser, loss = torch_ivon(lr=0.7)
                torch.manual_seed(step)
                for param, value in zip(params, saved[2], strict=True):
                    param.data.copy_(value)
                optimiser.load_state_dict(saved[0])
                scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
                scheduler.load_state_dict(saved[1])
                optimiser.param_groups[0]["lr"] = saved[0]["param_groups"][0]["lr"]
            torch.manual_seed(step)
            _step(optimiser, loss)
            scheduler.step()
        runs.append([*params, *(v for s in optimiser.state.values() for v in s.values())])
    assert len(runs[0]) == 6 and _equal(*runs)
    twin = copy.deepcopy(optimiser)
    assert twin.param_groups[0]["count"] == 6 and not twin.sync


def test_half_precision_weights_have_a_state_in_float32_that_loading_keeps(torch_ivon):
    import torch

    from ngvi.torch import IVON

    weights = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    with pytest.warns(UserWarning, match="torch.autocast"):
        optimiser = IVON([weights], ess=10.0)
    _step(optimiser, lambda: weights.square().sum())
    saved = copy.deepcopy(optimiser.state_dict())
    optimiser.load_state_dict(saved)
    for key, value in optimiser.state[weights].items():
        assert value.dtype == torch.float32
        assert torch.equal(value, saved["state"][0][key])
    assert weights.dtype == torch.bfloat16 and (weights < 1).all()


def test_a_gradient_that_is_not_finite_keeps_the_state_and_is_counted(torch_ivon):
    params, optimiser, loss = torch_ivon()
    _step(optimiser, loss)
    before = [x.detach().clone() for x in params] + [
        v.clone() for s in optimiser.state.values() for v in s.values()
    ]
    for scale in (math.nan, math.inf, 1e30):
        with pytest.warns(UserWarning, match="A step was skipped"):
            _step(optimiser, loss, scale)
    after = [*params, *(v for s in optimiser.state.values() for v in s.values())]
    assert _equal(before, after)
    assert optimiser.num_skipped == 3 and optimiser.param_groups[0]["count"] == 1
    _step(optimiser, loss)
    assert not _equal(before, after)


def test_a_frozen_parameter_stays_and_an_unused_one_follows_its_prior(torch_ivon):
    params, optimiser, _ = torch_ivon(weight_decay=0.1)
    params[0].requires_grad_(False)
    first, second = (p.detach().clone() for p in params)
    with optimiser.sampled_params():
        assert _equal(params[:1], [first]) and not _equal(params[1:], [second])
    unused = _weights()[0]
    optimiser.add_param_group({"params": [unused], "weight_decay": 0.5})
    _step(optimiser, lambda: params[1].square().sum())
    assert _equal(params[:1], [first])
    # m - lr (h0 + delta) delta m / (h + delta): 0.1 * 1.5 * 0.5 m / (h + 0.5), with h below 1.
    assert (unused.abs() <= 0.95 * _weights()[0].abs()).all()


def test_misuse_in_torch_has_a_sentence(torch_ivon):
    import torch

    from ngvi.torch import IVON

    params, optimiser, loss = torch_ivon()
    with pytest.raises(RuntimeError, match="step needs a gradient that was taken at a sample"):
        optimiser.step()
    none, nested = "No gradient was taken inside", "sampled_params is open already"
    with pytest.raises(RuntimeError, match=none), optimiser.sampled_params(train=True):
        loss()
    sample = optimiser.sampled_params
    with pytest.raises(RuntimeError, match=nested), sample(), sample():
        pass
    with optimiser.sampled_params(train=True):
        loss().backward()
        with pytest.raises(RuntimeError, match="inside of sampled_params: leave it first"):
            optimiser.step()
    optimiser.zero_grad()
    loss().backward()
    with pytest.raises(RuntimeError, match="taken outside of sampled_params"):
        optimiser.step()
    with pytest.raises(ValueError, match="no option 'momentum' of a parameter group, only lr, ess"):
        optimiser.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "momentum": 0.9})
    with pytest.raises(ValueError, match="ess must be positive"):
        IVON([{"params": params, "ess": -1.0}], ess=5.0)
    with pytest.raises(ValueError, match="lr must be positive and finite"):
        IVON(params, -0.1, ess=5.0)
    with pytest.raises(ValueError, match="a schedule is a torch.optim.lr_scheduler"):
        IVON(params, lambda step: 0.1, ess=5.0)


def _worker(rank, path, samples, queue):
    import torch

    from ngvi.torch import IVON

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )
    weights = torch.nn.Parameter(torch.linspace(-1, 1, 3))
    optimiser = IVON([weights], ess=10.0, beta2=0.9, sync=True)
    for sample in samples[rank]:
        with optimiser.sampled_params(train=True):
            weights.data.copy_(sample)
            (weights.square() + weights.cos()).sum().backward()
        optimiser.step()
    queue.put((rank, weights.detach().numpy(), optimiser.state[weights]["hess"].numpy()))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_workers_with_a_sample_each_are_one_with_two(tmp_path):
    torch = pytest.importorskip("torch")

    from ngvi.torch import IVON

    torch.manual_seed(0)
    samples = torch.randn(2, 4, 3)
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    arguments = (str(tmp_path / "store"), samples, queue)
    workers = [context.Process(target=_worker, args=(rank, *arguments)) for rank in range(2)]
    for worker in workers:
        worker.start()
    found = sorted((queue.get(timeout=120) for _ in workers), key=lambda entry: entry[0])
    for worker in workers:
        worker.join(60)
    weights = torch.nn.Parameter(torch.linspace(-1, 1, 3))
    optimiser = IVON([weights], ess=10.0, beta2=0.9)
    for both in samples.transpose(0, 1):
        for sample in both:
            with optimiser.sampled_params(train=True):
                weights.data.copy_(sample)
                (weights.square() + weights.cos()).sum().backward()
        optimiser.step()
    hess = optimiser.state[weights]["hess"].numpy()
    for _, values, curvature in found:
        np.testing.assert_allclose(values, weights.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(curvature, hess, rtol=1e-6)


# -- jax ------------------------------------------------------------------------------


def test_an_optax_loop_compiles_once_chains_and_averages_over_workers():
    pytest.importorskip("numpyro")
    import jax
    import jax.numpy as jnp
    import optax

    from ngvi.optax import ivon as make

    params = {"w": jnp.linspace(-1.0, 1.0, 3), "half": jnp.ones(2, jnp.bfloat16)}
    ivon = make(optax.constant_schedule(0.1), ess=10.0, beta2=0.9)
    shared = make(0.1, ess=10.0, beta2=0.9, axis_name="workers")
    chain = optax.chain(optax.clip_by_global_norm(1e6), ivon)

    def loss(weights):
        return sum(jnp.sum(x.astype(jnp.float32) ** 2) for x in weights.values())

    @jax.jit
    def all_of_it(params, state, key):
        draws = ivon.sample(key, params, state, num_draws=2)
        grads = jax.vmap(jax.grad(loss))(draws)
        several = ivon.update(grads, state, params, sample=draws)
        workers = jax.vmap(
            lambda g, x: shared.update(g, state, params, sample=x), axis_name="workers"
        )(grads, draws)
        chained = chain.init(params)
        one = ivon.sample(key, params, chained)
        through_chain = chain.update(jax.grad(loss)(one), chained, params, sample=one)
        alone = ivon.update(jax.grad(loss)(one), state, params, sample=one)
        bad = jax.tree.map(lambda g: g * jnp.nan, jax.grad(loss)(one))
        skipped = ivon.update(bad, state, params, sample=one)
        return several, workers, through_chain[0], alone, skipped

    def close(a, b):
        a, b = (np.asarray(leaf.astype(jnp.float32)) for leaf in (a, b))  # NumPy 1 has no bfloat16
        np.testing.assert_allclose(a, b, rtol=1e-5)

    state = ivon.init(params)
    several, workers, through_chain, alone, bad = all_of_it(params, state, jax.random.key(0))
    for index in range(2):  # all workers take the step of both samples
        mine = jax.tree.map(lambda leaf, index=index: leaf[index], workers)
        jax.tree.map(close, mine, several)
    jax.tree.map(close, through_chain, alone[0])
    assert alone[1].hess["half"].dtype == jnp.float32 and alone[0]["half"].dtype == jnp.bfloat16
    assert int(bad[1].num_skipped) == 1 and int(bad[1].count) == 0
    jax.tree.map(
        np.testing.assert_array_equal, (bad[1].hess, bad[1].momentum), (state[3], state[2])
    )
    assert all(not leaf.any() for leaf in jax.tree.leaves(bad[0]))
    sigma = np.std(ivon.sample(jax.random.key(1), params, state, num_draws=20_000)["w"], axis=0)
    np.testing.assert_allclose(sigma, 1 / np.sqrt(10 * (1 + 1e-4)), rtol=0.03)


def test_optax_may_mask_a_frozen_part_accumulate_and_inject_options():
    pytest.importorskip("numpyro")
    import jax
    import jax.numpy as jnp
    import optax

    from ngvi.optax import ivon as make

    options = {"ess": 10.0, "beta2": 0.9}
    ivon, key = make(0.1, **options), jax.random.key(0)
    params = {"head": {"w": jnp.linspace(-1.0, 1.0, 3)}, "body": {"w": jnp.ones(2), "b": 2.0}}
    params = jax.tree.map(jnp.asarray, params)

    def gradient(weights):
        return jax.grad(lambda w: sum(jnp.sum(x**2 + x**3) for x in jax.tree.leaves(w)))(weights)

    def stepped(transformation, num_draws=None):
        state = transformation.init(params)
        sample = ivon.sample(key, params, state, num_draws=num_draws)
        gradients = gradient(sample) if num_draws is None else jax.vmap(gradient)(sample)
        return sample, transformation.update(gradients, state, params, sample=sample)[0]

    sample, alone = stepped(ivon)
    mask = {"head": True, "body": {"w": False, "b": True}}
    kinds = {"head": "ivon", "body": "frozen"}
    parts = {"ivon": ivon, "frozen": optax.set_to_zero()}
    for masked, frozen in (
        (optax.masked(ivon, mask), ("w",)),
        (optax.multi_transform(parts, kinds), ("w", "b")),
    ):
        drawn, moved = stepped(masked)
        for name in frozen:
            np.testing.assert_array_equal(drawn["body"][name], params["body"][name])
        np.testing.assert_array_equal(drawn["head"]["w"], sample["head"]["w"])
        np.testing.assert_allclose(moved["head"]["w"], alone["head"]["w"], rtol=1e-6)
        several, _ = stepped(masked, 2)
        assert several["head"]["w"].shape == (2, 3)
    # Two microbatches of one sample, whose mean gradient is the batch's.
    twice = optax.MultiSteps(ivon, every_k_schedule=2)
    state = twice.init(params)
    for share in (0.5, 1.5):
        same = ivon.sample(key, params, state)
        gradients = jax.tree.map(lambda g, share=share: share * g, gradient(same))
        moved, state = twice.update(gradients, state, params, sample=same)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), moved, alone)
    _, moved = stepped(optax.inject_hyperparams(make)(step_size=0.1, **options))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), moved, alone)
    with pytest.warns(UserWarning, match="Half-precision weights.*in float32"):
        ivon.init({"w": jnp.ones(2, jnp.float16)})


def test_misuse_in_jax_has_a_sentence():
    pytest.importorskip("numpyro")
    import jax
    import jax.numpy as jnp

    from ngvi.optax import ivon as make

    with pytest.raises(ValueError, match="step_size must be positive and finite"):
        make(-0.1, ess=5.0)
    params, ivon = {"w": jnp.ones(2)}, make(ess=5.0)
    state = ivon.init(params)
    for sample in (None, params):
        with pytest.raises(ValueError, match="the sample at which the gradient was"):
            ivon.update(params, state, params, sample=sample)
    with pytest.raises(ValueError, match="num_draws must be an integer of at least 1"):
        ivon.sample(jax.random.key(0), params, state, num_draws=0)
    with pytest.raises(ValueError, match="sample needs the state of one ivon"):
        ivon.sample(jax.random.key(0), params, {"w": jnp.ones(2)})
