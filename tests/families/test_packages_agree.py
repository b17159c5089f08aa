"""The two packages give the same numbers, in the dtype of a family's arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ngvi.families.steps import free_coordinates, inner, relative_scale_step
from tests.families.arrows import gradient
from tests.families.test_path import DIM, SPECIFICATIONS, specification, start_and_direction

#: JAX compiles each for a second: the others are slow tests.
FAST = [
    *(("float64", name) for name in (*list(SPECIFICATIONS)[:5], "MatrixNormal")),
    *(("float32", name) for name in ("CovarianceCholesky", "Precision", "MatrixNormal")),
]
SLOW = [
    (dtype, name)
    for dtype in ("float64", "float32")
    for name in SPECIFICATIONS
    if (dtype, name) not in (*FAST, ("float32", "LowRankPrecision"))
]


def _random(backend, name, rng, dtype):
    """A Gaussian and a direction at it."""
    if name != "LowRankPrecision":
        return start_and_direction(backend, name, rng, dtype)
    # An indefinite matrix has no nearest one of low rank: what comes out is a matter of rounding.
    start = specification(backend, name).initial(backend.array(rng.normal(size=DIM), dtype), 0.7)
    values = {key: backend.numpy(value) for key, value in start.coordinates().items()}
    random = ({k: v + 0.3 * rng.random(v.shape) for k, v in values.items()} for _ in range(2))
    return tuple(
        dataclasses.replace(start, **{k: backend.array(v, dtype) for k, v in one.items()})
        for one in random
    )


def _everything(backend, name, dtype):
    """Every method on one random instance."""
    rng = np.random.default_rng(3)
    family, direction = _random(backend, name, rng, dtype)
    other, change = _random(backend, name, rng, dtype)
    noise, rows = (backend.array(rng.normal(size=(2, DIM)), dtype) for _ in range(2))

    def found():
        slope, part = family.euclidean_gradient(change), family.outer_products(noise, rows)
        moved = (
            slope,
            family.natural_gradient(slope),
            family.precondition(),
            family.retract(change),
            family.bonnet_price(noise[0], part),
            family.natural_step(direction, 0.1),  # definite
            family.natural_step(direction, 1.0),  # corrected
            specification(backend, name).initial(noise[0], 0.3),
        )
        return [
            family.mean,
            family.stddev,
            family.variance,
            family.covariance_matrix,
            family.precision_matrix,
            family.log_det_scale(),
            family.entropy(),
            family.sample(noise),
            family.whiten(noise),
            family.log_prob(noise),
            family.draw(noise),
            family.draw(noise[0]),
            family.draw_log_prob(noise),
            family.draw_jvp(change, noise),
            family.log_det_jvp(change),
            inner(family, direction, change),
            family.kl_divergence(other),
            *free_coordinates(family),
            *(value for result in moved for value in result.coordinates().values()),
        ]

    slope = gradient(
        backend, lambda q: (q.draw(noise) ** 2).sum() + q.draw_log_prob(noise).sum(), family
    )
    return [*backend.compiled(found)(), *slope.coordinates().values()]


@pytest.mark.parametrize(
    ("dtype", "name"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_every_method_gives_the_same_numbers_in_the_familys_dtype(
    numpyro_backend, pyro_backend, dtype, name
):
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    both = (_everything(backend, name, dtype) for backend in (numpyro_backend, pyro_backend))
    for left, right in zip(*both, strict=True):
        assert numpyro_backend.dtype(left) == pyro_backend.dtype(right) == dtype
        left, right = numpyro_backend.numpy(left), pyro_backend.numpy(right)
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def test_they_have_the_same_names_and_constants(numpyro_backend, pyro_backend, family_name):
    left, right = (b.family_class(family_name) for b in (numpyro_backend, pyro_backend))
    assert left.__name__ == right.__name__
    assert left.name == right.name
    assert relative_scale_step(left()) == relative_scale_step(right())
