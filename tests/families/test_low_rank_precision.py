"""``LowRankPrecision``: a precision of low rank plus a diagonal, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import relative_error

TOLERANCE = 1e-10


def dense(factor, diagonal):
    return factor @ factor.T + np.diag(diagonal)


def random_coordinates(dim, rank, rng):
    loc, factor = rng.normal(size=dim), rng.normal(size=(dim, rank))
    return loc, factor, rng.uniform(0.5, 2.0, dim)


def make(backend, loc, factor, diagonal, dtype="float64"):
    arrays = (backend.array(value, dtype) for value in (loc, factor, diagonal))
    return backend.families.LowRankPrecision(*arrays, rank=np.shape(factor)[1])


def arrays_of(backend, family):
    return [backend.numpy(value) for value in family.coordinates().values()]


@pytest.fixture(params=[(4, 1), (6, 3), (12, 10)])
def instance(backend, rng, request):
    """``(loc, U, D, family)``."""
    coordinates = random_coordinates(*request.param, rng)
    return (*coordinates, make(backend, *coordinates))


def change_of(backend, family, rng):
    return make(backend, *(rng.normal(size=x.shape) for x in arrays_of(backend, family)))


# -- natural gradients ----------------------------------------------------------------


def test_the_means_direction_is_the_dense_fishers_and_the_diagonals_that_of_a_diagonal(
    backend, instance, rng
):
    loc, factor, diagonal, family = instance
    gradient = change_of(backend, family, rng)
    of_loc, _, of_diagonal = arrays_of(backend, family.natural_gradient(gradient))
    expected = np.linalg.solve(dense(factor, diagonal), backend.numpy(gradient.loc))
    assert relative_error(of_loc, expected) < 1e-8
    np.testing.assert_allclose(of_diagonal, 2 * diagonal**2 * backend.numpy(gradient.diagonal))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_factors_direction_is_the_pseudo_inverse_fishers(backend, rank, rng):
    # D is held fixed. Rotations of U change nothing: what is compared is the change of S.
    loc, factor, diagonal = random_coordinates(8, rank, rng)
    sigma = np.linalg.inv(dense(factor, diagonal))
    jacobian = np.zeros((8, 8, 8, rank))
    for i, j in np.ndindex(8, rank):
        unit = np.zeros((8, rank))
        unit[i, j] = 1.0
        jacobian[..., i, j] = unit @ factor.T + factor @ unit.T
    jacobian = jacobian.reshape(64, -1)
    fisher = 0.5 * jacobian.T @ np.kron(sigma, sigma) @ jacobian
    slope = rng.normal(size=(8, 8))
    slope = slope + slope.T  # dL/dS
    gradient = make(backend, np.zeros(8), 2 * slope @ factor, np.zeros(8))
    natural = make(backend, loc, factor, diagonal).natural_gradient(gradient)
    natural = backend.numpy(natural.factor)
    expected = np.linalg.pinv(fisher, rcond=1e-10) @ (2 * slope @ factor).reshape(-1)
    expected = jacobian @ expected
    assert relative_error(jacobian @ natural.reshape(-1), expected) < 1e-8


def test_the_direction_nears_the_pseudo_inverse_fishers_as_the_dimension_grows(backend, rng):
    errors = []
    for dim in (6, 24, 72):
        loc, factor, diagonal = random_coordinates(dim, 2, rng)
        sigma, s = np.linalg.inv(dense(factor, diagonal)), rng.normal(size=(dim, dim))
        slope = np.diag(rng.normal(size=dim)) + (s + s.T) / dim
        gradient = 2 * slope @ factor, np.diag(slope)
        natural = make(backend, loc, factor, diagonal).natural_gradient(
            make(backend, loc, gradient[0], gradient[1])
        )
        fisher = _fisher(factor, diagonal, sigma)
        flat = np.concatenate([gradient[0].reshape(-1), gradient[1]])
        exact = np.linalg.pinv(fisher, rcond=1e-9, hermitian=True) @ flat
        mine = np.concatenate([backend.numpy(natural.factor).reshape(-1), natural.diagonal])
        gap = mine - exact
        errors.append(np.sqrt(gap @ fisher @ gap / (exact @ fisher @ exact)))
        assert flat @ mine > 0
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.35


def _fisher(factor, diagonal, sigma):
    dim, rank = factor.shape
    columns = []
    for i, j in np.ndindex(dim, rank):
        change = np.zeros((dim, dim))
        change[i] += factor[:, j]
        change[:, i] += factor[:, j]
        columns.append(change.reshape(-1))
    for i in range(dim):
        change = np.zeros((dim, dim))
        change[i, i] = 1.0
        columns.append(change.reshape(-1))
    changes = np.stack(columns)
    whitened = np.stack([(sigma @ c.reshape(dim, dim) @ sigma).reshape(-1) for c in changes])
    return 0.5 * changes @ whitened.T


@pytest.mark.parametrize("strength", [1.0, 1e-3, 0.0])
def test_the_euclidean_gradient_is_the_inverse_also_where_the_factor_is_faint(
    backend, strength, rng
):
    loc, factor, diagonal = random_coordinates(7, 3, rng)
    family = make(backend, loc, strength * factor, diagonal)
    gradient = change_of(backend, family, rng)
    back = family.euclidean_gradient(family.natural_gradient(gradient))
    pairs = zip(arrays_of(backend, back), arrays_of(backend, gradient), strict=True)
    for actual, expected in pairs:
        assert relative_error(actual, expected) < 1e-9


def test_a_draw_moves_along_the_natural_gradient(backend, instance, rng):
    loc, factor, diagonal, family = instance
    change, noise = change_of(backend, family, rng), rng.normal(size=(3, loc.size))
    natural = arrays_of(backend, family.natural_gradient(change))
    change_of_s = natural[1] @ factor.T + factor @ natural[1].T + np.diag(natural[2])
    sigma = np.linalg.inv(dense(factor, diagonal))
    eye = backend.array(np.eye(loc.size))
    root = (backend.numpy(family.sample(eye)) - loc).T
    expected = natural[0] - 0.5 * (noise @ root.T) @ change_of_s @ sigma
    moved = backend.numpy(family.draw_jvp(change, backend.array(noise))) @ root.T
    assert relative_error(moved, expected) < TOLERANCE
    slope = float(family.log_det_jvp(change))
    np.testing.assert_allclose(slope, -0.5 * np.trace(sigma @ change_of_s), rtol=1e-9)


def test_the_gradient_through_a_draw_is_the_transpose_of_its_jvp(backend, instance, rng):
    loc, *_, family = instance
    noise, weights = (backend.array(rng.normal(size=(2, loc.size))) for _ in range(2))
    slope = backend.grad(lambda q: (q.reparametrised(noise) * weights).sum(), family)
    gradient = arrays_of(backend, slope)
    for _ in range(3):
        change = change_of(backend, family, rng)
        along = float((family.draw_jvp(change, noise) * weights).sum())
        pairs = zip(gradient, arrays_of(backend, change), strict=True)
        np.testing.assert_allclose(sum((a * b).sum() for a, b in pairs), along, rtol=1e-8)
    forward = backend.numpy(backend.jvp(lambda q: q.reparametrised(noise), family, change))
    jvp = backend.numpy(family.draw_jvp(change, noise))
    np.testing.assert_allclose(forward, jvp, rtol=1e-10)


# -- steps ----------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["anywhere", "initial"])
def test_one_step_is_exact_for_a_conjugate_model_of_this_form(backend, start, rng):
    loc, factor, diagonal = random_coordinates(12, 2, rng)
    family = backend.families.LowRankPrecision(rank=2).initial(backend.array(np.zeros(12)), 1.0)
    if start == "anywhere":
        family = make(backend, *random_coordinates(12, 2, rng))
    target = dense(factor, diagonal)
    gradient = target @ (loc - backend.numpy(family.loc))
    direction = family.bonnet_price(backend.array(gradient), backend.array(-target))
    new = family.natural_step(direction, 1.0)
    # As exact as the factor analysis: it stops at a relative change of 1e-6.
    assert relative_error(backend.numpy(new.precision_matrix), target) < 2e-5
    assert relative_error(backend.numpy(new.loc), loc) < 2e-5


@pytest.mark.parametrize("size", [0.01, 100.0])
def test_the_noise_of_one_draw_is_damped(backend, size, rng):
    loc, factor, diagonal = random_coordinates(9, 3, rng)
    change, of_diagonal = size * rng.normal(size=(9, 3)), size * rng.normal(size=9)
    family, rho = make(backend, loc, factor, diagonal), 0.3
    path = family.along(make(backend, 0.0 * loc, change, of_diagonal)).damped(rho)
    new = path.end(path.at(rho))
    share = 1 / max(rho * np.linalg.norm(change / np.sqrt(diagonal)[:, None]), 1.0)
    t = share * rho * of_diagonal / diagonal
    assert relative_error(backend.numpy(new.factor), factor + share * rho * change) < TOLERANCE
    assert relative_error(backend.numpy(new.diagonal), diagonal * (1 + t + t**2 / 2)) < TOLERANCE
    assert (size > 1) == (share < 1)
    np.testing.assert_array_equal(backend.numpy(new.loc), loc)


@pytest.mark.parametrize("num_rows", [7, 2])
def test_the_direction_of_rows_is_slangs_to_first_order_in_the_step(backend, num_rows, rng):
    loc, factor, diagonal = random_coordinates(9, 3, rng)
    rows, prior = rng.normal(size=(num_rows, 9)), rng.uniform(1, 2, 9)
    family, gradient = make(backend, loc, factor, diagonal), rng.normal(size=9)
    direction = family.natural_gradient_from_rows(*map(backend.array, (gradient, rows, prior)))
    change, of_diagonal = backend.numpy(direction.factor), backend.numpy(direction.diagonal)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    leading = (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T
    target = factor + change
    np.testing.assert_allclose(target @ target.T, leading, atol=1e-12)
    # The rotation nearest to the factor: no other is, if this product is symmetric and positive.
    turned = target.T @ factor
    np.testing.assert_allclose(turned, turned.T, atol=1e-12)
    assert np.linalg.eigvalsh(turned).min() > -1e-12
    precision = factor @ factor.T + np.diag(diagonal)
    slope = np.diag(rows.T @ rows) + prior - np.diag(precision)
    np.testing.assert_allclose(of_diagonal + 2 * (factor * change).sum(1), slope, atol=1e-12)
    mean = np.linalg.solve(precision, gradient)
    np.testing.assert_allclose(backend.numpy(direction.loc), mean, atol=1e-12)


# -- size and bad input ---------------------------------------------------------------


def test_a_hundred_thousand_latents_take_no_dense_matrix(backend, rng):
    dim = 100_000
    family = backend.families.LowRankPrecision(rank=5).initial(
        backend.array(np.zeros(dim), "float32"), 0.1
    )
    assert family.num_parameters == 7 * dim - 10
    np.testing.assert_allclose(backend.numpy(family.stddev), 0.1, rtol=1e-4)
    noise = backend.array(rng.normal(size=(2, dim)), "float32")
    back = backend.numpy(family.whiten(family.sample(noise)))
    np.testing.assert_allclose(back, backend.numpy(noise), atol=1e-4)
    for matrix in ("covariance_matrix", "precision_matrix"):
        with pytest.raises(ValueError, match="100000 latents takes .* GiB"):
            getattr(family, matrix)


@pytest.mark.parametrize("rank", [0, -1, 2.5, True])
def test_a_rank_that_is_no_rank_is_refused(backend, rank):
    with pytest.raises(ValueError, match=r"rank must be an integer of at least 1.*'diagonal'"):
        backend.families.LowRankPrecision(rank=rank)


def test_a_rank_above_the_dimension_is_the_dimension(backend):
    family = backend.families.LowRankPrecision(rank=4).initial(backend.array(np.zeros(3)), 1.0)
    assert family.rank == 3 and family.factor.shape == (3, 3)
