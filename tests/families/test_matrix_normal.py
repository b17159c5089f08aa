"""``MatrixNormal``: Kronecker covariances beside a diagonal, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families.curvature import keeps_rows
from ngvi.latents import forest
from ngvi.latents.layout import Layout, Plate, Site
from ngvi.latents.subsampling import MinibatchElements
from tests.families.dense import CASES, arrays
from tests.reference import relative_error

TOLERANCE = 1e-10


def sides(dense):
    """The triangles of the rows and of the columns of each matrix."""
    matrices, rows, columns = dense.case.options["matrices"], *map(list, dense.values[1:3])
    found = []
    for _, m, n in matrices:
        a, rows = np.reshape(rows[: m * m], (m, m)), rows[m * m :]
        b, columns = np.reshape(columns[: n * n], (n, n)), columns[n * n :]
        found.append((a, b))
    return found


def price_of(backend, family, gradient, hessian):
    def price(gradient, hessian):
        return family.bonnet_price(gradient, family.assemble_hessian(hessian))

    return backend.compiled(price)(backend.array(gradient), backend.array(hessian))


def partial_traces(matrix, rows, columns):
    """Over columns, and over rows."""
    parts = matrix.reshape(rows, columns, rows, columns)
    return np.einsum("ijkj->ik", parts), np.einsum("ijil->jl", parts)


@pytest.fixture(params=["matrices", "one matrix"])
def instance(backend, rng, request):
    """The dense Gaussian and the family."""
    return CASES[request.param].instance(backend, rng)


@pytest.fixture
def one(backend, rng):
    """The same, of two matrices among independent latents."""
    return CASES["matrices"].instance(backend, rng)


def test_gradients_of_examples_are_priced_as_their_matrix(backend, one, rng):
    dense, family = one
    rows, prior = rng.normal(size=(7, dense.dim)), rng.uniform(1, 2, dense.dim)
    of_loc = rng.normal(size=dense.dim)
    expected = price_of(backend, family, of_loc, -rows.T @ rows - np.diag(prior))
    actual = family.natural_gradient_from_rows(*map(backend.array, (of_loc, rows, prior)))
    for a, e in zip(*(arrays(backend, x) for x in (actual, expected)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-12)


def test_beyond_dense_matrices_gradients_of_examples_are_kept(backend, one, monkeypatch):
    _, family = one
    assert not keeps_rows(family)
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 16)
    assert keeps_rows(family)
    with pytest.raises(ValueError, match="A dense matrix of 17 latents"):
        family.assemble_hessian(backend.array(np.eye(17)))


# -- steps ----------------------------------------------------------------------------


def written_out(dense, of_loc, curvature, rho):
    """Mean and covariance after the rule's step, of each matrix by itself."""
    precision = np.linalg.inv(dense.covariance)
    new = np.diag(1.0 / np.diag((1 - rho) * precision + rho * curvature))
    for (start, m, n), (a, b) in zip(dense.case.options["matrices"], sides(dense), strict=True):
        own = slice(start, start + m * n)
        u, v, own_curvature = a @ a.T, b @ b.T, curvature[own, own]
        of_rows = partial_traces(np.kron(np.eye(m), v) @ own_curvature, m, n)[0] / n
        of_columns = partial_traces(np.kron(u, np.eye(n)) @ own_curvature, m, n)[1] / m
        u_inverse = (1 - rho) * np.linalg.inv(u) + rho * of_rows
        v_inverse = (1 - rho) * np.linalg.inv(v) + rho * of_columns
        mean = 1 - rho + rho * np.trace(np.kron(u, v) @ own_curvature) / (m * n)
        new[own, own] = mean * np.kron(np.linalg.inv(u_inverse), np.linalg.inv(v_inverse))
    return dense.loc + rho * new @ of_loc, new


@pytest.mark.parametrize("rho", [0.05, 0.7, 1.0])
def test_a_step_is_the_equations_written_out(backend, instance, rho, rng):
    dense, family = instance
    half, of_loc = rng.normal(size=(dense.dim, dense.dim)), rng.normal(size=dense.dim)
    curvature = half @ half.T + 0.1 * np.eye(dense.dim)
    loc, sigma = written_out(dense, of_loc, curvature, rho)
    new = family.natural_step(price_of(backend, family, of_loc, -curvature), rho)
    assert relative_error(backend.numpy(new.loc), loc) < TOLERANCE
    assert relative_error(backend.numpy(new.covariance_matrix), sigma) < TOLERANCE


