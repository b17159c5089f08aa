"""Points for a log density that is a sum over locals, against moments that are known."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.fit.paths import Paths
from ngvi.points import spherical_points
from ngvi.structure.forest import forest_from_indices
from tests.families.arrows import CASES


def _paths(forest):
    """The coordinates of each leaf and its ancestors."""
    pieces = forest.split_indices()
    for index, piece in enumerate(pieces):
        for block in range(piece.shape[1]):
            above = [
                pieces[a][:, block // forest.children_per_block(index, a)]
                for a in forest.ancestors(index)
            ]
            yield np.concatenate([piece[:, block], *above])


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_sum_of_cubics_has_no_noise(case, many):
    rng = np.random.default_rng(0)
    forest = forest_from_indices(*CASES[case])
    paths = Paths.with_many(forest, many)
    noise, weights = paths.spread(rng, spherical_points(rng, paths.dim, 1)[0])
    total, expected = 0.0, 0.0
    for path in _paths(forest):
        z, k = noise[:, path], len(path)
        quadratic, cubic = rng.normal(size=(k, k)), rng.normal(size=(k, k, k))
        total = total + 2.0 + z @ rng.normal(size=k) + np.einsum("ni,ij,nj->n", z, quadratic, z)
        total = total + np.einsum("ni,nj,nk,ijk->n", z, z, z, cubic)
        expected += 2.0 + np.trace(quadratic)
    assert weights @ total == pytest.approx(expected, abs=1e-8)


def test_products_on_different_paths_vanish_on_average():
    rng = np.random.default_rng(0)
    forest = forest_from_indices(*CASES["two plates of different sizes"])
    paths = Paths.with_many(forest, 1)
    found = []
    for points in spherical_points(rng, paths.dim, 4000):
        noise, weights = paths.spread(rng, points)
        found.append((noise.T * weights) @ noise)
    np.testing.assert_allclose(np.mean(found, 0), np.eye(forest.dim), atol=0.08)


def test_few_points_are_taken_only_where_they_are_few():
    def of(num_locals, num_globals):
        locals = np.arange(num_locals)[None]
        others = np.arange(num_locals, num_locals + num_globals)[:, None]
        return Paths.of(forest_from_indices([locals, others], [1, None]))

    assert of(5, 5) is None
    assert of(294, 5).dim == 37  # an eighth
    assert of(30_000, 5).dim == 64  # and no more than needed
    assert of(30_000, 300).dim == 301
    assert Paths.of(forest_from_indices([np.arange(200)[:, None]])) is None
