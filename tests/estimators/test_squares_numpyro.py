"""Gradients of examples by rows of activations are those of a loop over examples, or refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp

from ngvi.latents import forest
from numpyro_ngvi import families
from numpyro_ngvi.estimators import gauss_newton
from numpyro_ngvi.estimators.hessian import diagonal
from numpyro_ngvi.estimators.per_example import layers
from numpyro_ngvi.estimators.per_example.squares import by_rows
from tests.ppl import QUICKLY

NUM, IN, HIDDEN, OUT = 6, 5, 4, 3
HEIGHT, WIDTH, CHANNELS, FEATURES = 9, 8, 2, 4
SIZES = {"N": NUM, "H": HEIGHT, "W": WIDTH, "C": CHANNELS}
KERNEL = {"H": 3, "W": 2, "I": CHANNELS, "O": FEATURES}

#: Of images, kernels and results.
LAYOUTS = {
    "Flax": ("NHWC", "HWIO", "NHWC"),
    "torch": ("NCHW", "OIHW", "NCHW"),
    "neither": ("CNHW", "IHWO", "WNHC"),
}
#: Strides, padding, and dilation of images and of kernels.
WINDOWS = {
    "plain": ((1, 1), "VALID", (1, 1), (1, 1)),
    "strides": ((2, 1), "SAME", (1, 1), (1, 2)),
    "transposed": ((1, 2), [(1, 2), (0, -1)], (2, 3), (2, 1)),
}


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


def compare(function, latents):
    """All that families take of the examples' gradients is what a loop has."""
    scale = jnp.linspace(1, 3, NUM)

    # Latents are arguments: what hangs on constants alone jaxlib 0.7.0 folds wrongly, convolutions
    # whose results are transposed.
    def found(latents, scale):
        examples = by_rows(function, latents, scale)
        assert examples is not None
        found, holds = examples
        parts = {}
        for site, rows in found.items():
            dim = latents[site].size
            some = rows.entries(1, dim - 1)
            parts[site] = (*rows.sums(), rows.gradient(), rows.entries(0, dim), some)
        return parts, holds

    actual, holds = jax.jit(found, compiler_options=QUICKLY)(latents, scale)
    assert holds is None or holds
    for site, rows in jax.jit(jax.jacrev(function), compiler_options=QUICKLY)(latents).items():
        scaled = np.sqrt(scale)[:, None] * rows
        expected = (scale @ rows, scale @ rows**2, scale @ rows, scaled, scaled[:, 1:-1])
        for one, other in zip(actual[site], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def convolutions(rng, layout, window, change=None):
    """Two convolutions with biases and pooling, and a dense layer."""
    names, (strides, padding, of_images, of_kernels) = LAYOUTS[layout], WINDOWS[window]
    images = jnp.asarray(rng.normal(size=[SIZES[axis] for axis in names[0]]))
    shape = [KERNEL[axis] for axis in names[1]]
    size, labels = int(np.prod(shape)), rng.integers(OUT, size=NUM)

    def hidden(first, bias, second):
        x = jax.lax.conv_general_dilated(
            images,
            first.reshape(shape),
            strides,
            padding,
            of_images,
            of_kernels,
            dimension_numbers=names,
        )
        along = [FEATURES if axis == "C" else 1 for axis in names[2]]
        x = jnp.einsum(f"{names[2]}->NHWC", jax.nn.relu(x + bias.reshape(along)))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        kernel = second.reshape(2, 1, FEATURES, 3)
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return jnp.tanh(x if change is None else change(x)).reshape(NUM, -1)

    def function(latents):
        first, bias, second, rest = jnp.split(
            latents["a"], np.cumsum([size, FEATURES, 6 * FEATURES])
        )
        x = hidden(first, bias, second)
        logits = x @ (0.5 * latents["b"]).reshape(OUT, -1).T + rest[:OUT]
        return jax.nn.log_softmax(logits)[jnp.arange(NUM), labels]

    like = [jnp.zeros(number) for number in (size, FEATURES, 6 * FEATURES)]
    width = jax.eval_shape(hidden, *like).shape[1]
    more = OUT + 2  # two latents that are in no weight
    latents = {
        "a": jnp.asarray(0.5 * rng.normal(size=size + 7 * FEATURES + more)),
        "b": jnp.asarray(0.5 * rng.normal(size=OUT * width)),
    }
    return function, latents


def test_gradients_of_dense_layers_are_those_of_a_loop_over_examples(rng):
    compare(*network(rng))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_convolutions_are_those_of_a_loop_over_examples(layout, window, rng):
    compare(*convolutions(rng, layout, window))


@pytest.mark.parametrize("at_once", [1, 400])
def test_a_few_examples_at_a_time_have_the_same_gradients(at_once, rng, monkeypatch):
    monkeypatch.setattr(layers, "NUMBERS_AT_ONCE", at_once)
    compare(*network(rng))
    compare(*convolutions(rng, "Flax", "plain"))


def test_an_example_may_have_several_rows(rng):
    rows = jnp.asarray(rng.normal(size=(NUM, 5, 3)))
    by_positions = rows.swapaxes(0, 1)

    def parts(latents):
        first, bias, second = jnp.split(latents["w"], [12, 16])
        return first.reshape(3, 4), bias, second.reshape(4, 2)

    def positions(latents):
        first, bias, second = parts(latents)
        return jnp.sum(jnp.sin(jnp.tanh(rows @ first - bias) @ second), (1, 2))

    def positions_first(latents):
        first, bias, second = parts(latents)
        return jnp.sum(jnp.sin(jnp.tanh(bias - by_positions @ first) @ second), (0, 2))

    def one_after_another(latents):
        first, bias, second = parts(latents)
        x = jnp.tanh(rows.reshape(-1, 3) @ first + bias) @ second
        return jnp.sum(jnp.sin(x).reshape(NUM, -1), 1)

    for function in (positions, positions_first, one_after_another):
        compare(function, {"w": jnp.asarray(rng.normal(size=24))})


def test_weights_may_be_cut_out_in_any_order(rng):
    rows = jnp.asarray(rng.normal(size=(2, NUM, 3)))

    def function(latents):
        # An index with a step is a gather in older versions of JAX.
        first, second = (
            jax.lax.slice(w, (0,), (6,), (2,)) for w in (latents["w"][::-1], latents["w"])
        )
        turned = jnp.sin(second @ rows[1].T) * jnp.cos(latents["v"][0] - rows[0, :, 1])
        return jnp.sin(rows[0] @ first) + turned

    compare(function, {"w": jnp.asarray(rng.normal(size=7)[1:]), "v": jnp.ones(3)})


def test_a_matrix_of_latents_that_is_a_weight_has_outer_products(rng):
    images = jnp.asarray(rng.normal(size=(NUM, IN)))

    def function(latents):
        x = jnp.tanh(images @ latents["w"][: IN * 4].reshape(IN, 4))
        return jnp.sum(jnp.sin(x @ latents["w"][IN * 4 :].reshape(3, 4).T), 1)

    latents = {"w": jnp.asarray(rng.normal(size=IN * 4 + 12))}
    rows = by_rows(function, latents, jnp.ones(NUM))[0]["w"]
    for start, *shape in ((0, IN, 4), (IN * 4, 3, 4)):
        x, y = rows.outer(start, *shape)
        outer = (x[:, :, None] * y[:, None]).reshape(NUM, -1)
        entries = rows.entries(start, start + shape[0] * shape[1])
        np.testing.assert_allclose(outer, entries, rtol=1e-12)
    assert rows.outer(0, 4, IN) is None
    assert rows.outer(1, IN, 3) is None


def test_examples_that_depend_on_each_other_are_noticed(rng):
    def by_batch(rows):
        return (rows - rows.mean(0)) / rows.std(0)

    def with_the_next(rows):
        return rows.at[0].add(0.1 * rows[1])

    for change in (by_batch, with_the_next):
        assert not holds(*network(rng, change))


def test_positions_that_are_taken_for_examples_are_noticed(rng):
    rows = jnp.asarray(rng.normal(size=(NUM, NUM, 3)))
    latents = {"w": jnp.asarray(rng.normal(size=3))}
    assert holds(lambda latents: jnp.sum(jnp.sin(rows @ latents["w"]), 1), latents)
    assert not holds(lambda latents: jnp.sum(jnp.sin(rows @ latents["w"]), 0), latents)


def holds(function, latents):
    found = jax.jit(lambda scale: by_rows(function, latents, scale)[1])(jnp.ones(NUM))
    return found is None or found  # None is shown by the program


def test_other_uses_of_a_weight_are_refused(rng):
    rows = jnp.asarray(rng.normal(size=(NUM, 3)))
    images = jnp.asarray(rng.normal(size=(NUM, 1, 5)))

    def convolved(w):
        return jnp.sin(jax.lax.conv(images, w.reshape(1, 1, 3), (1,), "VALID"))

    uses = {
        "twice": lambda w: jnp.sin(rows @ w) + rows[:, ::-1] @ w,
        "by a function": lambda w: rows @ jnp.exp(w),
        "a kernel, twice": lambda w: jnp.sum(convolved(w) * convolved(w), (1, 2)),
        "as an image": lambda w: jax.lax.conv(w.reshape(1, 1, 3), images, (1,), "SAME").sum((0, 2)),
        "by itself": lambda w: jnp.concatenate([w, w]),
        "with another weight": lambda w: rows[:, 0] * (w[0] * w[1]) + rows @ w,
    }
    for name, function in uses.items():
        latents, scale = {"w": jnp.ones(3)}, jnp.ones(NUM)
        assert by_rows(lambda latents, f=function: f(latents["w"]), latents, scale) is None, name
    assert holds(lambda latents: jnp.sin(rows @ latents["w"]), {"w": jnp.ones(3)})


def test_a_network_that_fits_its_examples_is_no_network_whose_examples_depend_on_each_other(rng):
    images = jnp.asarray(rng.normal(size=(NUM, IN)), jnp.float32)
    labels = jnp.arange(NUM) % OUT

    def function(latents):
        logits = images @ latents["w"].reshape(IN, OUT)
        surely = 12 * jax.nn.one_hot(labels, OUT, dtype=jnp.float32)
        return jax.nn.log_softmax(logits + surely)[jnp.arange(NUM), labels]

    latents = {"w": 0.1 * jnp.ones(IN * OUT, jnp.float32)}
    found = by_rows(function, latents, jnp.ones(NUM, jnp.float32))[1]
    assert found is not None and found  # labels at these places are looked at, not shown


def test_what_the_program_shows_of_examples_is_not_looked_at(rng):
    """Attention among an example's own rows, convolutions and pooling, labels that are taken."""
    rows = jnp.asarray(rng.normal(size=(NUM, 4, 3)))
    labels = jnp.arange(NUM) % 3

    def attention(latents):
        x = rows @ latents["w"].reshape(3, 3)
        weights = jax.nn.softmax(x @ x.mT, -1)
        logits = jax.nn.log_softmax((weights @ x).sum(1))
        return jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]

    weights = {"w": jnp.asarray(rng.normal(size=9))}

    def pooled(latents):
        x = jax.lax.conv(rows[:, None], latents["w"][:4].reshape(1, 1, 2, 2), (1, 1), "SAME")
        wide = (1, 1, 2, 2)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, wide, wide, "SAME").sum((1, 2, 3))

    for function in attention, pooled:
        assert by_rows(function, weights, jnp.ones(NUM))[1] is None
    for mixed in (lambda x: jnp.cumsum(x, 0), lambda x: jnp.sort(x, 0), lambda x: x[::-1]):
        found = by_rows(lambda latents, f=mixed: f(attention(latents)), weights, jnp.ones(NUM))
        assert found[1] is not None and not found[1]


