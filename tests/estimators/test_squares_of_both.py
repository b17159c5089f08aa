"""Gradients of single examples, by rows of activations, are the same in both packages."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("pyro")

import jax
import jax.numpy as jnp
import torch

from numpyro_ngvi.estimators.per_example.squares import by_rows
from pyro_ngvi.estimators.per_example import squares
from pyro_ngvi.estimators.per_example.rows import ExampleRows
from tests.ppl import QUICKLY

NUM, SIDE = 5, 8
SHAPES = (3, 2, 3, 3), (3,), (4, 3, 2, 2), (16, 2), (2,)
SIZES = [int(np.prod(shape)) for shape in SHAPES]


@pytest.fixture(autouse=True)
def _float64(numpyro_backend, pyro_backend):
    return numpyro_backend, pyro_backend


def of_pyro(theta, images, labels):
    parts = zip(theta.split(SIZES), SHAPES, strict=True)
    first, bias, second, dense, last = (part.reshape(shape) for part, shape in parts)
    x = torch.nn.functional.conv2d(images, first, bias, stride=2, padding=1).tanh()
    x = torch.nn.functional.conv2d(x, second, dilation=2).relu().flatten(1)
    return torch.log_softmax(x @ dense + last, 1)[torch.arange(NUM), labels]


def of_numpyro(theta, images, labels):
    parts = zip(jnp.split(theta, np.cumsum(SIZES)[:-1]), SHAPES, strict=True)
    first, bias, second, dense, last = (part.reshape(shape) for part, shape in parts)
    x = jax.lax.conv_general_dilated(images, first, (2, 2), [(1, 1)] * 2)
    x = jnp.tanh(x + bias[:, None, None])
    x = jax.lax.conv_general_dilated(x, second, (1, 1), "VALID", rhs_dilation=(2, 2))
    logits = jax.nn.relu(x).reshape(NUM, -1) @ dense + last
    return jax.nn.log_softmax(logits)[jnp.arange(NUM), labels]


def test_gradients_of_examples_are_the_same_in_both_packages(rng):
    theta, images = 0.5 * rng.normal(size=sum(SIZES)), rng.normal(size=(NUM, 2, SIDE, SIDE))
    labels, scale = rng.integers(2, size=NUM), rng.uniform(1, 3, NUM)

    of_draw = torch.tensor(theta)[None].requires_grad_()
    with squares.Recorder() as recorder:
        values = of_pyro(of_draw[0], torch.tensor(images), torch.tensor(labels))
    of_examples = torch.tensor(scale)
    sums = squares.squares(recorder, values, of_examples, of_draw, set())
    uses = recorder.of_examples(NUM)
    total = (of_examples * values).sum()
    deltas = torch.autograd.grad(total, [use.result for use in uses], retain_graph=True)
    rows = ExampleRows(uses, deltas, of_examples, of_draw, 0)

    def found(theta, scale):
        def function(at):
            return of_numpyro(at["x"], images, labels)

        by_site, holds = by_rows(function, {"x": theta}, scale)
        own, start = by_site["x"], sum(SIZES[:3])
        return own.sums()[1], own.entries(0, theta.size), own.outer(start, *SHAPES[3]), holds

    compiled = jax.jit(found, compiler_options=QUICKLY)
    actual, entries, outer, holds = compiled(jnp.asarray(theta), jnp.asarray(scale))
    assert holds is None or holds
    np.testing.assert_allclose(actual, sums[0].detach(), rtol=1e-10)
    wanted = rows.entries(0, sum(SIZES)).detach()
    np.testing.assert_allclose(entries, wanted, rtol=1e-10, atol=1e-12)
    for one, other in zip(outer, rows.outer(sum(SIZES[:3]), *SHAPES[3]), strict=True):
        np.testing.assert_allclose(one, other.detach(), rtol=1e-10, atol=1e-12)
