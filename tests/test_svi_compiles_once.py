"""How often a step of NumPyro's is compiled."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
numpyro = pytest.importorskip("numpyro")

import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from numpyro_ngvi import BLR, SVI, NaturalELBO, NaturalGaussianGuide  # noqa: E402
from numpyro_ngvi.tracing.compilation import PROGRAMS  # noqa: E402


def model(y, epoch=1):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mean, 1.0 + epoch).expand([3]), obs=y)


def svi_of(kind=SVI, **options):
    return kind(model, NaturalGaussianGuide(model), BLR(), NaturalELBO(), **options)


def test_the_programs_of_steps_are_few(monkeypatch):
    monkeypatch.setattr("numpyro_ngvi.svi.MOST_STEPS", 2)
    svi = svi_of(rng_key=jax.random.key(0))
    for epoch in range(3):
        svi.step(jnp.zeros(3), epoch)
    assert len(svi._compiled) == 2


def test_updates_outside_of_jit_are_compiled_once_and_are_the_same():
    svi, y = svi_of(numpyro.infer.SVI), jnp.zeros(3)
    state, before, losses = svi.init(jax.random.key(0), y), PROGRAMS.counts, []
    for update in (svi.update, svi.update, jax.jit(svi.update)):
        new, loss = update(state, y)
        losses.append((loss, *jax.tree.leaves(svi.get_params(new))))
    assert (PROGRAMS.counts - before).compiled <= 1
    for one in losses[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), losses[0], one)


def test_a_model_that_is_compiled_is_refused():
    with pytest.raises(TypeError, match="model.__wrapped__"):
        NaturalGaussianGuide(jax.jit(model))
