"""Of the guide's contract, what only NumPyro has: one typed parameter, and runs without state."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests import models
from tests.models import Y

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import SVI, Predictive, Trace_ELBO, init_to_sample

from numpyro_ngvi import SVI as StatefulSVI
from numpyro_ngvi import (
    NaturalGaussianGuide,
    Snngm,
    families,
)


@pytest.fixture(autouse=True)
def ppl(numpyro_backend):
    return numpyro_backend


@pytest.fixture
def location(ppl):
    return models.location(ppl)


def test_the_posterior_is_one_typed_parameter_named_by_the_prefix(location):
    for prefix in ("auto", "q"):
        guide = NaturalGaussianGuide(location, prefix=prefix)
        svi = SVI(location, guide, Snngm(), Trace_ELBO())
        params = svi.get_params(svi.init(jax.random.key(0), jnp.asarray(Y)))
        assert list(params) == [f"{prefix}_posterior"]
        assert isinstance(params[f"{prefix}_posterior"], families.CovarianceCholesky)


def test_sample_posterior_and_quantiles_have_the_asked_shapes_and_the_deterministic_sites(ppl):
    args = tuple(map(ppl.argument, models.data()))
    guide = NaturalGaussianGuide(models.hierarchy(ppl))
    ppl.call(guide, *args)
    params = {"auto_posterior": guide._initial_posterior}
    draws = guide.sample_posterior(jax.random.key(1), params, *args, sample_shape=(5, 2))
    assert draws["weights"].shape == (5, 2, 3)
    assert draws["effect"].shape == (5, 2, 4)
    np.testing.assert_array_equal(draws["largest"], draws["effect"].max(-1, keepdims=True))
    assert guide.quantiles(params, 0.3)["effect"].shape == (4,)
    assert guide.quantiles(params, 0.3)["sigma"].shape == ()


def test_latents_are_in_the_models_order_where_a_start_is_looked_for():
    def model():
        numpyro.sample("b", dist.Normal(0.0, 1.0))
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("above", jnp.where(a > 1.5, 0.0, -jnp.inf))

    guide = NaturalGaussianGuide(model, init_loc_fn=init_to_sample)
    handlers.seed(guide.set_up, 0)()
    assert [site.name for site in guide.sites] == ["b", "a"]


def test_parameters_of_other_latents_are_refused_with_what_to_do():
    def heights(group, y=None):
        with numpyro.plate("groups", 3):
            height = numpyro.sample("height", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(group)):
            numpyro.sample("y", dist.Normal(height[group], 1.0), obs=y)

    def predicted(guide):
        params = {"auto_posterior": families.Diagonal(jnp.arange(3.0), jnp.full(3, 0.01))}
        predictive = Predictive(heights, guide=guide, params=params, num_samples=400)
        return predictive(jax.random.key(1), np.array([2, 0]))

    guide = NaturalGaussianGuide(heights)
    with pytest.raises(ValueError, match="of 3 latents, and its model has 5.*once with its data"):
        predicted(guide)
    guide = NaturalGaussianGuide(heights)
    with handlers.seed(rng_seed=0):
        guide(np.array([2, 0]), np.zeros(2))
    np.testing.assert_allclose(predicted(guide)["y"].mean(0), [2.0, 0.0], atol=0.6)


# -- checkpoints ----------------------------------------------------------------------


def _pickled(state, path, new):
    path.write_bytes(pickle.dumps(state))
    return pickle.loads(path.read_bytes())


def _by_orbax(state, path, new):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    with checkpoint.StandardCheckpointer() as manager:
        manager.save(path, state)
        manager.wait_until_finished()
        return manager.restore(path, new)


def _leaf_by_leaf(state, path, new):
    """As by any format that holds arrays, given a state of the same structure."""
    np.savez(path.with_suffix(".npz"), *jax.tree.leaves(state._replace(rng_key=None)))
    with np.load(path.with_suffix(".npz")) as file:
        leaves = [jnp.asarray(file[name]) for name in file.files]
    structure = jax.tree.structure(new._replace(rng_key=None))
    return jax.tree.unflatten(structure, leaves)._replace(rng_key=state.rng_key)


@pytest.mark.slow
@pytest.mark.parametrize("through", [_pickled, _leaf_by_leaf, _by_orbax])
def test_a_saved_state_goes_on_in_a_new_object_bit_for_bit(through, tmp_path):
    """Snngm's adaptive state, Adam's moments, the random key and the number of steps."""

    def model(y):
        slope = numpyro.param("slope", jnp.array(0.5))
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(mu[0] + slope * mu[1], 1.0), obs=y)

    def new_svi():
        return StatefulSVI(
            model, NaturalGaussianGuide(model), Snngm(), Trace_ELBO(), rng_key=jax.random.key(1)
        )

    y = jnp.asarray(Y)
    svi = new_svi()
    for _ in range(3):
        svi.step(y)
    fresh = new_svi()
    fresh.state = through(svi.state, tmp_path / "state", svi.init(jax.random.key(2), y))
    with pytest.raises(RuntimeError, match="after the first"):
        fresh.params  # noqa: B018
    for _ in range(3):
        assert svi.step(y) == fresh.step(y)
    for a, b in zip(jax.tree.leaves(svi.state), jax.tree.leaves(fresh.state), strict=True):
        assert a.dtype == b.dtype and (a == b).all()


# -- in stock SVI ---------------------------------------------------------------------


def test_forward_mode_differentiation_gives_the_same_step(location):
    svi = SVI(location, NaturalGaussianGuide(location), Snngm(0.01), Trace_ELBO())
    state = svi.init(jax.random.key(0), jnp.asarray(Y))
    update = jax.jit(svi.update, static_argnames="forward_mode_differentiation")
    reverse, _ = update(state, jnp.asarray(Y))
    forward, _ = update(state, jnp.asarray(Y), forward_mode_differentiation=True)
    for a, b in zip(
        jax.tree.leaves(svi.get_params(reverse)),
        jax.tree.leaves(svi.get_params(forward)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)  # rounding


# -- the stateful SVI -----------------------------------------------------------------


def test_step_is_init_and_update(location):
    stock = SVI(location, NaturalGaussianGuide(location), Snngm(0.01), Trace_ELBO())
    state, expected = stock.init(jax.random.key(3), jnp.asarray(Y)), []
    update = jax.jit(stock.update)
    for _ in range(3):
        state, loss = update(state, jnp.asarray(Y))
        expected.append(float(loss))
    guide = NaturalGaussianGuide(location)
    svi = StatefulSVI(location, guide, Snngm(0.01), Trace_ELBO(), rng_key=jax.random.key(3))
    losses = [float(svi.step(jnp.asarray(Y))) for _ in range(3)]
    # Two programs: sums in another order.
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert guide.median(svi.params)["mu"].shape == ()


def test_step_compiles_once_for_arguments_of_one_shape():
    calls = []

    def model(y, scale, flag=True):
        calls.append(1)
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, scale if flag else 1.0), obs=y)

    guide = NaturalGaussianGuide(model)
    svi = StatefulSVI(model, guide, Snngm(0.01), Trace_ELBO(), rng_key=jax.random.key(0))
    svi.step(jnp.asarray(Y), 1.0)
    compiled = len(calls)
    svi.step(jnp.asarray(Y + 1), 2.0)  # arrays and floats may change
    assert len(calls) == compiled
    svi.step(jnp.asarray(Y), 1.0, flag=False)  # anything else is a constant
    assert len(calls) > compiled


def test_fixed_supports_in_a_scan_are_not_taken_for_dynamic_ones(numpyro_backend):
    """What a scan gives seems to depend on everything."""

    def model(low):
        def step(carry, _):
            return numpyro.sample("x", dist.Uniform(low(carry), 2.0)), None

        first = numpyro.sample("first", dist.Uniform(0.0, 1.0))
        scan(step, first, jnp.arange(3.0))

    guide = NaturalGaussianGuide(model)
    assert handlers.seed(guide, 0)(lambda before: 0.0)["x"].shape == (3,)
    with pytest.raises(ValueError, match=r"latent site 'x' depends on other latents.*scan"):
        handlers.seed(NaturalGaussianGuide(model), 0)(lambda before: 0.1 * before)
