"""What holds of every family, against dense matrices and the dense Fisher information."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import stats

from ngvi.families.steps import inner
from tests.families import arrows
from tests.families.dense import CASES, FAST, Dense, arrays, flat, symmetric
from tests.optim.runs import kl_divergence
from tests.reference import DENSE_FAMILIES, SYMMETRIC, relative_error

TOLERANCE = 1e-9

#: The direction of a low rank is not the whole Fisher matrix's: ``test_low_rank_precision``.
EXACT = [name for name in CASES if not name.startswith("rank")]

#: Families whose steps are the Bayesian learning rule's at any step size.
CLOSED = [name for name in EXACT if "matri" not in name]

#: Whose draw is a single one.
ONE_DRAW = ("diagonal-1", "covariance_cholesky", "blocks", "globals only", "one matrix")


def over(names, but=""):
    def decorate(test):
        shown = (name for name in FAST if name in names and name != but)
        fast = pytest.mark.fast_in_numpyro(*shown)
        return fast(pytest.mark.parametrize("name", names)(test))

    return decorate


def close(ppl, actual, expected, tolerance=TOLERANCE):
    for one, other in zip(actual, expected, strict=True):
        one = one if isinstance(one, np.ndarray) else ppl.numpy(one)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@over(CASES)
def test_moments_density_and_divergence(ppl, name, rng):
    case = CASES[name]
    (dense, family), (other, second) = (case.instance(ppl, rng) for _ in range(2))
    expected = stats.multivariate_normal(dense.loc, dense.covariance)
    value = rng.normal(size=(2, 3, dense.dim))

    def found(value, unit):
        return (
            family.sample(unit),
            family.mean,
            family.stddev,
            family.variance,
            family.covariance_matrix,
            family.precision_matrix,
            family.log_det_scale(),
            family.entropy(),
            family.log_prob(value),
            family.sample(family.whiten(value)),
            family.kl_divergence(second),
            family.kl_divergence(family),
        )

    unit = ppl.array(np.eye(dense.dim))
    draws, *actual = ppl.compiled(found)(ppl.array(value), unit)
    gaussians = (dense.loc, dense.covariance), (other.loc, other.covariance)
    variance = np.diag(dense.covariance)
    half = 0.5 * np.linalg.slogdet(dense.covariance)[1]
    close(
        ppl,
        actual,
        (
            dense.loc,
            np.sqrt(variance),
            variance,
            dense.covariance,
            dense.precision,
            half,
            expected.entropy(),
            expected.logpdf(value),
            value,
            kl_divergence(*gaussians),
            0.0,
        ),
    )
    root = ppl.numpy(draws) - dense.loc
    close(ppl, [root.T @ root], [dense.covariance])
    if name in DENSE_FAMILIES:
        close(ppl, [family.lower_factor], [np.linalg.cholesky(dense.covariance)])


@over(CASES)
def test_the_natural_gradient_is_the_solve_with_the_dense_fisher_matrix(ppl, name, rng):
    dense, family = CASES[name].instance(ppl, rng)
    slope, noise = dense.random_slope(rng), dense.without_effect(rng)
    gradient = CASES[name].family(ppl, [a + b for a, b in zip(slope, noise, strict=True)])

    def found(gradient):
        natural = family.natural_gradient(gradient)
        return natural, family.euclidean_gradient(natural), inner(family, natural, natural)

    natural, back, length = ppl.compiled(found)(gradient)
    close(ppl, arrays(ppl, back), slope)
    if name not in EXACT:
        return
    natural = arrays(ppl, natural)
    assert relative_error(natural[0], dense.covariance @ slope[0]) < TOLERANCE
    assert relative_error(dense.fisher @ flat(natural), flat(slope)) < TOLERANCE
    expected = flat(natural) @ dense.fisher @ flat(natural) + slope[0] @ natural[0]
    assert float(length) == pytest.approx(expected)
    if name in SYMMETRIC:
        np.testing.assert_array_equal(natural[1], natural[1].T)
    else:
        np.testing.assert_array_equal(flat(natural)[~np.any(dense.jacobian, 0)], 0.0)


@pytest.mark.parametrize("name", CASES)
def test_its_parameters_are_the_directions_in_which_the_gaussian_changes(pyro_backend, name, rng):
    dense, family = CASES[name].instance(pyro_backend, rng)
    assert family.num_parameters == dense.dim + np.linalg.matrix_rank(dense.jacobian, 1e-9)


@over(EXACT)
def test_bonnet_and_price_are_the_natural_gradient_of_the_bounds_slope(ppl, name, rng):
    case = CASES[name]
    dense, family = case.instance(ppl, rng)
    of_loc = rng.normal(size=dense.dim)
    is_sparse = case.name == "SparsePrecision"
    matrix = np.where(case.free if is_sparse else True, symmetric(dense.dim, rng), 0.0)
    left, right = rng.normal(size=(2, 5, dense.dim))
    products = np.where(case.free if is_sparse else True, left.T @ right + right.T @ left, 0.0)
    slope = case.family(ppl, dense.slope(of_loc, 0.5 * (matrix + dense.precision)))

    def found(of_loc, hessian, left, right):
        parts = family.outer_products(left, right)
        return (
            family.bonnet_price(of_loc, hessian),
            family.bonnet_price(of_loc, parts),
            family.natural_gradient(slope),
        )

    given = ppl.array(of_loc), dense.hessian(ppl, family, matrix)
    actual, of_rows, expected = ppl.compiled(found)(*given, *map(ppl.array, (left, right)))
    close(ppl, arrays(ppl, actual), arrays(ppl, expected))
    same = family.bonnet_price(given[0], dense.hessian(ppl, family, 0.5 * products))
    close(ppl, arrays(ppl, of_rows), arrays(ppl, same))


@over(EXACT, but="matrices")
def test_draws_and_densities_carry_natural_gradients(ppl, name, rng):
    dense, family = CASES[name].instance(ppl, rng)
    shape = () if name in ONE_DRAW else (2, 3)
    noise, value = (ppl.array(rng.normal(size=(*shape, dense.dim))) for _ in range(2))

    def of_draw(theta):
        return (theta**3).sum() + (1 / (1 + theta**2)).prod()

    def plain(q):
        drawn = q.sample(noise)
        density = 0.7 * q.log_prob(value).sum() + q.entropy() + 2 * of_draw(drawn)
        return of_draw(drawn) + 0.3 * q.log_prob(drawn).sum() + density

    def hooked(q):
        hook = q.precondition()
        drawn = hook.sample(noise)
        density = 0.7 * hook.log_prob(value).sum() + hook.entropy() + 2 * of_draw(drawn)
        return of_draw(q.draw(noise)) + 0.3 * q.draw_log_prob(noise).sum() + density

    expected = family.natural_gradient(ppl.grad(plain, family))
    close(ppl, arrays(ppl, ppl.grad(hooked, family)), arrays(ppl, expected), 1e-8)
    drawn = family.sample(noise)
    close(ppl, [family.draw(noise)], [ppl.numpy(drawn)])
    close(ppl, [family.draw_log_prob(noise)], [ppl.numpy(family.log_prob(drawn))])


@over(
    [
        name
        for name in CLOSED
        if name not in arrows.CASES or name in ("globals first", "nested plates")
    ]
)
def test_draws_and_densities_have_these_derivatives_in_forward_mode(ppl, name, rng):
    dense, family = CASES[name].instance(ppl, rng)
    tangent = CASES[name].family(ppl, dense.random_slope(rng))
    noise, value = (ppl.array(rng.normal(size=(2, dense.dim))) for _ in range(2))
    natural = family.natural_gradient(tangent)

    def plain(q):
        drawn = q.sample(noise)
        return drawn, q.log_prob(value), q.log_prob(drawn)

    def hooked(q):
        return q.draw(noise), q.precondition().log_prob(value), q.draw_log_prob(noise)

    expected = map(ppl.numpy, ppl.jvp(plain, family, natural))
    close(ppl, ppl.jvp(hooked, family, tangent), expected)


@over(EXACT)
def test_a_step_is_the_bayesian_learning_rule(ppl, name, rng):
    """Of size one it is exact for a conjugate model of the family's form."""
    case = CASES[name]
    (dense, family), (target, _) = (case.instance(ppl, rng) for _ in range(2))
    gradient = rng.normal(size=dense.dim)
    hessian = dense.hessian(ppl, family, -target.precision)

    def stepped(gradient, hessian, step_size):
        return family.natural_step(family.bonnet_price(gradient, hessian), step_size)

    stepped = ppl.compiled(stepped)
    for step_size in (0.3, 1.0) if name in CLOSED else (1.0,):
        moved = stepped(ppl.array(gradient), hessian, ppl.array(step_size))
        precision = (1 - step_size) * dense.precision + step_size * target.precision
        mean = dense.loc + step_size * np.linalg.solve(precision, gradient)
        actual = Dense(case, arrays(ppl, moved))
        assert relative_error(actual.precision, precision) < TOLERANCE
        assert relative_error(actual.loc, mean) < TOLERANCE


