"""``BlockDiagonal`` is ``CovarianceCholesky``, block by block."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.latents import forest as ngvi_forest
from tests.families import arrows
from tests.families.hierarchies import models

TOLERANCE = 1e-10

#: Groups of blocks, integers (k, n).
CASES = {
    "equal blocks": [np.arange(6).reshape(3, 2).T],
    "blocks of two sizes": [np.arange(6).reshape(2, 3).T, np.arange(6, 9)[None]],
    "shuffled": [np.array([[5, 0], [2, 3]]), np.array([[1, 4, 6]])],
    "large blocks": [np.arange(14).reshape(2, 7).T],
}


def _family(backend, case, loc, tril, independent=None):
    blocks = CASES[case]
    return backend.families.BlockDiagonal(
        backend.array(loc),
        backend.array(arrows.packed(blocks, [None] * len(blocks), tril)),
        structure=ngvi_forest.forest_from_indices(blocks),
        independent=independent,
    )


def _hessian(backend, family, matrix):
    probes = family.hessian_probes()
    products = np.stack([matrix @ (probes == c) for c in range(probes.max() + 1)])
    return family.assemble_hessian(backend.array(products))


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
