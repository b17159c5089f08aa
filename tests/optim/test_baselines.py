"""The paper's baselines, element by element: NAdam and ProxGenAdam."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.baselines.prox_gen_adam import ProxGenAdamRule
from ngvi.latents.forest import forest_from_indices
from tests import reference
from tests.families import arrows
from tests.optim.table5 import assert_same, driver
from tests.reference import felt

#: Two families at once; the dense ones with one factor of the covariance, one of the precision.
FAMILIES = {"dense": "covariance_cholesky", "inverse": "precision_cholesky", "mean": "diagonal"}
NUM_STEPS = 20


def start(rng, families=FAMILIES):
    return {
        name: (family, *reference.random_gaussian(family, 3, rng))
        for name, family in families.items()
    }


def natural_gradients(point, num_steps, rng):
    """Natural gradients of no particular loss, in the form of directions."""
    return [
        {
            name: (family, rng.normal(size=loc.shape), felt(family, rng.normal(size=scale.shape)))
            for name, (family, loc, scale) in point.items()
        }
        for _ in range(num_steps)
    ]


def check(backend, optimiser, point, gradients, expected):
    run = driver(backend, optimiser, point)
    for gradient, target in zip(gradients, expected, strict=True):
        run.step(gradient)
        assert_same(run, target, rtol=1e-10)
    assert run.num_skipped == 0


# -- NAdam ----------------------------------------------------------------------------


def nadam(point, gradients, alpha, beta1, beta2, eps):
    """Tan's Table 5, left column, on natural gradients; ``alpha`` of the number of steps taken."""
    m = {name: [0.0, 0.0] for name in point}
    v = {name: [0.0, 0.0] for name in point}
    trajectory = []
    for t, gradient in enumerate(gradients, start=1):
        moved = {}
        for name, (family, *coordinates) in point.items():
            new = []
            for i, x in enumerate(coordinates):
                g = -gradient[name][1 + i]
                m[name][i] = beta1 * m[name][i] + (1 - beta1) * g
                v[name][i] = beta2 * v[name][i] + (1 - beta2) * g**2
                m_hat, v_hat = m[name][i] / (1 - beta1**t), v[name][i] / (1 - beta2**t)
                new.append(x + alpha(t - 1) * m_hat / (np.sqrt(v_hat) + eps))
            moved[name] = (family, *new)
        point = moved
        trajectory.append(point)
    return trajectory


ADDITIVE = {"dense": "covariance_cholesky", "mean": "diagonal"}


@pytest.mark.parametrize("options", [(0.9, 0.999, 1e-8), (0.5, 0.7, 0.3)])
def test_nadam_is_the_left_column_on_natural_gradients(backend, options, rng):
    point = start(rng, ADDITIVE)
    gradients = natural_gradients(point, NUM_STEPS, rng)
    expected = nadam(point, gradients, lambda t: 0.01, *options)
    named = dict(zip(("beta1", "beta2", "eps"), options, strict=True))
    check(backend, backend.optimiser("NAdam", step_size=0.01, **named), point, gradients, expected)


def test_a_factor_of_the_precision_moves_the_mean_by_corollary_1(backend, rng):
    (gradient,) = natural_gradients(point := start(rng, {"q": "precision_cholesky"}), 1, rng)
    _, loc, tril = point["q"]
    run = driver(backend, backend.optimiser("NAdam", step_size=0.1), point)
    run.step(gradient)
    # Adam's first step is the sign of the gradient.
    new = tril - 0.1 * np.sign(gradient["q"][2])
    np.testing.assert_allclose(run.gaussian("q")[1], new, rtol=1e-6, atol=1e-8)
    shift = np.linalg.solve(new.T, tril.T @ (-0.1 * np.sign(gradient["q"][1])))
    np.testing.assert_allclose(run.gaussian("q")[0] - loc, shift, rtol=1e-6)


# -- ProxGenAdam ----------------------------------------------------------------------


def prox_gen_adam(point, gradients, alpha, beta1, beta2, eps):
    """Tan, S5.2; ``alpha`` of the number of steps taken."""
    m = {name: [0.0, 0.0] for name in point}
    v = {name: [0.0, 0.0] for name in point}
    trajectory = []
    for t, gradient in enumerate(gradients):
        moved = {}
        for name, (family, loc, scale) in point.items():
            of_loss = reference.euclidean_gradient(family, loc, scale, *gradient[name][1:])
            positive = np.diag(scale) if scale.ndim == 2 else scale
            of_entropy = -1 / positive if family == "precision_cholesky" else 1 / positive
            of_entropy = np.diag(of_entropy) if scale.ndim == 2 else of_entropy
            of_log_joint = (-of_loss[0], -of_loss[1] - of_entropy)
            new, gammas = [], []
            for i, (x, g) in enumerate(zip((loc, scale), of_log_joint, strict=True)):
                m[name][i] = beta1 * m[name][i] + (1 - beta1) * g
                v[name][i] = beta2 * v[name][i] + (1 - beta2) * g**2
                gammas.append(alpha(t) / np.sqrt(v[name][i] + eps))
                new.append(x + gammas[i] * m[name][i])
            loc, scale = new
            for i in range(len(loc)):
                at = (i, i) if scale.ndim == 2 else i
                x, gamma = scale[at], gammas[1][at]
                if family != "precision_cholesky":
                    scale[at] = (x + np.sign(x) * np.sqrt(x**2 + 4 * gamma)) / 2
                elif x**2 > 4 * gamma:
                    scale[at] = (x + np.sign(x) * np.sqrt(x**2 - 4 * gamma)) / 2
            moved[name] = (family, loc, scale)
        point = moved
        trajectory.append(point)
    return trajectory


