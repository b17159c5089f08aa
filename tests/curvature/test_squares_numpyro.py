"""Squared gradients of examples, summed by rows of activations, are those of a loop, or refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp

from numpyro_ngvi.curvature.squares import by_rows

NUM, IN, HIDDEN, OUT = 6, 5, 4, 3


@pytest.fixture(autouse=True)
def _float64(numpyro_backend):
    return numpyro_backend


def network(rng, change=lambda rows: rows, prior=False):
    """Log likelihoods of the examples by the latents of two sites."""
    images, labels = jnp.asarray(rng.normal(size=(NUM, IN))), rng.integers(OUT, size=NUM)

    def function(latents):
        first = latents["a"][: IN * HIDDEN].reshape(IN, HIDDEN)
        bias = latents["a"][IN * HIDDEN :]
        second = 0.5 * latents["b"].reshape(OUT, HIDDEN)
        hidden = jax.nn.relu(change(images @ first + bias))
        _ = jnp.sum(jnp.where(latents["a"] > 0, latents["a"] ** 2, 0))  # a prior, for nothing
        return jax.nn.log_softmax(hidden @ second.T)[jnp.arange(NUM), labels]

    latents = {
        "a": jnp.asarray(rng.normal(size=IN * HIDDEN + HIDDEN)),
        "b": jnp.asarray(rng.normal(size=OUT * HIDDEN)),
    }
    return function, latents


def test_the_sums_are_those_of_a_loop_over_examples(rng):
    function, latents = network(rng)
    scale = rng.uniform(1, 3, NUM)
    sums, holds = jax.jit(lambda s: by_rows(function, latents)(s))(scale)
    assert holds
    for site, rows in jax.jit(jax.jacrev(function))(latents).items():
        np.testing.assert_allclose(sums[site], scale @ np.asarray(rows) ** 2, rtol=1e-12)


def test_examples_that_depend_on_each_other_are_noticed(rng):
    def by_batch(rows):
        return (rows - rows.mean(0)) / rows.std(0)

    def with_the_next(rows):
        return rows.at[0].add(0.1 * rows[1])

    for change in (by_batch, with_the_next):
        function, latents = network(rng, change)
        _, holds = jax.jit(lambda s, f=function, x=latents: by_rows(f, x)(s))(jnp.ones(NUM))
        assert not holds


def test_other_uses_of_a_weight_are_refused(rng):
    rows = jnp.asarray(rng.normal(size=(NUM, 3)))
    shared = jnp.asarray(rng.normal(size=(NUM, 2, 3)))
    uses = {
        "twice": lambda w: jnp.sin(rows @ w) + rows[:, ::-1] @ w,
        "by a function": lambda w: rows @ jnp.exp(w),
        "by several rows of an example": lambda w: jnp.sum(jnp.sin(shared @ w), 1),
        "added to several rows": lambda w: jnp.sum(jnp.sin(shared + w), (1, 2)),
        "with another weight": lambda w: rows[:, 0] * (w[0] * w[1]) + rows @ w,
    }
    for name, function in uses.items():
        assert by_rows(lambda latents, f=function: f(latents["w"]), {"w": jnp.ones(3)}) is None, (
            name
        )
    once = by_rows(lambda latents: jnp.sin(rows @ latents["w"]), {"w": jnp.ones(3)})
    assert once is not None and once(jnp.ones(NUM))[1]


def test_a_network_that_fits_its_examples_is_no_network_whose_examples_depend_on_each_other(rng):
    images = jnp.asarray(rng.normal(size=(NUM, IN)), jnp.float32)
    labels = jnp.arange(NUM) % OUT

    def function(latents):
        logits = images @ latents["w"].reshape(IN, OUT)
        surely = 12 * jax.nn.one_hot(labels, OUT, dtype=jnp.float32)
        return jax.nn.log_softmax(logits + surely)[jnp.arange(NUM), labels]

    latents = {"w": 0.1 * jnp.ones(IN * OUT, jnp.float32)}
    assert by_rows(function, latents)(jnp.ones(NUM, jnp.float32))[1]
