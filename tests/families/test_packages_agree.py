"""The two packages give the same numbers."""

from __future__ import annotations

import numpy as np

from tests.reference import random_gaussian


def _everything(backend, family_name):
    """Every method on one random instance, in the order of the contract."""
    rng = np.random.default_rng(3)
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    other = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    loc, scale = backend.coordinates(other)
    gradient = backend.family(family_name, rng.normal(size=loc.shape), rng.normal(size=scale.shape))
    noise = backend.array(rng.normal(size=(2, 5)))
    hessian = rng.normal(size=(5, 5))
    structured = family.assemble_hessian(backend.array(hessian + hessian.T))
    direction = family.bonnet_price(backend.array(rng.normal(size=5)), structured)
    small = backend.family(family_name, 0.1 * loc, 0.1 * scale)
    for value in (
        family.stddev,
        family.covariance_matrix,
        family.precision_matrix,
        family.log_det_scale(),
        family.entropy(),
        family.sample(noise),
        family.whiten(noise),
        family.log_prob(noise),
        family.draw_jvp(gradient, noise),
        family.draw_jvp(gradient, noise[0]),
        family.log_det_jvp(gradient),
        structured,
        family.inner(direction, direction),
        family.kl_divergence(other),
    ):
        yield backend.numpy(value)
    for result in (
        family.natural_gradient(gradient),
        family.euclidean_gradient(direction),
        direction,
        family.retract(small),
        family.natural_step(direction, 0.6),
        type(family)().initial(noise[0], 0.3),
    ):
        yield from backend.coordinates(result)


def test_every_method_gives_the_same_numbers(numpyro_backend, pyro_backend, family_name):
    pairs = zip(
        _everything(numpyro_backend, family_name),
        _everything(pyro_backend, family_name),
        strict=True,
    )
    for left, right in pairs:
        # The same operations by two linear algebras.
        np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-12)


def test_they_have_the_same_names_and_constants(numpyro_backend, pyro_backend, family_name):
    left, right = (b.family_class(family_name) for b in (numpyro_backend, pyro_backend))
    assert left.__name__ == right.__name__
    assert left.name == right.name
    assert left.relative_scale_step == right.relative_scale_step
