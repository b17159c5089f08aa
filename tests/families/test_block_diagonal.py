"""``BlockDiagonal`` is ``CovarianceCholesky``, block by block."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.latents import forest as ngvi_forest
from tests.families import arrows
from tests.families.hierarchies import models
from tests.optim.runs import kl_divergence
from tests.reference import natural_gradient, relative_error

TOLERANCE = 1e-10

#: Groups of blocks, integers (k, n).
CASES = {
    "equal blocks": [np.arange(6).reshape(3, 2).T],
    "blocks of two sizes": [np.arange(6).reshape(2, 3).T, np.arange(6, 9)[None]],
    "shuffled": [np.array([[5, 0], [2, 3]]), np.array([[1, 4, 6]])],
    "large blocks": [np.arange(14).reshape(2, 7).T],
}


@pytest.fixture(params=["blocks of two sizes", "shuffled", "large blocks"])
def case(request):
    return request.param


def _family(backend, case, loc, tril, independent=None):
    blocks = CASES[case]
    return backend.families.BlockDiagonal(
        backend.array(loc),
        backend.array(arrows.packed(blocks, [None] * len(blocks), tril)),
        structure=ngvi_forest.forest_from_indices(blocks),
        independent=independent,
    )


@pytest.fixture
def instance(backend, case, rng):
    """``(loc, C, free entries, family)``."""
    blocks = CASES[case]
    loc, tril = arrows.random_factor(blocks, [None] * len(blocks), rng)
    free = arrows.pattern(blocks, [None] * len(blocks))
    return loc, tril, free, _family(backend, case, loc, tril)


def _coordinates(backend, case, result):
    blocks = CASES[case]
    scale = arrows.dense(blocks, [None] * len(blocks), backend.numpy(result.scale_tril))
    return backend.numpy(result.loc), scale


def _by_block(case, function, *vectors_and_matrices):
    """A function of each block's parts, put together: ``(vector, matrix)``."""
    dim = sum(block.size for block in CASES[case])
    vector, matrix = np.zeros(dim), np.zeros((dim, dim))
    for block in CASES[case]:
        for index in block.T:
            parts = [
                x[index] if x.ndim == 1 else x[np.ix_(index, index)] for x in vectors_and_matrices
            ]
            vector[index], matrix[np.ix_(index, index)] = function(*parts)
    return vector, matrix


