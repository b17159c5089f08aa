"""The steps along a direction: what an attempt knows of its length before it is a Gaussian."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families.path import JointPath
from ngvi.families.steps import covariance_times
from ngvi.latents.forest import forest_from_indices
from tests.tan.families import named

DIM = 6
BLOCKS = [np.arange(4).reshape(2, 2).T, np.arange(4, DIM)[:, None]]
SPECIFICATIONS = {
    "CovarianceCholesky": {},
    "PrecisionCholesky": {},
    "Precision": {},
    "Diagonal": {},
    "BlockDiagonal": {"structure": forest_from_indices(BLOCKS)},
    "SparsePrecision": {"structure": forest_from_indices(BLOCKS, [1, None])},
    "LowRankPrecision": {"rank": 2},
    "MatrixNormal": {"matrices": ((1, 2, 2),)},
}


def specification(backend, name):
    return named(backend.name, name)(**SPECIFICATIONS[name])


def start_and_direction(backend, name, rng, dtype="float64"):
    """A Gaussian, and a natural gradient at it whose curvature has a negative eigenvalue."""
    return backend.compiled(lambda: _start_and_direction(backend, name, rng, dtype))()


def _start_and_direction(backend, name, rng, dtype):
    loc = backend.array(rng.normal(size=DIM), dtype)
    family = specification(backend, name).initial(loc, 0.7)
    for curvature in (-1.0, 2.0):
        hessian = -np.eye(DIM) - np.ones((DIM, DIM)) + np.diag([curvature, 0, 0, 0, 0, curvature])
        probes = family.hessian_probes()
        products = np.stack([hessian[:, probes == c].sum(1) for c in range(probes.max() + 1)])
        gradient = backend.array(rng.normal(size=DIM), dtype)
        products = backend.array(products, dtype)
        direction = family.bonnet_price(gradient, family.assemble_hessian(products))
        if curvature < 0:
            family = family.natural_step(direction, 0.5)
    return family, direction


@pytest.mark.fast_in_numpyro("Precision", "MatrixNormal")
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_an_attempt_knows_both_divergences_of_its_end(backend, name, rng):
    family, direction = start_and_direction(backend, name, rng)

    def attempted(step_size):
        path = family.along(direction)
        attempt = path.at(step_size)
        end, stepped = path.end(attempt), family.natural_step(direction, step_size)
        known = path.kl(attempt), path.backward_kl(attempt)
        true = end.kl_divergence(family), family.kl_divergence(end)
        return known, true, stepped.mean, end.mean

    attempted = backend.compiled(attempted)
    for step_size in (0.1, 1.0):
        known, true, *means = attempted(backend.array(step_size))
        for one, other in zip(known, true, strict=True):
            assert float(one) == pytest.approx(float(other), rel=1e-9)
        np.testing.assert_allclose(*map(backend.numpy, means), rtol=1e-12)


@pytest.mark.fast_in_numpyro("MatrixNormal")
@pytest.mark.parametrize("name", ["Diagonal", "BlockDiagonal", "MatrixNormal", "Precision"])
def test_an_attempt_knows_the_covariance_of_its_end(backend, name, rng):
    family, direction = start_and_direction(backend, name, rng)
    gradient = backend.array(rng.normal(size=DIM))

    def attempted(step_size):
        path = family.along(direction)
        attempt = path.at(step_size)
        return path.metric(gradient)(attempt), covariance_times(path.end(attempt), gradient)

    attempted = backend.compiled(attempted)
    for step_size in (1.5, 3e-4):  # MatrixNormal's precision is to be corrected, and is not
        known, true = map(backend.numpy, attempted(backend.array(step_size)))
        np.testing.assert_allclose(known, true, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_rounding_takes_no_divergence_below_zero(pyro_backend, name, rng):
    """A negative one would be the radius of the next step."""
    for step_size in 10.0 ** -np.arange(7, 17):
        family, direction = start_and_direction(pyro_backend, name, rng)
        path = JointPath([family], [direction])
        attempt = path.at(step_size)
        (end,) = path.end(attempt)
        found = path.kl(attempt), path.backward_kl(attempt), family.kl_divergence(end)
        assert min(found) >= 0.0 and max(found) < 1e-6


def test_families_move_jointly_with_one_step_size(backend, rng):
    pairs = [start_and_direction(backend, name, rng) for name in ("Diagonal", "Precision")]
    joint = JointPath(*zip(*pairs, strict=True))
    attempt = joint.at(0.3)
    lengths = [float(f.along(d).kl(f.along(d).at(0.3))) for f, d in pairs]
    assert float(joint.kl(attempt)) == pytest.approx(sum(lengths))
    assert [type(end) for end in joint.end(attempt)] == [type(family) for family, _ in pairs]