@pytest.mark.fast_in_numpyro("large steps")
@pytest.mark.parametrize(
    ("alpha", "options"),
    [(1e-3, {}), (0.02, {"beta1": 0.5, "beta2": 0.9, "eps": 0.1})],
    ids=["defaults", "large steps"],
)
def test_prox_gen_adam_is_the_supplements(backend, alpha, options, rng):
    point = start(rng)
    gradients = natural_gradients(point, NUM_STEPS, rng)
    values = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8} | options
    expected = prox_gen_adam(point, gradients, lambda t: alpha, **values)
    optimiser = backend.optimiser("ProxGenAdam", step_size=alpha, **options)
    check(backend, optimiser, point, gradients, expected)


def test_a_diagonal_too_small_for_a_proximal_step_is_left_as_adam_left_it(backend):
    """Of the precision's factor: ``T_ii^2 <= 4 gamma`` has no solution."""
    point = {"q": ("precision_cholesky", np.zeros(2), np.diag([0.05, 3.0]))}
    gradients = [{"q": ("precision_cholesky", np.zeros(2), np.diag([0.01, 0.01]))}]
    expected = prox_gen_adam(point, gradients, lambda t: 0.001, 0.9, 0.999, 1e-8)
    small, large = np.diag(expected[0]["q"][2])
    assert abs(small - 0.05) < 0.005 < abs(large - 3.0)  # one is left, the other is not
    check(backend, backend.optimiser("ProxGenAdam"), point, gradients, expected)


def forests(backend, rng):
    """Each with its factor packed: locals given globals by ``T``, and blocks by ``C``."""
    case = "three locals of size 2 given 3 globals"
    loc, tril = arrows.random_factor(*arrows.CASES[case], rng)
    sparse = arrows.family(backend, case, loc, tril)
    blocks = (
        backend.module("families.forest")
        .BlockDiagonal(
            structure=forest_from_indices([np.arange(4).reshape(2, 2).T, np.array([[4]])])
        )
        .initial(backend.array(rng.normal(size=5)), 0.3)
    )
    return sparse, blocks


def test_prox_gen_adam_moves_the_packed_factors_of_forests_by_the_same_lines(backend, rng):
    """Its diagonal is where ``packed_diagonal`` says, and its gradient the family's own."""
    algebra = backend.module("optim.algebra").algebra
    rule = ProxGenAdamRule(algebra, 0.02, 0.9, 0.999, 1e-8)
    for family in forests(backend, rng):
        name, sign = family.factor_name, float(family.power)
        indices = family.structure.packed_diagonal()
        state, m, v = rule.init([family]), 0.0, 0.0
        for count in range(3):
            packed = backend.numpy(getattr(family, name)).copy()
            noise = np.where(packed != 0, rng.normal(size=packed.shape), 0.0)
            natural = dataclasses.replace(
                family,
                loc=backend.array(rng.normal(size=family.dim)),
                **{name: backend.array(noise)},
            )
            gradient = -backend.numpy(getattr(family.euclidean_gradient(natural), name)).copy()
            gradient[indices] -= sign / packed[indices]
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            gamma = 0.02 / np.sqrt(v + 1e-8)
            expected = packed + gamma * m
            x, gamma = expected[indices], gamma[indices]
            square = x**2 + sign * 4 * gamma
            near = (x + np.sign(x) * np.sqrt(np.maximum(square, 0))) / 2
            expected[indices] = np.where(square > 0, near, x)
            (family,), state = rule.step([natural], state, [family], count)
            np.testing.assert_allclose(
                backend.numpy(getattr(family, name)), expected, rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize("family", ["precision", "covariance"])
def test_prox_gen_adam_names_a_family_it_cannot_move_and_what_to_do(backend, family, rng):
    point = start(rng, {"q": family})
    (gradient,) = natural_gradients(point, 1, rng)
    name = backend.family_class(family).__name__
    with pytest.raises(ValueError, match=rf"not {name}\. Make the guide with.*or use BLR"):
        driver(backend, backend.optimiser("ProxGenAdam"), point).step(gradient)


# -- both -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NAdam", "ProxGenAdam"])
def test_schedules_are_read_at_the_number_of_steps_taken(backend, name, rng):
    point = start(rng, ADDITIVE)
    gradients = natural_gradients(point, 5, rng)
    schedule = lambda t: 0.01 / (1.0 + t)  # noqa: E731
    rule = {"NAdam": nadam, "ProxGenAdam": prox_gen_adam}[name]
    expected = rule(point, gradients, schedule, 0.9, 0.999, 1e-8)
    check(backend, backend.optimiser(name, step_size=schedule), point, gradients, expected)