def test_a_hessian_that_the_program_shows_to_be_diagonal_takes_one_product():
    def product_of(function):
        def product(vector):
            products.append(vector)
            return jax.jvp(jax.grad(function), (jnp.linspace(0.5, 1, 6),), (vector,))[1]

        return product

    def parts(x):
        return jnp.sum(jnp.sin(x[:3])) + jnp.sum(jnp.exp(x[3:].reshape(3, 1)) ** 2)

    def walk(x):
        return jnp.sum((x[1:] - x[:-1]) ** 2)

    def turned(x):
        return jnp.sum(x * x[::-1])

    for function in (parts, walk, turned):
        hessian = jax.hessian(function)(jnp.linspace(0.5, 1, 6))
        products = []
        found = diagonal(product_of(function), 6, hessian.dtype)
        np.testing.assert_allclose(found, hessian.diagonal(), rtol=1e-12, atol=1e-12)
        assert (len(products) == 2) == (function is parts)  # one of them traced


# -- what families take -----------------------------------------------------------------------


def gaussians(name, latents):
    """A family for each site; a matrix is the first kernel, whose outputs are its columns."""
    options = {
        "matrix_normal": {
            "a": {"matrices": ((0, 12, FEATURES),)},
            "b": {"matrices": ((0, OUT, latents["b"].size // OUT),)},
        },
        "low_rank": {"a": {"rank": 2}, "b": {"rank": 3}},
    }
    family = {
        "diagonal": families.Diagonal,
        "matrix_normal": families.MatrixNormal,
        "low_rank": families.LowRankPrecision,
        "dense": families.CovarianceCholesky,
    }[name]
    return {
        site: family(**options.get(name, {}).get(site, {})).initial(
            0.0 * value, jnp.linspace(0.5, 1, value.size)
        )
        for site, value in latents.items()
    }


@pytest.mark.parametrize("family", ["diagonal", "matrix_normal", "low_rank", "dense"])
@pytest.mark.parametrize("by_batch", [False, True])
def test_families_get_of_rows_what_they_get_of_a_loop(family, by_batch, rng, monkeypatch):
    """And of a loop itself, where batches are normalised."""
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 0 if family == "low_rank" else 10_000)
    monkeypatch.setattr(gauss_newton, "NUMBERS_OF_ROWS", 200)
    function, latents = convolutions(rng, "Flax", "plain", normalised if by_batch else None)
    here, scale = gaussians(family, latents), jnp.linspace(1, 3, NUM)

    def found(scale):
        return gauss_newton._of_many(function, latents, scale, here)

    def loop(scale):
        return gauss_newton._at_once(function, latents, scale, here)

    for one, other in zip(
        *(jax.tree.leaves(jax.jit(of, compiler_options=QUICKLY)(scale)) for of in (found, loop)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    assert holds(function, latents) != by_batch


def normalised(x):
    return (x - x.mean((0, 1, 2))) / x.std((0, 1, 2))


@pytest.mark.parametrize("family", ["diagonal", "matrix_normal", "low_rank"])
def test_a_loop_is_there_only_for_what_rows_do_not_tell(family, rng, monkeypatch):
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 0)
    function, latents = convolutions(rng, "Flax", "plain")
    here, scale = gaussians(family, latents), jnp.linspace(1, 3, NUM)
    expected = jax.jit(lambda s: gauss_newton._of_many(function, latents, s, here))(scale)
    shapes = jax.eval_shape(lambda: gauss_newton._in_chunks(function, latents, scale, here))
    nothing = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), shapes)
    monkeypatch.setattr(gauss_newton, "_in_chunks", lambda *_: nothing)
    actual = jax.jit(lambda s: gauss_newton._of_many(function, latents, s, here))(scale)
    for one, other in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
