"""Standard normal draws come in pairs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.ppl import QUICKLY


def draws(backend, num_draws, dim, seed=0, dtype="float64", **options):
    standard_normal = backend.module("estimators").standard_normal
    if backend.name == "numpyro":
        import jax

        run = _compiled(standard_normal, (num_draws,), dim, np.dtype(dtype), **options)
        return run(jax.random.key(seed))
    import torch

    torch.manual_seed(seed)
    return standard_normal(num_draws, backend.array(np.zeros(dim), dtype), **options)


@functools.cache
def _compiled(standard_normal, *args, **options):
    import jax

    return jax.jit(lambda key: standard_normal(key, *args, **options), compiler_options=QUICKLY)


@pytest.mark.parametrize("num_draws", [1, 5, 8])
def test_draws_come_in_pairs_and_an_odd_one_has_none(backend, num_draws):
    z = backend.numpy(draws(backend, num_draws, 3))
    assert z.shape == (num_draws, 3)
    assert np.isfinite(z).all()
    pairs, free = num_draws // 2, -(-num_draws // 2)
    np.testing.assert_array_equal(z[free:], -z[:pairs])
    assert len(np.unique(np.abs(z[:, 0]))) == free


def test_a_seed_determines_the_draws_and_another_gives_others(backend):
    first, again, other = (backend.numpy(draws(backend, 6, 3, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_every_draw_is_standard_normal(backend):
    from scipy import stats

    z = np.concatenate([backend.numpy(draws(backend, 2, 200, seed)) for seed in range(20)])
    for one in (z[::2], z[1::2]):
        assert stats.kstest(one.reshape(-1), "norm").pvalue > 1e-3
