"""SLANG in a plain loop: samples, states and mistakes; its steps are in ``test_plain_loops``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim.test_plain_loops import DELTA, DIM, ESS, OPTIONS, START

RANK = 2


def test_a_sample_has_the_correlations_of_the_factor(ppl, rng):
    factor, hess, num = rng.normal(size=(DIM, RANK)), rng.uniform(0.5, 2, DIM), 20_000
    expected = np.linalg.inv(ESS * (factor @ factor.T + np.diag(hess + DELTA)))
    if ppl.is_numpyro:
        import jax

        from ngvi.optax import slang

        tx, params = slang(rank=RANK, **OPTIONS), ppl.array(START)
        begun = tx.init(params)._replace(factor=ppl.array(factor.T), hess=ppl.array(hess))
        draws = ppl.numpy(tx.sample(jax.random.key(0), params, begun, num_draws=num))
    else:
        import torch

        from ngvi.torch import SLANG

        params = torch.nn.Parameter(ppl.array(START))
        optimiser = SLANG([params], rank=RANK, **OPTIONS)
        with optimiser.sampled_params():
            pass
        optimiser.state[params]["factor"].copy_(ppl.array(factor))
        optimiser.state[params]["hess"].copy_(ppl.array(hess))
        torch.manual_seed(0)
        draws = []
        for _ in range(num // 10):
            with optimiser.sampled_params():
                draws.append(ppl.numpy(params.detach()).copy())
        draws = np.array(draws)
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs(np.cov(draws.T) - expected).max() < 6 / np.sqrt(len(draws)) * spread.max()
    assert np.abs(draws.mean(0) - START).max() < 0.02


def test_what_slang_cannot_take_has_a_sentence():
    torch = pytest.importorskip("torch")
    from ngvi.torch import SLANG

    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    with pytest.raises(ValueError, match="one rank for all weights, got 1 and 2"):
        SLANG([{"params": params[:1]}, {"params": params[1:], "rank": 2}], ess=1.0, rank=1)
    optimiser = SLANG(params, ess=1.0, rank=5)
    with pytest.raises(ValueError, match="a rank above the 4 weights"), optimiser.sampled_params():
        pass
    with pytest.raises(ValueError, match="rank must be"):
        SLANG(params, ess=1.0, rank=0)
    mixed = [params[0], torch.nn.Parameter(torch.ones(2, dtype=torch.float64))]
    optimiser = SLANG(mixed, ess=1.0, rank=1)
    with pytest.raises(ValueError, match="one device, in one precision"):
        optimiser.sampled_params().__enter__()


def test_optax_leaves_out_what_is_masked_and_averages_workers():
    pytest.importorskip("numpyro")
    import jax
    import jax.numpy as jnp
    import optax

    from ngvi.optax import slang

    params = {"a": jnp.linspace(-1.0, 1.0, 3), "b": jnp.ones(2)}
    tx = slang(ess=9.0, rank=1, beta2=0.5)
    masked = optax.masked(tx, {"a": True, "b": False})
    state = masked.init(params)
    drawn = tx.sample(jax.random.key(0), params, state)
    np.testing.assert_array_equal(drawn["b"], params["b"])
    assert (drawn["a"] != params["a"]).all()
    rows = jax.random.normal(jax.random.key(1), (2, 4, 3))  # of two workers
    own, at = tx.init(params["a"]), params["a"] + 1.0

    def update(rows, name):
        rule = slang(ess=9.0, rank=1, beta2=0.5, axis_name=name)
        return rule.update(rows, own, params["a"], sample=at)[1]

    both = jax.jit(jax.vmap(lambda rows: update(rows, "w"), axis_name="w"))(rows)
    alone = jax.jit(lambda rows: update(rows, None))(rows.reshape(8, 3))
    for one, other in zip(both[2:], alone[2:], strict=True):
        np.testing.assert_allclose(one[0], other, rtol=1e-4, atol=1e-6)
    assert both.num_skipped[0] == 0 and np.abs(both.factor).max() > 0.1