@over(["covariance_cholesky", "precision_cholesky", "diagonal", "shuffled blocks", "one matrix"])
def test_a_step_of_size_one_is_exact_from_far_narrower_and_far_wider(ppl, name, rng):
    case = CASES[name]
    target, _ = case.instance(ppl, rng)
    for ratio in (1e-3, 1e3):
        start = case.specification(ppl).initial(ppl.array(target.loc + ratio), ratio)
        gradient = ppl.array(-ratio * target.precision.sum(1))
        hessian = target.hessian(ppl, start, -target.precision)
        moved = start.natural_step(start.bonnet_price(gradient, hessian), 1.0)
        moved = Dense(case, arrays(ppl, moved))
        assert relative_error(moved.precision, target.precision) < 1e-8
        assert relative_error(moved.loc, target.loc) < 1e-8


@over([name for name in CASES if name != "sphere"])  # whose step an optimiser leaves out
def test_a_step_along_any_curvature_is_a_gaussian_in_float32(ppl, name, rng):
    case = CASES[name]
    dense = Dense(case, case.random(rng))
    family = case.family(ppl, dense.values, "float32")
    probes = family.hessian_probes()

    def stepped(gradient, products, step_size):
        direction = family.bonnet_price(gradient, family.assemble_hessian(products))
        return family.natural_step(direction, step_size)

    stepped = ppl.compiled(stepped)
    for size in (1e-3, 1.0, 1e6):
        matrix = np.where(case.free, size * symmetric(dense.dim, rng), 0.0)
        products = np.stack([matrix @ (probes == c) for c in range(probes.max() + 1)])
        given = (ppl.array(x, "float32") for x in (rng.normal(size=dense.dim), products))
        for step_size in (0.1, 1.0):
            given = tuple(given)
            moved = stepped(*given, ppl.array(step_size, "float32"))
            assert all(np.isfinite(value).all() for value in arrays(ppl, moved))
            assert (ppl.numpy(moved.stddev) > 0).all()
            assert {ppl.dtype(x) for x in moved.coordinates().values()} == {"float32"}


