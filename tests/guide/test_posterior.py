"""``NaturalNormal``, the distribution that the guide samples from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import natural_gradient, random_gaussian, relative_error

TOLERANCE = 1e-10  # as for the families, of which it is made


def _normal(ppl, family, sticking_the_landing):
    return ppl.module("guide.posterior").NaturalNormal(family, sticking_the_landing)


@pytest.mark.parametrize("sticking", [False, True])
def test_log_prob_of_a_value_that_is_not_its_draw_carries_natural_gradients(
    ppl, family_name, sticking, rng
):
    """A guide replayed at given values: there is no draw through which to differentiate."""
    loc, scale = random_gaussian(family_name, 4, rng)
    family = ppl.family(family_name, loc, scale)
    value = ppl.array(rng.normal(size=4))
    euclidean = ppl.grad(lambda f: f.log_prob(value), family)
    expected = natural_gradient(family_name, loc, scale, *ppl.coordinates(euclidean))
    actual = ppl.grad(lambda f: _normal(ppl, f, sticking).log_prob(value), family)
    for a, e in zip(ppl.coordinates(actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


def test_expansion_is_of_independent_draws(ppl, family_name, rng):
    family = ppl.family(family_name, *random_gaussian(family_name, 4, rng))
    normal = _normal(ppl, family, False).expand((3,))
    assert (tuple(normal.batch_shape), tuple(normal.event_shape)) == ((3,), (4,))
    value = ppl.array(rng.normal(size=(3, 4)))
    np.testing.assert_array_equal(
        ppl.numpy(normal.log_prob(value)), ppl.numpy(family.log_prob(value))
    )
