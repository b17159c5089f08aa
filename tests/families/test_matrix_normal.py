"""``MatrixNormal``: Kronecker covariances beside a diagonal, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag

from ngvi.families.curvature import keeps_rows
from ngvi.families.steps import fisher_products, inner
from ngvi.latents import forest
from ngvi.latents.layout import Layout, Plate, Site
from ngvi.latents.subsampling import MinibatchElements
from ngvi.networks.kronecker import KroneckerSteps
from tests.families.arrows import gradient
from tests.reference import relative_error

TOLERANCE = 1e-10

#: Two matrices among independent latents, and one alone.
STRUCTURES = {"two and others": (17, ((1, 3, 2), (8, 2, 4))), "one alone": (12, ((0, 3, 4),))}


class Dense:
    """The same Gaussian by dense matrices.

    :ivar root: ``C`` with ``Sigma = C C^T``.
    """

    def __init__(self, structure, rng):
        self.dim, self.matrices = structure
        self.inside = np.concatenate([np.arange(s, s + m * n) for s, m, n in self.matrices])
        self.outside = np.setdiff1d(np.arange(self.dim), self.inside)
        triangles = [[_triangle(size, rng) for size in sides] for _, *sides in self.matrices]
        self.rows, self.columns = map(list, zip(*triangles, strict=True))
        self.loc = rng.normal(size=self.dim)
        self.scale = rng.uniform(0.5, 2.0, self.outside.size)

    @property
    def coordinates(self):
        packed = [np.concatenate([t.ravel() for t in side]) for side in (self.rows, self.columns)]
        return self.loc, *packed, self.scale

    @property
    def root(self):
        return self._placed(map(np.kron, self.rows, self.columns), np.diag(self.scale))

    @property
    def covariance(self):
        return self.root @ self.root.T

    def changes(self, direction):
        """``dSigma`` of a direction, given by its coordinates."""
        rows, columns = self.unpack(direction)
        parts = []
        for a, b, da, db in zip(self.rows, self.columns, rows, columns, strict=True):
            change = np.kron(da, b) + np.kron(a, db)
            parts.append(change @ np.kron(a, b).T + np.kron(a, b) @ change.T)
        return self._placed(parts, np.diag(2 * self.scale * direction[3]))

    def unpack(self, coordinates):
        found = []
        for packed, side in ((coordinates[1], self.rows), (coordinates[2], self.columns)):
            ends = np.cumsum([t.size for t in side])[:-1]
            pieces = np.split(packed, ends)
            found.append([p.reshape(t.shape) for p, t in zip(pieces, side, strict=True)])
        return found

    def free(self):
        """The directions of all free coordinates but the mean's."""
        for which, side in ((1, self.rows), (2, self.columns)):
            kept = np.concatenate([np.tril(np.ones_like(t)).ravel() for t in side])
            for index in np.flatnonzero(kept):
                yield self._unit(which, index)
        for index in range(self.scale.size):
            yield self._unit(3, index)

    def fisher(self):
        """The dense Fisher matrix of :meth:`free`, and the change of ``Sigma`` along each."""
        changes = np.stack([self.changes(unit) for unit in self.free()])
        inverse = np.linalg.inv(self.root)
        whitened = (inverse @ changes @ inverse.T).reshape(len(changes), -1)
        return 0.5 * whitened @ whitened.T, changes

    def slope(self, of_loc, of_sigma):
        """The gradient in the coordinates of a function with these gradients of the moments."""
        found = [of_loc, *(np.zeros_like(x) for x in self.coordinates[1:])]
        for unit in self.free():
            total = (of_sigma * self.changes(unit)).sum()
            for mine, one in zip(found[1:], unit[1:], strict=True):
                mine += total * one
        return found

    def flat(self, coordinates):
        """The free coordinates but the mean's, in the order of :meth:`free`."""
        rows, columns = self.unpack(coordinates)
        triangles = [t[np.tril_indices(len(t))] for t in (*rows, *columns)]
        return np.concatenate([*triangles, coordinates[3]])

    def _unit(self, which, index):
        found = [np.zeros_like(x) for x in self.coordinates]
        found[which][index] = 1.0
        return found

    def _placed(self, parts, rest):
        whole = np.zeros((self.dim, self.dim))
        whole[np.ix_(self.inside, self.inside)] = block_diag(*parts)
        whole[np.ix_(self.outside, self.outside)] = rest
        return whole


def _triangle(size, rng):
    return np.tril(0.3 * rng.normal(size=(size, size)), -1) + np.diag(rng.uniform(0.5, 1.5, size))


