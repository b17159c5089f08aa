"""``SparsePrecision``: points spread over locals, products, and what it says of itself."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from ngvi.families.curvature import natural_gradient_from_points
from ngvi.families.points import spherical_points
from ngvi.inference.samples import ChainCubature
from ngvi.latents import forest as ngvi_forest
from tests.families import arrows
from tests.families.dense import CASES, arrays, symmetric
from tests.reference import relative_error


@pytest.mark.fast_in_numpyro("two plates*", "nested plates*")
@pytest.mark.parametrize(
    ("name", "many"),
    [
        ("three locals of size 2 given 3 globals", 2),
        ("two plates of different sizes", 1),
        ("nested plates", 2),
        ("shuffled", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_points_that_are_spread_over_locals_see_a_quadratic_exactly(backend, name, many, rng):
    dense, family = CASES[name].instance(backend, rng)
    matrix = np.where(CASES[name].free, symmetric(dense.dim, rng), 0.0)
    linear = rng.normal(size=dense.dim)
    paths = ChainCubature.with_many(family.structure, many)
    noise, weights = paths.spread(rng, spherical_points(rng, paths.dim, 1)[0])
    points = backend.numpy(family.sample(backend.array(noise)))
    gradients = weights[:, None] * (linear + points @ matrix)
    found = backend.compiled(partial(natural_gradient_from_points, family))(
        backend.array(gradients), backend.array(noise)
    )
    slope, hessian = linear + matrix @ dense.loc, dense.hessian(backend, family, matrix)
    expected = backend.compiled(family.bonnet_price)(backend.array(slope), hessian)
    for a, e in zip(arrays(backend, found), arrays(backend, expected), strict=True):
        assert relative_error(a, e) < 1e-10


@pytest.mark.parametrize("name", arrows.CASES)
def test_as_many_products_as_a_local_and_its_globals_have_coordinates(pyro_backend, name, rng):
    _, family = CASES[name].instance(pyro_backend, rng)
    blocks, parents = arrows.CASES[name]
    widths = []
    for index in range(len(blocks)):
        width, group = 0, index
        while group is not None:
            width, group = width + len(blocks[group]), parents[group]
        widths.append(width)
    assert family.hessian_probes().max() + 1 == max(widths)


def test_a_structure_says_what_it_is():
    make = ngvi_forest.forest_from_indices
    words = {case: make(*arrows.CASES[case]).describe() for case in arrows.CASES}
    assert words["three locals of size 2 given 3 globals"] == "3 locals of size 2 given 3 globals"
    assert words["two plates of different sizes"] == (
        "4 locals of size 1 and 2 locals of size 2 given 3 globals"
    )
    assert words["nested plates"] == ("6 locals of size 1 given 2 locals of size 2 given 2 globals")
    assert words["globals only"] == "4 globals"
    assert words["locals only"] == "3 locals of size 2"


def test_dense_matrices_of_large_models_are_refused(backend):
    make = ngvi_forest.forest_from_indices
    structure = make([np.arange(10_000)[None], np.arange(10_000, 10_003)[:, None]], [1, None])
    family = backend.module("families").SparsePrecision(structure=structure)
    family = family.initial(backend.array(np.zeros(10_003)), 0.1)
    assert backend.numpy(family.stddev).shape == (10_003,)
    for name in ("covariance_matrix", "precision_matrix"):
        with pytest.raises(ValueError, match="whiten of the"):
            getattr(family, name)
