"""The roots of the Bayesian learning rule's precision, one matrix or a batch of blocks."""

from __future__ import annotations

import numpy as np
import pytest


def _precision(change):
    """The rule's ``M``, eigenvalue by eigenvalue."""
    values, vectors = np.linalg.eigh(change)
    values = np.where(1 + values > 0, 1 + values, 0.5)
    return (vectors * values[..., None, :]) @ np.swapaxes(vectors, -2, -1)


def _symmetric(shape, size, rng):
    matrix = size * rng.normal(size=shape)
    return 0.5 * (matrix + np.swapaxes(matrix, -2, -1))


def _squared(root):
    return root @ np.swapaxes(root, -2, -1)


@pytest.fixture
def whitened(backend):
    matrices = backend.module("linalg.matrices").matrices

    def call(name, change, *args):
        result = getattr(matrices, name)(backend.array(change), *args)
        return backend.numpy(result[0] if isinstance(result, tuple) else result)

    return call


@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (4, 3, 3), (2, 3, 2, 2)])
@pytest.mark.parametrize("size", [0.05, 3.0])
def test_the_roots_are_of_the_rules_precision(whitened, shape, size, rng):
    change = _symmetric(shape, size, rng)
    expected = _precision(change)
    for name, target in (
        ("precision_root", expected),
        ("covariance_root", np.linalg.inv(expected)),
    ):
        root = whitened(name, change)
        np.testing.assert_allclose(_squared(root), target, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(root, np.tril(root))
        assert (np.diagonal(root, axis1=-2, axis2=-1) > 0).all()


def test_an_indefinite_block_leaves_the_others_exact(whitened, rng):
    change = _symmetric((3, 4, 4), 0.1, rng)
    change[1] -= 1e6 * np.eye(4)
    expected = np.eye(4) + change
    actual = _squared(whitened("precision_root", change))
    for block in (0, 2):
        np.testing.assert_allclose(actual[block], expected[block], rtol=1e-12, atol=1e-14)


def test_the_scalar_case_is_that_of_blocks_of_one(whitened, rng):
    change = rng.normal(scale=3, size=200)
    blocks = whitened("covariance_root", change[:, None, None])[:, 0, 0]
    np.testing.assert_allclose(whitened("new_variance_ratio", change), blocks**2, rtol=1e-12)


def test_a_huge_coordinate_leaves_the_others_exact_in_float32(backend):
    matrices = backend.module("linalg.matrices").matrices
    change = backend.array(np.array([1e12, -0.75, 0.5, -1e12]), "float32")
    ratio = backend.numpy(matrices.new_variance_ratio(change))
    np.testing.assert_allclose(ratio[1:3], [4.0, 1 / 1.5], rtol=1e-6)
    assert (ratio > 0).all()
    assert np.isfinite(ratio).all()


def test_no_eigenvalue_falls_below_a_floor(whitened):
    change = np.diag([-0.5, -0.95, 2.0])
    roots = np.diagonal(whitened("raised_root", change, 0.1))
    # 0.05 is below the floor: one half instead.
    np.testing.assert_allclose(roots**2, [0.5, 0.5, 3.0], rtol=1e-12)