def make(backend, dense, coordinates=None, dtype="float64"):
    values = dense.coordinates if coordinates is None else coordinates
    arrays = (backend.array(value, dtype) for value in values)
    return backend.families.MatrixNormal(*arrays, matrices=dense.matrices)


def arrays_of(backend, family):
    return [backend.numpy(value) for value in family.coordinates().values()]


def symmetric_matrix(dim, rng):
    matrix = rng.normal(size=(dim, dim))
    return matrix + matrix.T


def price_of(backend, family, gradient, hessian):
    def price(gradient, hessian):
        return family.bonnet_price(gradient, family.assemble_hessian(hessian))

    return backend.compiled(price)(backend.array(gradient), backend.array(hessian))


def partial_traces(matrix, rows, columns):
    """Over columns, and over rows."""
    parts = matrix.reshape(rows, columns, rows, columns)
    return np.einsum("ijkj->ik", parts), np.einsum("ijil->jl", parts)


@pytest.fixture(params=STRUCTURES)
def instance(backend, rng, request):
    """The dense Gaussian and the family."""
    dense = Dense(STRUCTURES[request.param], rng)
    return dense, make(backend, dense)


@pytest.fixture
def one(backend, rng):
    """The same, of the first structure only."""
    dense = Dense(STRUCTURES["two and others"], rng)
    return dense, make(backend, dense)


# -- moments and density --------------------------------------------------------------


def test_moments_and_density_are_those_of_the_dense_gaussian(backend, instance, rng):
    dense, family = instance
    expected = stats.multivariate_normal(dense.loc, dense.covariance)
    value = rng.normal(size=(2, 3, dense.dim))
    noise = rng.normal(size=(2, dense.dim))
    for actual, wanted in [
        (family.mean, dense.loc),
        (family.stddev, np.sqrt(np.diag(dense.covariance))),
        (family.covariance_matrix, dense.covariance),
        (family.precision_matrix, np.linalg.inv(dense.covariance)),
        (family.log_det_scale(), np.linalg.slogdet(dense.covariance)[1] / 2),
        (family.entropy(), expected.entropy()),
        (family.log_prob(backend.array(value)), expected.logpdf(value)),
        (family.sample(backend.array(noise)), dense.loc + noise @ dense.root.T),
        (family.whiten(family.sample(backend.array(noise))), noise),
    ]:
        np.testing.assert_allclose(backend.numpy(actual), wanted, rtol=1e-10, atol=1e-10)


