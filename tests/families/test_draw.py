"""A draw is the dense one, whichever way it takes.

For few draws of a large dense Gaussian both packages replace a d^3 product by cumulative
sums. Which way is taken depends on constants of the module; both sides are tested at each
size.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import (
    TRIANGULAR,
    random_gaussian,
    relative_error,
    root,
)

#: The bar of the issue; measured 1e-14.
TOLERANCE = 1e-10


def _function(theta):
    return (theta**3).sum() + (1 / (1 + theta**2)).prod()


@pytest.mark.fast_in_numpyro("cumulative*-70-*", "dense*-precision*")
@pytest.mark.parametrize("family_name", TRIANGULAR)
@pytest.mark.parametrize(
    ("way", "dim", "shape"),
    [  # 40 and 70 need two and three blocks of a cumulative sum by 32; 64 fills two exactly
        ("cumulative sums", 40, (3,)),
        ("cumulative sums", 64, ()),
        ("cumulative sums", 70, (2,)),
        ("dense product", 5, (2, 3)),
    ],
    ids=lambda value: str(value).replace("()", "one"),
)
def test_a_draw_carries_natural_gradients(backend, family_name, way, dim, shape, rng, monkeypatch):
    matrices, sums = backend.module("linalg.matrices").Matrices, way == "cumulative sums"
    monkeypatch.setattr(matrices, "many_draws", 10**9 if sums else 0)
    monkeypatch.setattr(matrices, "small_dim", 0 if sums else 10**9)
    loc, scale = random_gaussian(family_name, dim, rng)
    family = backend.family(family_name, loc, scale)
    noise = backend.array(rng.normal(size=(*shape, dim)))
    # Rounding of sums of 70 terms of order one, in either order.
    drawn = loc + backend.numpy(noise) @ root(family_name, scale).T
    np.testing.assert_allclose(backend.numpy(family.draw(noise)), drawn, rtol=0, atol=1e-13)
    euclidean = backend.grad(lambda f: _function(f.sample(noise)), family)
    expected = backend.coordinates(family.natural_gradient(euclidean))
    actual = backend.coordinates(backend.grad(lambda f: _function(f.draw(noise)), family))
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.fast_in_numpyro("diagonal")
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
    whole = family.draw_vjp(noise, (family.transposed(slope) + noise) / 3)
    along = family.transposed(slope) + noise
    expected = family.draw_vjp(noise, along / 3)
    for one, other in zip(
        whole.coordinates().values(), expected.coordinates().values(), strict=True
    ):
        np.testing.assert_allclose(backend.numpy(one), backend.numpy(other), rtol=1e-9, atol=1e-12)
