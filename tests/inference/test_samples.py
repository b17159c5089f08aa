"""Points for a log density that is a sum over locals, against moments that are known."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families.points import num_quintic, quintic_points, spherical_points
from ngvi.inference.samples import ChainCubature
from ngvi.latents.forest import forest_from_indices
from tests.families.arrows import CASES


def _chains(forest):
    """The coordinates of each leaf and its ancestors."""
    pieces = forest.split_indices()
    for index, piece in enumerate(pieces):
        for block in range(piece.shape[1]):
            above = [
                pieces[a][:, block * pieces[a].shape[1] // piece.shape[1]]
                for a in forest.ancestors(index)
            ]
            yield np.concatenate([piece[:, block], *above])


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_sum_of_cubics_has_no_noise(case, many):
    rng = np.random.default_rng(0)
    forest = forest_from_indices(*CASES[case])
    cubature = ChainCubature.with_many(forest, many)
    noise, weights = cubature.spread(rng, spherical_points(rng, cubature.dim, 1)[0])
    total, expected = 0.0, 0.0
    for chain in _chains(forest):
        z, k = noise[:, chain], len(chain)
        quadratic, cubic = rng.normal(size=(k, k)), rng.normal(size=(k, k, k))
        total = total + 2.0 + z @ rng.normal(size=k) + np.einsum("ni,ij,nj->n", z, quadratic, z)
        total = total + np.einsum("ni,nj,nk,ijk->n", z, z, z, cubic)
        expected += 2.0 + np.trace(quadratic)
    assert weights @ total == pytest.approx(expected, abs=1e-8)


def _fourth(forms):
    """``E[prod_i f_i z]`` of four linear forms: Isserlis's theorem."""
    a, b, c, e = forms
    return (a @ b) * (c @ e) + (a @ c) * (b @ e) + (a @ e) * (b @ c)


@pytest.mark.parametrize("dim", [2, 3, 7, 8, 12])
def test_quintic_points_have_no_noise_up_to_degree_5(dim):
    rng = np.random.default_rng(dim)
    for noise, weights in quintic_points(rng, dim, 3):
        assert len(noise) == num_quintic(dim)
        assert weights.sum() == pytest.approx(1.0)
        np.testing.assert_allclose((noise.T * weights) @ noise, np.eye(dim), atol=1e-9)
        forms = rng.normal(size=(4, dim))
        values = noise @ forms.T
        assert weights @ values.prod(-1) == pytest.approx(_fourth(forms), abs=1e-8)
        assert weights @ (values[:, 0] ** 4) == pytest.approx(3 * (forms[0] @ forms[0]) ** 2)
        assert weights @ values[:, 0] ** 5 == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_a_sum_of_quintics_has_no_noise(case):
    rng = np.random.default_rng(0)
    cubature = ChainCubature.with_many(forest_from_indices(*CASES[case]), 1)
    noise, weights = cubature.spread(rng, quintic_points(rng, cubature.dim, 1)[0])
    total, expected = 0.0, 0.0
    for chain in _chains(cubature.forest):
        forms = rng.normal(size=(4, len(chain)))
        values = noise[:, chain] @ forms.T
        total = total + values.prod(-1) + values[:, 0] ** 5
        expected += _fourth(forms)
    assert weights @ total == pytest.approx(expected, abs=1e-7)