def test_moments(backend, case, instance, rng):
    loc, tril, _, family = instance
    sigma = tril @ tril.T
    np.testing.assert_allclose(backend.numpy(family.covariance_matrix), sigma, atol=1e-12)
    np.testing.assert_allclose(
        backend.numpy(family.precision_matrix), np.linalg.inv(sigma), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(backend.numpy(family.stddev), np.sqrt(np.diag(sigma)))
    np.testing.assert_allclose(
        backend.numpy(family.log_det_scale()), np.linalg.slogdet(sigma)[1] / 2, atol=1e-12
    )
    noise = rng.normal(size=(2, 3, len(loc)))
    draws = family.sample(backend.array(noise))
    np.testing.assert_allclose(backend.numpy(draws), loc + noise @ tril.T, atol=1e-12)
    np.testing.assert_allclose(backend.numpy(family.whiten(draws)), noise, atol=1e-9)


def test_natural_gradient_is_the_dense_solve_of_each_block(backend, case, instance, rng):
    loc, tril, free, family = instance
    slope = rng.normal(size=len(loc)), np.where(free, rng.normal(size=free.shape), 0.0)
    expected = _by_block(
        case, lambda *parts: natural_gradient("covariance_cholesky", *parts), loc, tril, *slope
    )
    natural = family.natural_gradient(_family(backend, case, *slope))
    for a, e in zip(_coordinates(backend, case, natural), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE
    back = _coordinates(backend, case, family.euclidean_gradient(natural))
    for a, e in zip(back, slope, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.fast_in_numpyro("blocks of two sizes-shape0", "large blocks-shape1")
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_draw_carries_natural_gradients(backend, case, instance, shape, rng):
    *_, family = instance
    noise = backend.array(rng.normal(size=(*shape, family.dim)))

    def function(theta):
        return (theta**3).sum() + (1 / (1 + theta**2)).prod()

    euclidean = arrows.gradient(backend, lambda f: function(f.sample(noise)), family)
    expected = _coordinates(backend, case, family.natural_gradient(euclidean))
    actual = arrows.gradient(backend, lambda f: function(f.draw(noise)), family)
    for a, e in zip(_coordinates(backend, case, actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE
    actual = arrows.gradient(backend, lambda f: -f.draw_log_prob(noise).sum(), family)
    count = int(np.prod(shape, dtype=int))
    _, scale = _coordinates(backend, case, actual)
    np.testing.assert_allclose(scale, count * instance[1] / 2, atol=1e-12)


def _hessian(backend, family, matrix):
    probes = family.hessian_probes()
    products = np.stack([matrix @ (probes == c) for c in range(probes.max() + 1)])
    return family.assemble_hessian(backend.array(products))


@pytest.mark.fast_in_numpyro("shuffled")
def test_bonnet_price_and_a_step_are_those_of_each_block(backend, case, instance, rng):
    loc, tril, free, family = instance
    slope, matrix = rng.normal(size=len(loc)), rng.normal(size=free.shape)
    matrix = -matrix @ matrix.T  # not block diagonal: the rest must not matter
    hessian = _hessian(backend, family, matrix)
    sigma = np.where(free | free.T, tril @ tril.T, 0.0)
    euclidean = np.where(
        free, (np.where(free | free.T, matrix, 0) + np.linalg.inv(sigma)) @ tril, 0
    )
    expected = _by_block(
        case,
        lambda *parts: natural_gradient("covariance_cholesky", *parts),
        loc,
        tril,
        slope,
        euclidean,
    )
    direction = family.bonnet_price(backend.array(slope), hessian)
    for a, e in zip(_coordinates(backend, case, direction), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE
    moved = family.natural_step(direction, 0.5)
    precision = 0.5 * np.linalg.inv(sigma) - 0.5 * np.where(free | free.T, matrix, 0.0)
    np.testing.assert_allclose(
        backend.numpy(moved.precision_matrix), precision, rtol=1e-8, atol=1e-8
    )
    mean = loc + 0.5 * np.linalg.solve(precision, slope)
    np.testing.assert_allclose(backend.numpy(moved.loc), mean, atol=1e-9)
    assert np.isfinite(backend.numpy(family.natural_step(direction, -9.0).scale_tril)).all()


def test_blocks_that_are_independent_share_their_products(backend, rng):
    loc, tril = arrows.random_factor(CASES["equal blocks"], [None], rng)
    free = arrows.pattern(CASES["equal blocks"], [None])
    family = _family(backend, "equal blocks", loc, tril, independent=(True,))
    matrix = rng.normal(size=free.shape)
    matrix = np.where(free | free.T, matrix + matrix.T, 0.0)
    assert family.hessian_probes().max() + 1 == 2
    own = _family(backend, "equal blocks", loc, tril)
    np.testing.assert_allclose(
        backend.numpy(_hessian(backend, family, matrix)),
        backend.numpy(_hessian(backend, own, matrix)),
    )


def test_kl_divergence_and_retract(backend, case, instance, rng):
    loc, tril, free, family = instance
    blocks = CASES[case]
    other_loc, other = arrows.random_factor(blocks, [None] * len(blocks), rng)
    shift = loc - other_loc
    expected = kl_divergence((loc, tril @ tril.T), (other_loc, other @ other.T))
    actual = family.kl_divergence(_family(backend, case, other_loc, other))
    np.testing.assert_allclose(backend.numpy(actual), expected, rtol=1e-9)
    moved = family.retract(_family(backend, case, shift, 0.1 * other))
    np.testing.assert_allclose(_coordinates(backend, case, moved)[1], tril + 0.1 * other)
    stopped = family.retract(_family(backend, case, shift, -tril))
    diagonal = np.diag(_coordinates(backend, case, stopped)[1])
    np.testing.assert_allclose(np.abs(diagonal), 0.01 * np.diag(tril))


def _guide(backend, model, blocks=None):
    guide = backend.guide(model, backend.families.BlockDiagonal(blocks=blocks))
    backend.set_up(guide)
    return guide


@pytest.mark.fast_in_numpyro("slopes-blocks1-*")
@pytest.mark.parametrize(
    ("name", "blocks", "words"),
    [
        ("slopes", None, "1 block of size 2 and 6 blocks of size 3"),
        ("slopes", [["mean"], ["effect"], ["shift"]], "7 blocks of size 2 and 6 blocks of size 1"),
        ("slopes", [["mean", "effect", "shift"]], "1 block of size 20"),
        ("crossed", [range(5), range(5, 10)], "2 blocks of size 5"),
        ("nested", None, "16 blocks of size 1"),
    ],
)
def test_blocks_are_sites_plate_elements_or_as_told(backend, name, blocks, words):
    guide = _guide(backend, getattr(models(backend), name), blocks)
    assert sorted(guide.family.describe().split(" and ")) == sorted(words.split(" and "))
    assert "block_diagonal" in repr(guide)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([["mean"], ["effect"]], "'shift' belongs to no block"),
        ([["mean", "shift"], ["effect"], ["shift"]], "'shift' belongs to more than one block"),
        ([["mean"], ["effects"]], "no latent site 'effects'"),
        ([range(30)], "indices from 0 to 19"),
    ],
)
def test_blocks_that_are_no_partition_are_refused_by_site(backend, blocks, words):
    with pytest.raises(ValueError, match=words):
        _guide(backend, models(backend).slopes, blocks)


def test_equal_blocks_are_one_array(backend):
    make = ngvi_forest.forest_from_indices
    structure = make([np.arange(30_000).reshape(10_000, 3).T])
    family = backend.families.BlockDiagonal(structure=structure)
    family = family.initial(backend.array(np.zeros(30_000)), 0.5)
    assert family.scale_tril.shape == (90_000,) and len(family._factor().blocks) == 1
    np.testing.assert_allclose(backend.numpy(family.stddev), 0.5)
