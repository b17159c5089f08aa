"""What is left of a log density when only the locals are open (NumPyro)."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")


def test_what_hangs_on_the_globals_alone_is_computed_before_the_locals_are_known():
    import jax.numpy as jnp

    from numpyro_ngvi.tracing.of_sites import OfSites, halved

    rows = jnp.arange(12.0).reshape(6, 2)

    def program(values, scale):
        eta = rows @ values["a"] + values["b"][jnp.array([0, 0, 1, 1, 2, 2])]
        return scale * (jnp.sin(eta).sum() + values["a"].sum())

    def unpack(theta):
        return {"b": theta[:3], "a": theta[3:]}

    theta = jnp.linspace(-1.0, 1.0, 5)
    traced = jax.make_jaxpr(program)(unpack(theta), jnp.array(2.0))
    density = OfSites(traced, [jnp.array(2.0)], unpack, ["b"])
    point = jnp.array([0.3, -0.2, 0.1, jnp.nan, jnp.nan])  # of which the globals are not read
    at = jnp.concatenate([point[:3], theta[3:]])
    np.testing.assert_allclose(density(at), program(unpack(at), 2.0), rtol=1e-6)
    given = density.given(theta)
    np.testing.assert_allclose(given(point), density(at), rtol=1e-6)
    expected = jax.grad(density)(at)
    np.testing.assert_allclose(jax.grad(given)(point)[:3], expected[:3], rtol=1e-5)
    # ... and the derivative in the globals is not lost.
    of_globals = jax.grad(lambda latent: density.given(latent)(point))(theta)
    np.testing.assert_allclose(of_globals[3:], expected[3:], rtol=1e-5)
    parts = halved(traced.jaxpr, [False, True])
    assert "dot_general" in str(parts.first) and "dot_general" not in str(parts.rest)