def test_where_inputs_and_slopes_are_independent_a_step_is_noisy_k_facs(backend, rng):
    """Zhang et al. (2018), algorithm 2, without damping: exponential averages of two factors."""
    dense, family = CASES["one matrix"].instance(backend, rng)
    (_, m, n), rho, step_size, num = family.matrices[0], 0.1, 0.3, 35
    u, v = (side @ side.T for side in sides(dense)[0])
    inputs, slopes = rng.normal(size=(7, m)), rng.normal(size=(5, n))
    # q = MN(W; A^-1, S^-1 / N), and the minibatch's averages are of the size of A and S.
    average_a, average_s = np.linalg.inv(u), np.linalg.inv(v) / num
    inputs *= np.sqrt(m / np.trace(inputs.T @ inputs / 7 @ u))
    slopes *= np.sqrt(n / num / np.trace(slopes.T @ slopes / 5 @ v))
    average_a = (1 - rho) * average_a + rho * inputs.T @ inputs / 7
    average_s = (1 - rho) * average_s + rho * slopes.T @ slopes / 5
    of_mean = rng.normal(size=(m, n))  # the log likelihood's, averaged over examples
    expected = dense.loc.reshape(m, n) + step_size * np.linalg.solve(average_a, of_mean) @ (
        np.linalg.inv(average_s)
    )
    rows = np.einsum("im,jn->ijmn", inputs, slopes).reshape(num, -1)  # each input with each slope
    direction = family.natural_gradient_from_rows(
        *map(backend.array, (num * step_size / rho * of_mean.ravel(), rows, np.zeros(m * n)))
    )
    new = family.natural_step(direction, rho)
    sigma = np.kron(np.linalg.inv(average_a), np.linalg.inv(average_s) / num)
    assert relative_error(backend.numpy(new.covariance_matrix), sigma) < TOLERANCE
    assert relative_error(backend.numpy(new.loc), expected.ravel()) < TOLERANCE


# -- structure ----------------------------------------------------------------------


def layout(**shapes):
    sites, start = [], 0
    for name, shape in shapes.items():
        sites.append(Site(name, start, shape))
        start += sites[-1].size
    return Layout(sites)


def test_matrices_are_found_in_the_layouts_of_torch_and_of_flax(backend):
    find = backend.families.MatrixNormal().for_layout
    mlp = layout(bias=(4,), kernel=(3, 4), row=(1, 9), column=(9, 1), number=())
    assert find(mlp).matrices == ((4, 3, 4),)
    torch_layout = layout(conv=(16, 6, 5, 5), fc=(400, 120), words=(50_000, 8))
    assert find(torch_layout).matrices == ((0, 16, 150), (2400, 400, 120))
    assert find(layout(conv=(5, 5, 6, 16))).matrices == ((0, 150, 16),)
    some = backend.families.MatrixNormal(sites=["fc"]).for_layout(torch_layout)
    assert some.matrices == ((2400, 400, 120),)


def test_without_a_matrix_the_error_names_the_sites_and_the_way_out(backend):
    sites = layout(a=(3,), b=(1, 4))
    with pytest.raises(ValueError, match=r"'a' \(3,\), 'b' \(1, 4\)\. Use family='auto'"):
        backend.families.MatrixNormal().for_layout(sites)
    with pytest.raises(ValueError, match=r"'b' .* shape \(1, 4\).* Leave it out of sites="):
        backend.families.MatrixNormal(sites="b").for_layout(sites)
    with pytest.raises(ValueError, match=r"matrices=\(\(start, rows, columns\)"):
        backend.families.MatrixNormal().initial(backend.array(np.zeros(3)), 1.0)


def test_elements_that_a_minibatch_visits_are_refused_by_name(backend):
    sites = (Site("W", 0, (3, 4)), Site("b", 12, (6,), (Plate("units", 6, 0),)))
    family = backend.families.MatrixNormal().for_layout(Layout(sites))
    family = family.initial(backend.array(np.zeros(18)), 1.0)
    MinibatchElements(sites, {"units": np.arange(6)}).check(family, False)
    with pytest.raises(ValueError, match=r"'b' is inside plate 'units'.* \(2 of 6\)"):
        MinibatchElements(sites, {"units": np.arange(2)}).check(family, False)


def test_it_counts_its_parameters_and_tells_its_structure(one):
    _, family = one
    assert family.num_parameters == 17 + (6 + 3 - 1) + (3 + 10 - 1) + 3
    words = "matrices (1 of 3 x 2, 1 of 2 x 4), and 3 independent latents"
    assert family.describe() == words
    pieces = family.couples().split_indices()
    assert sorted(piece.shape for piece in pieces) == [(1, 3), (6, 1), (8, 1)]
