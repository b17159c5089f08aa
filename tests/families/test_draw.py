"""``draw`` and ``draw_log_prob`` are the dense path, whichever way they take.

For few draws of a large dense Gaussian both packages replace a d^3 product by cumulative
sums. Which way is taken depends on constants of the module; both sides are tested at each
size.
"""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families.draws import natural_gradient_from_draws
from tests.reference import (
    ALL_FAMILIES,
    TRIANGULAR,
    natural_gradient,
    random_gaussian,
    relative_error,
    root,
)

#: The bar of the issue; measured 1e-14.
TOLERANCE = 1e-10

#: Dimension, and batch shape of the noise. 40 and 70 need two and three blocks of a cumulative
#: sum by blocks of 32; 64 fills two exactly.
CASES = [(1, ()), (5, (2, 3)), (40, (3,)), (64, ()), (70, (2,))]
SMALL_CASES = CASES[:2]


#: Each family and, for those that have two ways of a draw, each way.
WAYS = [
    (family, way)
    for family in ALL_FAMILIES
    for way in (("cumulative sums", "dense product") if family in TRIANGULAR else ("",))
]


def at(cases):
    """Every way at every size; only for cumulative sums is a large size another case."""
    sums = "cumulative sums"
    joint = [(way, *case) for way in WAYS for case in cases if way[1] == sums or case[0] <= 5]
    return pytest.mark.parametrize(("family_name", "dim", "shape"), joint, indirect=["family_name"])


@pytest.fixture(params=WAYS, ids=lambda way: " ".join(way).strip())
def family_name(request, backend, monkeypatch):
    name, way = request.param
    matrices = backend.module("linalg.matrices").Matrices
    sums = way == "cumulative sums"
    monkeypatch.setattr(matrices, "many_draws", 10**9 if sums else 0)
    monkeypatch.setattr(matrices, "small_dim", 0 if sums else 10**9)
    return name


def _instance(backend, family_name, dim, shape, rng):
    q = random_gaussian(family_name, dim, rng)
    noise = backend.array(rng.normal(size=(*shape, dim)))
    return q, backend.family(family_name, *q), noise


def _function(theta):
    return (theta**3).sum() + (1 / (1 + theta**2)).prod()


@at(CASES)
def test_a_draw_is_the_sample(backend, family_name, dim, shape, rng):
    (loc, scale), family, noise = _instance(backend, family_name, dim, shape, rng)
    expected = loc + backend.numpy(noise) @ root(family_name, scale).T
    # Rounding of sums of 70 terms of order one, in either order.
    np.testing.assert_allclose(backend.numpy(family.draw(noise)), expected, rtol=0, atol=1e-13)


@pytest.mark.fast_in_numpyro("*-1-*", "*-5-*", "*-70-*")
@at(CASES)
def test_a_draw_carries_natural_gradients(backend, family_name, dim, shape, rng):
    q, family, noise = _instance(backend, family_name, dim, shape, rng)
    euclidean = backend.grad(lambda f: _function(f.sample(noise)), family)
    if dim <= 5:  # the dense Fisher matrix of a larger one is too large for a test
        expected = natural_gradient(family_name, *q, *backend.coordinates(euclidean))
    else:
        expected = backend.coordinates(family.natural_gradient(euclidean))
    actual = backend.grad(lambda f: _function(f.draw(noise)), family)
    for a, e in zip(backend.coordinates(actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@at([*SMALL_CASES, (40, ())])
def test_a_draw_has_the_same_derivative_in_forward_mode(backend, family_name, dim, shape, rng):
    q, family, noise = _instance(backend, family_name, dim, shape, rng)
    tangent = backend.family(family_name, *random_gaussian(family_name, dim, rng))
    expected = backend.jvp(lambda f: f.sample(noise), family, family.natural_gradient(tangent))
    actual = backend.jvp(lambda f: f.draw(noise), family, tangent)
    assert relative_error(backend.numpy(actual), backend.numpy(expected)) < TOLERANCE


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_draw_is_differentiable_in_its_noise(backend, family_name, shape, rng):
    _, family, noise = _instance(backend, family_name, 5, shape, rng)
    expected = backend.grad(lambda z: _function(family.sample(z)), noise)
    actual = backend.grad(lambda z: _function(family.draw(z)), noise)
    assert relative_error(backend.numpy(actual), backend.numpy(expected)) < TOLERANCE


@at(SMALL_CASES)
def test_draw_log_prob_is_log_prob_of_the_draw(backend, family_name, dim, shape, rng):
    q, family, noise = _instance(backend, family_name, dim, shape, rng)

    def log_q(f):
        return f.log_prob(f.sample(noise))

    # Rounding: nats of order 50 at most.
    np.testing.assert_allclose(
        backend.numpy(family.draw_log_prob(noise)), backend.numpy(log_q(family)), atol=1e-12
    )
    weights = backend.array(rng.normal(size=shape))
    euclidean = backend.grad(lambda f: (weights * log_q(f)).sum(), family)
    _, scale = natural_gradient(family_name, *q, *backend.coordinates(euclidean))
    actual = backend.grad(lambda f: (weights * f.draw_log_prob(noise)).sum(), family)
    actual_loc, actual_scale = backend.coordinates(actual)
    np.testing.assert_array_equal(actual_loc, 0)  # log q(theta) along a draw ignores mu
    assert relative_error(actual_scale, scale) < TOLERANCE
    tangent = backend.family(family_name, *random_gaussian(family_name, dim, rng))
    np.testing.assert_allclose(
        backend.numpy(backend.jvp(lambda f: f.draw_log_prob(noise), family, tangent)),
        backend.numpy(backend.jvp(log_q, family, family.natural_gradient(tangent))),
        rtol=TOLERANCE,
        atol=1e-12,  # where the derivative of log q happens to be small beside its terms
    )


@pytest.mark.parametrize("kind", ["diagonal", "low_rank", "matrix_normal"])
def test_what_is_written_out_of_a_draw_is_the_transpose_of_its_jvp(backend, kind, rng):
    names = {
        "diagonal": "Diagonal",
        "low_rank": "LowRankPrecision",
        "matrix_normal": "MatrixNormal",
    }
    options = {"low_rank": {"rank": 2}, "matrix_normal": {"matrices": ((1, 2, 3),)}}
    kinds = getattr(backend.families, names[kind])(**options.get(kind, {}))

    def random(*shape):
        return backend.array(rng.normal(size=shape))

    start = kinds.initial(backend.array(np.zeros(8)), 0.7)
    change = start.map(lambda x: random(*x.shape))
    family = start.natural_step(start.natural_gradient(change), 0.1)
    noise, slope = random(3, 8), random(3, 8)
    found, moved = family.draw_vjp(noise, slope), family.draw_jvp(change, noise)
    pairs = zip(found.coordinates().values(), change.coordinates().values(), strict=True)
    actual = sum(float((a * b).sum()) for a, b in pairs)
    assert actual == pytest.approx(float((moved * slope).sum()), rel=1e-9)
    centred = family.sample(noise) - family.loc
    actual = float((family.transposed(slope) * noise).sum())
    assert actual == pytest.approx(float((slope * centred).sum()), rel=1e-9)
    whole = natural_gradient_from_draws(family, slope, noise, 1 / 3)
    along = family.transposed(slope) + noise
    expected = family.draw_vjp(noise, along / 3)
    for one, other in zip(
        whole.coordinates().values(), expected.coordinates().values(), strict=True
    ):
        np.testing.assert_allclose(backend.numpy(one), backend.numpy(other), rtol=1e-9, atol=1e-12)
