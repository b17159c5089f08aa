"""``SparsePrecision``: Theorem 4, its second-order twin, and steps, against dense algebra."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from scipy import stats

from ngvi.families.curvature import natural_gradient_from_points
from ngvi.families.points import spherical_points
from ngvi.inference.samples import ChainCubature
from ngvi.latents import forest as ngvi_forest
from tests.families import arrows
from tests.optim.runs import kl_divergence
from tests.reference import relative_error

#: The issue asks for 1e-8; measured 1e-14.
TOLERANCE = 1e-10


#: What most claims are tested on; the central ones are tested on every structure.
FEW = (
    "three locals of size 2 given 3 globals",
    "two plates of different sizes",
    "nested plates",
    "shuffled",
)


@pytest.fixture(params=FEW)
def case(request):
    return request.param


@pytest.fixture
def instance(backend, case, rng):
    """``(loc, T, free entries, family)``."""
    blocks, parents = arrows.CASES[case]
    loc, tril = arrows.random_factor(blocks, parents, rng)
    family = arrows.family(backend, case, loc, tril)
    return loc, tril, arrows.pattern(blocks, parents), family


def _direction(backend, case, free, rng, dtype="float64"):
    loc, tril = rng.normal(size=len(free)), np.where(free, rng.normal(size=free.shape), 0.0)
    return loc, tril, arrows.family(backend, case, loc, tril, dtype)


def _symmetric(free, rng):
    """A symmetric matrix with the sparsity of ``T T^T``."""
    matrix = rng.normal(size=free.shape)
    matrix = matrix + matrix.T
    return np.where(free | free.T, matrix, 0.0)


def _hessian(backend, family, matrix):
    """The family's part of a dense Hessian, by as many products as it asks for."""
    probes = family.hessian_probes()
    products = np.stack([matrix @ (probes == c) for c in range(probes.max() + 1)])
    return backend.compiled(family.assemble_hessian)(backend.array(products))


@pytest.mark.fast_in_numpyro(
    "three locals*", "two plates*", "nested plates three deep", "globals only", "shuffled"
)
@pytest.mark.parametrize("case", arrows.CASES)
def test_moments_and_density(backend, case, instance, rng):
    loc, tril, _, family = instance
    sigma = np.linalg.inv(tril @ tril.T)
    expected = stats.multivariate_normal(loc, sigma)
    value = rng.normal(size=(2, 3, len(loc)))

    def found(value, noise):
        return (
            family.mean,
            family.stddev,
            family.covariance_matrix,
            family.precision_matrix,
            family.log_det_scale(),
            family.entropy(),
            family.log_prob(value),
            family.sample(family.whiten(value)),
            family.sample(noise),
        )

    *actual, draws = backend.compiled(found)(backend.array(value), backend.array(np.eye(len(loc))))
    wanted = (
        loc,
        np.sqrt(np.diag(sigma)),
        sigma,
        tril @ tril.T,
        np.linalg.slogdet(sigma)[1] / 2,
        expected.entropy(),
        expected.logpdf(value),
        value,
    )
    for a, e in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(backend.numpy(a), e, rtol=1e-10, atol=1e-10)
    root = backend.numpy(draws) - loc
    np.testing.assert_allclose(root.T @ root, sigma, atol=1e-10)


