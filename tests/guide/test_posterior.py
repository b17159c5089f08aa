"""``NaturalNormal``, the distribution that the guide samples from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import natural_gradient, random_gaussian, relative_error

TOLERANCE = 1e-10  # as for the families, of which it is made


def _normal(backend, family, sticking_the_landing):
    return backend.module("guide.posterior").NaturalNormal(family, sticking_the_landing)


@pytest.mark.parametrize("sticking", [False, True])
def test_log_prob_of_a_value_that_is_not_its_draw_carries_natural_gradients(
    backend, family_name, sticking, rng
):
    """A guide replayed at given values: there is no draw through which to differentiate."""
    loc, scale = random_gaussian(family_name, 4, rng)
    family = backend.family(family_name, loc, scale)
    value = backend.array(rng.normal(size=4))
    euclidean = backend.grad(lambda f: f.log_prob(value), family)
    expected = natural_gradient(family_name, loc, scale, *backend.coordinates(euclidean))
    actual = backend.grad(lambda f: _normal(backend, f, sticking).log_prob(value), family)
    for a, e in zip(backend.coordinates(actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


def test_moments_and_entropy_are_the_familys(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 4, rng))
    normal = _normal(backend, family, False)
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(
            backend.numpy(getattr(normal, name)), backend.numpy(getattr(family, name))
        )
    np.testing.assert_array_equal(backend.numpy(normal.entropy()), backend.numpy(family.entropy()))


def test_expansion_is_of_independent_draws(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 4, rng))
    normal = _normal(backend, family, False).expand((3,))
    assert (tuple(normal.batch_shape), tuple(normal.event_shape)) == ((3,), (4,))
    value = backend.array(rng.normal(size=(3, 4)))
    np.testing.assert_array_equal(
        backend.numpy(normal.log_prob(value)), backend.numpy(family.log_prob(value))
    )