def test_it_begins_with_any_scales_that_are_products_and_the_nearest_to_others(backend, rng):
    dim, matrices = STRUCTURES["two and others"]
    specification = backend.families.MatrixNormal(matrices=matrices)
    loc, scale = backend.array(rng.normal(size=dim)), rng.uniform(0.5, 2.0, dim)
    start, m, n = matrices[0]
    own = slice(start, start + m * n)
    scale[own] = np.outer([1.0, 2.0, 3.0], [0.5, 4.0]).ravel()
    stddev = backend.numpy(specification.initial(loc, backend.array(scale)).stddev)
    kept = np.r_[0, own, 7, 16]
    np.testing.assert_allclose(stddev[kept], scale[kept], rtol=1e-12)
    logs = (np.log(x[8:16]).reshape(2, 4) for x in (scale, stddev))
    gap = np.subtract(*logs)
    np.testing.assert_allclose(gap.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(gap.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(
        backend.numpy(specification.initial(loc, 0.3).stddev), 0.3, rtol=1e-12
    )


# -- natural gradients ----------------------------------------------------------------


def test_the_natural_gradient_is_that_of_the_dense_fishers_pseudo_inverse(backend, instance, rng):
    dense, family = instance
    of_loc, of_sigma = rng.normal(size=dense.dim), symmetric_matrix(dense.dim, rng)
    slope = dense.slope(of_loc, of_sigma)
    natural = arrays_of(backend, family.natural_gradient(make(backend, dense, slope)))
    fisher, changes = dense.fisher()
    # The redundant scales, one of each matrix, and nothing else are what is singular.
    assert np.linalg.matrix_rank(fisher, tol=1e-9) == len(fisher) - len(dense.matrices)
    expected = np.linalg.pinv(fisher, rcond=1e-9, hermitian=True) @ dense.flat(slope)
    moved = np.tensordot(expected, changes, 1)
    assert relative_error(dense.changes(natural), moved) < TOLERANCE
    assert relative_error(fisher @ dense.flat(natural), dense.flat(slope)) < TOLERANCE
    assert relative_error(natural[0], dense.covariance @ of_loc) < TOLERANCE
    for a, b, da, db in zip(dense.rows, dense.columns, *dense.unpack(natural), strict=True):
        rates = [np.trace(np.linalg.solve(x, dx)) / len(x) for x, dx in ((a, da), (b, db))]
        np.testing.assert_allclose(*rates, rtol=1e-10)
        np.testing.assert_array_equal(da, np.tril(da))


def test_the_euclidean_gradient_is_the_dense_fishers_of_such_directions(backend, instance, rng):
    dense, family = instance
    slope = dense.slope(rng.normal(size=dense.dim), symmetric_matrix(dense.dim, rng))
    natural = family.natural_gradient(make(backend, dense, slope))
    back = arrays_of(backend, family.euclidean_gradient(natural))
    for actual, expected in zip(back, slope, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)
    length = float(inner(family, natural, natural))
    flat = dense.flat(arrays_of(backend, natural))
    expected = flat @ dense.fisher()[0] @ flat
    expected += slope[0] @ dense.covariance @ slope[0]
    np.testing.assert_allclose(length, expected, rtol=1e-10)
    ((of_means,), (of_scales,)) = fisher_products(family, [natural])
    np.testing.assert_allclose(float(of_means[0] + of_scales[0]), expected, rtol=1e-10)


@pytest.mark.fast_in_numpyro("shape1")
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_draw_carries_natural_gradients(backend, one, shape, rng):
    dense, family = one
    noise = backend.array(rng.normal(size=(*shape, dense.dim)))

    def function(theta):
        return (theta**3).sum() + (1 / (1 + theta**2)).prod()

    slope = gradient(backend, lambda q: function(q.sample(noise)), family)
    expected = arrays_of(backend, family.natural_gradient(slope))
    for way in (lambda q: q.draw(noise), lambda q: q.precondition().sample(noise)):
        actual = gradient(backend, lambda q, way=way: function(way(q)), family)
        for a, e in zip(arrays_of(backend, actual), expected, strict=True):
            assert relative_error(a, e) < TOLERANCE


# -- curvature ------------------------------------------------------------------------


def test_bonnet_and_price_are_the_natural_gradient_of_the_bounds_slope(backend, instance, rng):
    dense, family = instance
    of_loc, hessian = rng.normal(size=dense.dim), symmetric_matrix(dense.dim, rng)
    of_sigma = 0.5 * (hessian + np.linalg.inv(dense.covariance))
    slope = make(backend, dense, dense.slope(of_loc, of_sigma))
    expected = arrays_of(backend, family.natural_gradient(slope))
    actual = arrays_of(backend, price_of(backend, family, of_loc, hessian))
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-10)


def test_products_of_rows_are_the_part_of_their_matrix(backend, one, rng):
    dense, family = one
    left, right = rng.normal(size=(2, 5, dense.dim))
    dense_products = 0.5 * (left.T @ right + right.T @ left)
    parts = family.outer_products(backend.array(left), backend.array(right))
    expected = family.assemble_hessian(backend.array(dense_products))
    for a, e in zip(parts, expected, strict=True):
        np.testing.assert_allclose(backend.numpy(a), backend.numpy(e), rtol=1e-10, atol=1e-12)


def test_gradients_of_examples_are_priced_as_their_matrix(backend, one, rng):
    dense, family = one
    rows, prior = rng.normal(size=(7, dense.dim)), rng.uniform(1, 2, dense.dim)
    of_loc = rng.normal(size=dense.dim)
    expected = price_of(backend, family, of_loc, -rows.T @ rows - np.diag(prior))
    actual = family.natural_gradient_from_rows(*map(backend.array, (of_loc, rows, prior)))
    for a, e in zip(*(arrays_of(backend, x) for x in (actual, expected)), strict=True):
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
    for (start, m, n), a, b in zip(dense.matrices, dense.rows, dense.columns, strict=True):
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
    dense = Dense(STRUCTURES["one alone"], rng)
    (_, m, n), rho, step_size, num = dense.matrices[0], 0.1, 0.3, 35
    u, v = dense.rows[0] @ dense.rows[0].T, dense.columns[0] @ dense.columns[0].T
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
    family = make(backend, dense)
    direction = family.natural_gradient_from_rows(
        *map(backend.array, (num * step_size / rho * of_mean.ravel(), rows, np.zeros(m * n)))
    )
    new = family.natural_step(direction, rho)
    sigma = np.kron(np.linalg.inv(average_a), np.linalg.inv(average_s) / num)
    assert relative_error(backend.numpy(new.covariance_matrix), sigma) < TOLERANCE
    assert relative_error(backend.numpy(new.loc), expected.ravel()) < TOLERANCE


def test_one_step_is_exact_for_a_conjugate_model_of_this_form(backend, instance, rng):
    dense, family = instance
    posterior = Dense((dense.dim, dense.matrices), rng)
    posterior.rows = [7.0 * t for t in posterior.rows]  # of another size as well
    precision = np.linalg.inv(posterior.covariance)
    of_loc = precision @ (posterior.loc - dense.loc)
    new = family.natural_step(price_of(backend, family, of_loc, -precision), 1.0)
    assert relative_error(backend.numpy(new.loc), posterior.loc) < TOLERANCE
    assert relative_error(backend.numpy(new.covariance_matrix), posterior.covariance) < TOLERANCE
    for a, b in new._root().pairs:
        pivots = [np.log(np.abs(np.diag(backend.numpy(x)))).mean() for x in (a, b)]
        np.testing.assert_allclose(*pivots, atol=1e-12)


@pytest.mark.fast_in_numpyro("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_along_any_curvature_is_a_gaussian(backend, one, dtype, rng):
    dense, _ = one
    family = make(backend, dense, dtype=dtype)

    def step(of_loc, hessian, rho):
        direction = family.bonnet_price(of_loc, family.assemble_hessian(hessian))
        return family.natural_step(direction, rho)

    step = backend.compiled(step)
    for size in (1e-3, 1.0, 1e6):
        hessian = backend.array(size * symmetric_matrix(dense.dim, rng), dtype)
        of_loc = backend.array(rng.normal(size=dense.dim), dtype)
        for rho in (0.1, 1.0):
            new = step(of_loc, hessian, rho)
            assert all(np.isfinite(value).all() for value in arrays_of(backend, new))
            assert (backend.numpy(new.stddev) > 0).all()
            assert {backend.dtype(x) for x in new.coordinates().values()} == {dtype}


def test_a_matrix_of_convex_curvature_widens_by_half_of_its_precision(backend, one):
    dense, family = one
    zeros = backend.array(np.zeros(dense.dim))
    convex = 3.0 * np.linalg.inv(dense.covariance)
    new = family.natural_step(price_of(backend, family, zeros, convex), 1.0)
    expected = 2.0 * dense.covariance
    assert relative_error(backend.numpy(new.covariance_matrix), expected) < TOLERANCE


@pytest.mark.parametrize("size", [0.1, 30.0])
def test_the_noise_of_one_draw_is_damped_and_its_squares_widen_nothing(backend, size, rng):
    rho, changes = 0.3, []
    for k in (3, 2):
        change = rng.normal(size=(k, k))
        change = size * (change + change.T)
        changes.append(change + (0.2 - np.trace(change) / k) * np.eye(k))  # of equal mean traces
    steps = KroneckerSteps(backend.families.MatrixNormal.ops)
    found = steps.damped(rho, tuple(map(backend.array, changes)))
    rows, columns = (np.eye(len(d)) + rho * backend.numpy(d) for d in found)
    actual = np.kron(rows, columns) / np.sqrt(np.trace(rows) / 3 * np.trace(columns) / 2)
    largest = max((np.linalg.eigvalsh(rho * d) ** 4).sum() ** 0.25 for d in changes)
    share = 1 / max(largest, 1.0)
    rows, columns = (
        np.eye(len(d)) + share * rho * d + (share * rho * d) @ (share * rho * d) / 2
        for d in changes
    )
    trace = share * rho * 0.2
    expected = np.kron(rows, columns) / (1 + trace + trace**2 / 2)
    assert relative_error(actual, expected) < TOLERANCE
    assert (size > 1) == (share < 1)


def test_a_retraction_adds_the_step_but_for_the_redundant_scale_and_stays_off_zero(
    backend, one, rng
):
    dense, family = one
    step = [0.1 * rng.normal(size=x.shape) for x in dense.coordinates]
    for index, side in ((1, dense.rows), (2, dense.columns)):
        step[index] *= np.concatenate([np.tril(np.ones_like(t)).ravel() for t in side])
    new = family.retract(make(backend, dense, step))
    dense.rows, dense.columns = dense.unpack(
        [a + b for a, b in zip(dense.coordinates, step, strict=True)]
    )
    dense.scale = dense.scale + step[3]
    assert relative_error(backend.numpy(new.covariance_matrix), dense.covariance) < TOLERANCE
    gone = new.retract(new.map(lambda value: -value))
    assert (backend.numpy(gone.stddev) > 0).all()


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
    with pytest.raises(ValueError, match=r"'a' \(3,\), 'b' \(1, 4\)\. Use family='diagonal'"):
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