@pytest.mark.fast_in_numpyro(
    "three locals*", "nested plates three deep", "globals only", "shuffled"
)
@pytest.mark.parametrize("case", arrows.CASES)
def test_natural_gradient_is_the_dense_solve(backend, case, instance, rng):
    loc, tril, free, family = instance
    *slope, gradient = _direction(backend, case, free, rng)
    expected = arrows.natural_gradient(loc, tril, free, *slope)
    natural = family.natural_gradient(gradient)
    for a, e in zip(arrows.coordinates(backend, case, natural), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE
    back = arrows.coordinates(backend, case, family.euclidean_gradient(natural))
    for a, e in zip(back, slope, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.fast_in_numpyro("nested plates-*")
@pytest.mark.parametrize(("case", "shape"), [(FEW[0], ()), (FEW[2], (2, 3)), (FEW[3], (3,))])
def test_a_draw_carries_natural_gradients(backend, case, instance, shape, rng):
    loc, tril, free, family = instance
    noise = backend.array(rng.normal(size=(*shape, len(loc))))

    def function(theta):
        return (theta**3).sum() + (1 / (1 + theta**2)).prod()

    euclidean = arrows.gradient(backend, lambda f: function(f.sample(noise)), family)
    expected = arrows.natural_gradient(
        loc, tril, free, *arrows.coordinates(backend, case, euclidean)
    )
    for way in (lambda f: f.draw(noise), lambda f: f.precondition().sample(noise)):
        actual = arrows.gradient(backend, lambda f, way=way: function(way(f)), family)
        for a, e in zip(arrows.coordinates(backend, case, actual), expected, strict=True):
            assert relative_error(a, e) < TOLERANCE
    np.testing.assert_allclose(
        backend.numpy(family.draw(noise)), backend.numpy(family.sample(noise)), rtol=1e-12
    )


@pytest.mark.parametrize("case", [FEW[0], FEW[2]])
def test_a_draw_has_the_same_derivative_in_forward_mode(backend, case, instance, rng):
    loc, _, free, family = instance
    *_, tangent = _direction(backend, case, free, rng)
    noise = backend.array(rng.normal(size=(2, len(loc))))
    expected = arrows.derivative(
        backend, lambda f: f.sample(noise), family, family.natural_gradient(tangent)
    )
    actual = arrows.derivative(backend, lambda f: f.draw(noise), family, tangent)
    assert relative_error(backend.numpy(actual), backend.numpy(expected)) < TOLERANCE


def test_the_draws_gradient_has_no_entries_where_the_factor_has_none(backend, case, instance, rng):
    loc, tril, free, family = instance
    blocks, parents = arrows.CASES[case]
    noise = backend.array(rng.normal(size=len(loc)))
    actual = arrows.gradient(backend, lambda f: (f.draw(noise) ** 3).sum(), family)
    rows, columns = arrows.positions(blocks, parents).T
    values = backend.numpy(actual.precision_tril)
    np.testing.assert_array_equal(values[~free[rows, columns]], 0)


def test_the_entropys_natural_gradient_is_minus_half_the_factor(backend, case, instance, rng):
    loc, tril, _, family = instance
    noise = backend.array(rng.normal(size=len(loc)))
    for function in (lambda f: -f.draw_log_prob(noise), lambda f: f.precondition().entropy()):
        actual = arrows.gradient(backend, function, family)
        mean, matrix = arrows.coordinates(backend, case, actual)
        np.testing.assert_allclose(mean, 0, atol=1e-12)
        np.testing.assert_allclose(matrix, -tril / 2, atol=1e-12)


@pytest.mark.fast_in_numpyro("two plates*", "nested plates three deep", "globals only", "shuffled")
@pytest.mark.parametrize("case", arrows.CASES)
def test_bonnet_price_is_the_natural_gradient_of_the_bound(backend, case, instance, rng):
    loc, tril, free, family = instance
    slope, hessian = rng.normal(size=len(loc)), _symmetric(free, rng)
    sigma = np.linalg.inv(tril @ tril.T)
    # dL/dSigma = (H + S) / 2, dL/dT = -2 Sigma dL/dSigma Sigma T
    euclidean = np.where(free, -sigma @ (hessian + tril @ tril.T) @ sigma @ tril, 0.0)
    expected = arrows.natural_gradient(loc, tril, free, slope, euclidean)
    actual = family.bonnet_price(backend.array(slope), _hessian(backend, family, hessian))
    for a, e in zip(arrows.coordinates(backend, case, actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.fast_in_numpyro("three locals*-2", "two plates*-1", "nested plates-2", "shuffled-1")
@pytest.mark.parametrize("many", [1, 2])
def test_points_that_are_spread_over_locals_see_a_quadratic_exactly(
    backend, case, instance, many, rng
):
    loc, tril, free, family = instance
    hessian, linear = _symmetric(free, rng), rng.normal(size=len(loc))
    paths = ChainCubature.with_many(family.structure, many)
    noise, weights = paths.spread(rng, spherical_points(rng, paths.dim, 1)[0])
    gradients = linear + (loc + np.linalg.solve(tril.T, noise.T).T) @ hessian
    found = backend.compiled(partial(natural_gradient_from_points, family))(
        backend.array(weights[:, None] * gradients), backend.array(noise)
    )
    slope = backend.array(linear + hessian @ loc)
    expected = backend.compiled(family.bonnet_price)(slope, _hessian(backend, family, hessian))
    for a, e in zip(
        arrows.coordinates(backend, case, found),
        arrows.coordinates(backend, case, expected),
        strict=True,
    ):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("case", arrows.CASES)
def test_as_many_products_as_a_local_and_its_globals_have_coordinates(backend, case, instance):
    _, _, free, family = instance
    blocks, parents = arrows.CASES[case]
    widths = []
    for index in range(len(blocks)):
        width, group = 0, index
        while group is not None:
            width, group = width + len(blocks[group]), parents[group]
        widths.append(width)
    assert family.hessian_probes().max() + 1 == max(widths)


def test_outer_products_are_those_of_the_dense_matrix(backend, case, instance, rng):
    loc, _, free, family = instance
    left, right = rng.normal(size=(2, 5, len(loc)))
    product = 0.5 * (left.T @ right + right.T @ left)
    actual = family.outer_products(backend.array(left), backend.array(right))
    expected = _hessian(backend, family, np.where(free | free.T, product, 0.0))
    np.testing.assert_allclose(backend.numpy(actual), backend.numpy(expected), atol=1e-12)


@pytest.mark.fast_in_numpyro("three locals*-1.0", "shuffled-*", "*-0.3")
@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_a_step_is_the_bayesian_learning_rule(backend, case, instance, step_size, rng):
    """Of size one exact for a conjugate model."""
    loc, tril, free, family = instance
    _, target = arrows.random_factor(*arrows.CASES[case], rng)
    slope, old = rng.normal(size=len(loc)), tril @ tril.T
    hessian = _hessian(backend, family, -target @ target.T)
    moved = family.natural_step(family.bonnet_price(backend.array(slope), hessian), step_size)
    precision = (1 - step_size) * old + step_size * target @ target.T
    np.testing.assert_allclose(backend.numpy(moved.precision_matrix), precision, atol=1e-9)
    mean = loc + step_size * np.linalg.solve(precision, slope)
    np.testing.assert_allclose(backend.numpy(moved.loc), mean, atol=1e-9)


@pytest.mark.fast_in_numpyro("*float64", "nested plates-float32", "shuffled-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_is_a_gaussian_for_any_curvature(backend, case, dtype, rng):
    blocks, parents = arrows.CASES[case]
    loc, tril = arrows.random_factor(blocks, parents, rng)
    free = arrows.pattern(blocks, parents)
    family = arrows.family(backend, case, loc, tril, dtype)
    for size in (1.0, 1e4):
        *_, direction = _direction(backend, case, free, rng, dtype)
        direction = arrows.family(
            backend,
            case,
            rng.normal(size=len(loc)),
            size * np.where(free, rng.normal(size=free.shape), 0),
            dtype,
        )
        moved = family.natural_step(direction, 1.0)
        assert np.isfinite(backend.numpy(moved.loc)).all()
        assert np.isfinite(backend.numpy(moved.precision_tril)).all()
        assert (np.abs(np.diag(arrows.coordinates(backend, case, moved)[1])) > 0).all()
        assert backend.dtype(moved.precision_tril) == dtype
    new = arrows.coordinates(backend, case, moved)[1]  # of a step far outside of the cone
    for block in blocks:
        for rows in block.T:
            here = np.ix_(rows, rows)
            ratio = np.linalg.svd(np.linalg.solve(tril[here], new[here]))[1] ** 2
            assert (ratio > 0.4999).all()  # of precisions, given the latents above


def test_kl_divergence(backend, case, instance, rng):
    loc, tril, _, family = instance
    other_loc, other = arrows.random_factor(*arrows.CASES[case], rng)
    pairs = ((loc, tril), (other_loc, other))
    expected = kl_divergence(*((mean, np.linalg.inv(t @ t.T)) for mean, t in pairs))
    actual = family.kl_divergence(arrows.family(backend, case, other_loc, other))
    np.testing.assert_allclose(backend.numpy(actual), expected, rtol=1e-10)
    np.testing.assert_allclose(backend.numpy(family.kl_divergence(family)), 0, atol=1e-12)


def test_retract_adds_to_the_factor_and_moves_the_mean_with_the_new_one(
    backend, case, instance, rng
):
    loc, tril, free, family = instance
    dloc, dtril, step = _direction(backend, case, free, rng)
    dtril = 0.05 * dtril
    step = arrows.family(backend, case, dloc, dtril)
    mean, moved = arrows.coordinates(backend, case, family.retract(step))
    np.testing.assert_allclose(moved, tril + dtril, atol=1e-12)
    expected = loc + np.linalg.solve(moved.T, tril.T @ dloc)  # algorithm 2S, step 5
    np.testing.assert_allclose(mean, expected, atol=1e-10)


def test_a_step_does_not_land_on_a_degenerate_gaussian(backend, case, instance):
    loc, tril, _, family = instance
    step = arrows.family(backend, case, np.zeros_like(loc), -tril)
    _, moved = arrows.coordinates(backend, case, family.retract(step))
    np.testing.assert_allclose(np.abs(np.diag(moved)), 0.01 * np.diag(tril))


def test_initial_is_isotropic(backend, case, instance, rng):
    *_, family = instance
    loc = rng.normal(size=family.dim)
    start = type(family)(structure=family.structure).initial(backend.array(loc), 0.5)
    np.testing.assert_allclose(backend.numpy(start.covariance_matrix), 0.25 * np.eye(len(loc)))
    np.testing.assert_array_equal(backend.numpy(start.mean), loc)


@pytest.mark.parametrize("case", arrows.CASES)
def test_num_parameters_counts_free_entries(case, instance):
    loc, _, free, family = instance
    assert family.num_parameters == len(loc) + free.sum()


def test_pickle_gives_the_family_back(backend, case, instance):
    *_, family = instance
    back = pickle.loads(pickle.dumps(family))
    assert back.structure == family.structure and hash(back.structure) == hash(family.structure)
    np.testing.assert_array_equal(
        backend.numpy(back.precision_tril), backend.numpy(family.precision_tril)
    )


def test_a_structure_says_what_it_is(backend):
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
    family = backend.module("families.forest").SparsePrecision(structure=structure)
    family = family.initial(backend.array(np.zeros(10_003)), 0.1)
    assert backend.numpy(family.stddev).shape == (10_003,)
    for name in ("covariance_matrix", "precision_matrix"):
        with pytest.raises(ValueError, match="linear in the number of its blocks"):
            getattr(family, name)
