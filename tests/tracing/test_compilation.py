"""Programs of our own (NumPyro), which are compiled with options of our own."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")

import jax.numpy as jnp  # noqa: E402

from numpyro_ngvi.tracing.compilation import (  # noqa: E402
    SIZES,
    compiled,
    enable_x64,
)


@pytest.mark.parametrize("options", [{}, {"runs_once": True}, {"num_numbers": SIZES.many}])
def test_sums_of_products_over_many_rows_are_right(options):
    """A plain ``jax.jit`` gets the last rows wrong on CPUs in jaxlib 0.10.2."""
    count = 2**15 + 1

    def of_rows(rows):
        return jax.vmap(lambda row: jnp.sum((jnp.eye(3, dtype=row.dtype) @ row) ** 2))(rows)

    with enable_x64(False):
        rows = jnp.zeros((count, 3)).at[:, 0].set(jnp.arange(count, dtype=float))
        found = np.asarray(compiled(of_rows, **options)(rows))
    np.testing.assert_allclose(found, np.arange(count, dtype=float) ** 2, rtol=1e-6)
