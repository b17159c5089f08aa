"""Programs traced in single precision, run in double (NumPyro)."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from numpyro_ngvi.tracing.compilation import in_double_precision, in_single_precision  # noqa: E402
from numpyro_ngvi.tracing.widened import widened  # noqa: E402

#: Captured by what follows, in double precision.
LARGE, ROWS, FIRST = np.full(3, 1e8), np.arange(6.0).reshape(2, 3), np.array([0, 2])


def cancels(x):
    """Itself; in single precision a multiple of eight."""
    large = LARGE * jnp.cos(0.0 * x)  # of constants alone XLA would make one
    return (large + x) - large


@jax.custom_jvp
def own_derivative(x):
    return cancels(x)


own_derivative.defjvps(lambda tangent, _, x: tangent)


def of_while(x):
    return lax.while_loop(lambda s: s[0] < len(ROWS), lambda s: (s[0] + 1, cancels(s[1])), (0, x))[
        1
    ]


def of_bits(x):
    """0.5, from the bits of a number in single precision."""
    half = lax.bitcast_convert_type(jnp.full(3, 0x3F000000, jnp.int32), jnp.float32)
    return cancels(x) * half


CASES = {
    "operations": (lambda x: jnp.sum(ROWS * cancels(x), 0), [3.0, 5.0, 7.0]),
    "indices": (lambda x: cancels(x)[FIRST].sum(), None),
    "a program within": (jax.jit(cancels), 1.0),
    "a derivative of its own": (own_derivative, 1.0),
    "scan": (lambda x: lax.scan(lambda c, row: (cancels(c) + row, c), x, ROWS)[0], None),
    "map": (lambda x: lax.map(lambda row: cancels(x) * row, ROWS).sum(0), [3.0, 5.0, 7.0]),
    "while": (of_while, 1.0),
    "cond": (lambda x: lax.cond(x[0] > 0, cancels, jnp.negative, x), 1.0),
    "bits": (of_bits, 0.5),
    "a linear system": (lambda x: jnp.linalg.solve(2.0 * jnp.eye(3), cancels(x)), 0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cancels_in_single_precision_does_not(name):
    """Where JAX has seen the captured arrays in single precision, and keeps them so."""
    function, factor = CASES[name]
    x = np.float32([1.3, 2.6, 3.9]).astype(float)
    expected = {"scan": x + np.array([3.0, 5.0, 7.0]), "indices": x[0] + x[2]}
    expected = expected[name] if name in expected else x * factor
    with in_single_precision():
        single = jax.jit(function)
        assert abs(np.asarray(single(x.astype(np.float32))) - expected).max() > 0.5
    with in_double_precision():
        found = jax.jit(widened(function))(x)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-6)
