"""Programs of our own (NumPyro), which are compiled with options of our own."""

import gc

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


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_wait_for_a_trace_and_are_then_as_the_user_has_them(is_on):
    seen = []

    def double(x):
        seen.append(gc.isenabled())
        return 2.0 * x

    def fails(x):
        raise ValueError("of the model")

    try:
        if not is_on:
            gc.disable()
        compiled(double)(np.ones(2))
        with pytest.raises(ValueError, match="of the model"):
            compiled(fails)(np.ones(2))
        assert (seen, gc.isenabled()) == ([False], is_on)
    finally:
        gc.enable()
