"""``kl_divergence`` is the divergence of ``torch.distributions``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import covariance, random_gaussian

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dim", [1, 5])
def test_it_is_torchs(backend, family_name, dim, rng):
    p, q = (random_gaussian(family_name, dim, rng) for _ in range(2))
    first, second = (
        torch.distributions.MultivariateNormal(
            torch.as_tensor(loc), torch.as_tensor(covariance(family_name, scale))
        )
        for loc, scale in (p, q)
    )
    expected = torch.distributions.kl_divergence(first, second)
    actual = backend.family(family_name, *p).kl_divergence(backend.family(family_name, *q))
    np.testing.assert_allclose(backend.numpy(actual), float(expected), rtol=1e-11)


def test_it_is_zero_between_a_gaussian_and_itself(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    assert abs(float(backend.numpy(family.kl_divergence(family)))) < 1e-13


def test_the_sign_of_a_column_does_not_matter(backend, rng):
    loc, scale = random_gaussian("precision_cholesky", 4, rng)
    signs = np.array([1, -1, 1, -1])
    for name in ("precision_cholesky", "covariance_cholesky"):
        turned = backend.family(name, loc, scale * signs)
        assert (
            abs(float(backend.numpy(turned.kl_divergence(backend.family(name, loc, scale)))))
            < 1e-13
        )