@over(EXACT)
def test_a_retraction_adds_and_stays_off_the_border(ppl, name, rng):
    case = CASES[name]
    dense, family = case.instance(ppl, rng)
    step = [0.05 * value for value in dense.random_slope(rng)]
    before = arrays(ppl, family)
    moved = family.retract(case.family(ppl, step))
    expected = Dense(case, [a + b for a, b in zip(dense.values, step, strict=True)])
    actual = Dense(case, arrays(ppl, moved))
    assert relative_error(actual.covariance, expected.covariance) < TOLERANCE
    shift = step[0]  # Corollary 1 and algorithm 2S; Table 1, column lambda
    if case.carries is not None:
        old, new = (case.carries(*one.values[1:]) for one in (dense, actual))
        shift = np.linalg.solve(new.T, old.T @ shift)
    assert relative_error(actual.loc - dense.loc, shift) < TOLERANCE
    close(ppl, arrays(ppl, family), before, 0.0)
    gone = family.retract(case.family(ppl, [-value for value in dense.values]))
    assert (ppl.numpy(gone.stddev) > 0).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "sphere"])  # of no module
def test_a_specification_gives_an_isotropic_start_and_pickle_gives_it_back(ppl, name, rng):
    case = CASES[name]
    loc = rng.normal(size=len(case.random(rng)[0]))
    family = case.specification(ppl).initial(ppl.array(loc), 0.3)
    np.testing.assert_array_equal(ppl.numpy(family.mean), loc)
    if name in EXACT:  # the factor of a low rank begins small, and not at zero to stay there
        sigma = Dense(case, arrays(ppl, family)).covariance
        close(ppl, [sigma], [0.09 * np.eye(len(loc))], 1e-12)
    np.testing.assert_allclose(ppl.numpy(family.stddev), 0.3, rtol=0.1)
    back = pickle.loads(pickle.dumps(family))
    assert type(back) is type(family)
    for structure in ("structure", "matrices", "rank"):
        assert getattr(back, structure, None) == getattr(family, structure, None)
    close(ppl, arrays(ppl, back), arrays(ppl, family), 0.0)
