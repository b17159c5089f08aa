"""Networks that people have: flax's, nnx's and equinox's as models, with state and mistakes."""

from __future__ import annotations

import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib import module
from numpyro.infer import Trace_ELBO
from numpyro.infer.initialization import init_to_value

from numpyro_ngvi import BLR, IVON, SVI, NaturalELBO, NaturalGaussianGuide, Snngm, fit
from numpyro_ngvi.optim import VOGN
from tests.ppl import slow_but

NUM = 6
METHODS = {
    "Snngm": lambda: (Snngm(), Trace_ELBO()),
    "IVON": lambda: (IVON(), NaturalELBO(1, "stein")),
    "VOGN": lambda: (VOGN(), NaturalELBO(1, "gauss_newton")),
    "BLR": lambda: (BLR(), NaturalELBO(2)),
    "IVON, several draws": lambda: (IVON(), NaturalELBO(3, "stein")),
}
NORMAL = dist.Normal(0.0, 1.0)


def data():
    images = np.random.default_rng(0).normal(size=(NUM, 2)).astype(np.float32)
    return jnp.asarray(images), jnp.arange(NUM) % 2


def classifier(network):
    """A model of images and labels.

    :param network: from images to logits, in the model.
    """

    def model(images, labels=None):
        logits = network(images)
        with numpyro.plate("data", NUM):
            numpyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    return model


def stepped(model, method, num_steps=3):
    guide = NaturalGaussianGuide(model, "diagonal", init_scale=0.1)
    svi = SVI(model, guide, *METHODS[method](), rng_key=jax.random.key(0))
    assert np.isfinite([svi.step(*data()) for _ in range(num_steps)]).all()
    return svi


def linen(name, *args, **options):
    """``numpyro.contrib.module``'s function of this name on a small network of flax."""
    nn = pytest.importorskip("flax.linen")

    class Network(nn.Module):
        is_stateful: bool

        @nn.compact
        def __call__(self, x):
            x = nn.Dense(3)(x)
            if self.is_stateful:
                x = nn.BatchNorm(use_running_average=False)(x)
                x = nn.Dropout(0.5, deterministic=False)(x)
            return nn.Dense(2)(x)

    is_stateful = bool(options.pop("is_stateful", False))
    return getattr(module, name)("net", Network(is_stateful), *args, jnp.ones((1, 2)), **options)


@pytest.mark.parametrize("method", slow_but("IVON", METHODS))
def test_flax_networks_become_models_with_their_state(method):
    def network(images):
        state = {"apply_rng": ["dropout"], "mutable": ["batch_stats"]}
        net = linen("random_flax_module", NORMAL, is_stateful=True, **state)
        return net(images, rngs={"dropout": numpyro.prng_key()})

    svi = stepped(classifier(network), method)
    assert svi.guide.latent_dim == 9 + 8 + 6
    stats = svi.state.mutable_state["net$state"]["batch_stats"]["BatchNorm_0"]
    assert all(np.isfinite(leaf).all() and leaf.all() for leaf in stats.values())


def counting(images, labels=None):
    """A model with a running average and a count of its own, as batch normalisation has."""
    state = numpyro.primitives.mutable("state", {"mean": jnp.zeros(2), "count": jnp.zeros((), int)})
    state["mean"] = 0.5 * state["mean"] + 0.5 * images.mean(0)
    state["count"] = state["count"] + 1
    weight = numpyro.sample("weight", NORMAL.expand([2, 2]).to_event(2))
    with numpyro.plate("data", NUM):
        numpyro.sample("label", dist.Categorical(logits=images @ weight), obs=labels)


@pytest.mark.parametrize("method", slow_but("BLR", METHODS))
def test_a_models_state_goes_from_step_to_step_whatever_the_number_of_draws(method):
    state = stepped(counting, method).state.mutable_state["state"]
    # A run of the set-up, and the three of steps.
    np.testing.assert_allclose(state["mean"], (1 - 0.5**4) * data()[0].mean(0), rtol=1e-5)
    assert state["count"] == 4


@pytest.mark.filterwarnings("ignore:A step was skipped", "ignore:NaturalELBO left out")
def test_a_minibatch_that_is_not_finite_leaves_the_state_as_it_was():
    svi = stepped(counting, "IVON")
    images, labels = data()
    before = svi.state.mutable_state["state"]["mean"]
    svi.step(images.at[1].set(jnp.nan), labels)
    np.testing.assert_array_equal(svi.state.mutable_state["state"]["mean"], before)
    svi.step(images, labels)
    assert not np.array_equal(svi.state.mutable_state["state"]["mean"], before)


def test_flax_state_or_key_that_is_missing_is_named():
    def without(**state):
        def network(images):
            return linen("random_flax_module", NORMAL, is_stateful=True, **state)(images)

        stepped(classifier(network), "IVON")

    with pytest.raises(Exception, match='"batch_stats" in "/BatchNorm_0" but the collection is'):
        without(apply_rng=["dropout"])
    with pytest.raises(Exception, match='Dropout_0 needs PRNG for "dropout"'):
        without(apply_rng=["dropout"], mutable=["batch_stats"])


def test_fit_refuses_a_network_whose_statistics_change_from_run_to_run():
    def network(images):
        state = {"apply_rng": ["dropout"], "mutable": ["batch_stats"]}
        net = linen("flax_module", is_stateful=True, **state)
        return net(images, rngs={"dropout": numpyro.prng_key()}) * numpyro.sample("size", NORMAL)

    with pytest.raises(ValueError, match="keeps a state, 'net.state'"):
        fit(classifier(network), *data(), progress_bar=False)


def test_a_part_of_a_flax_network_without_a_prior_is_an_ordinary_parameter():
    def network(images):
        return linen("random_flax_module", {"Dense_1.kernel": NORMAL})(images)

    svi = stepped(classifier(network), "IVON")
    assert svi.guide.latent_dim == 6
    parameters = svi.params["net$params"]
    assert parameters["Dense_0"]["bias"].any()  # zero before its first step


def test_a_network_without_latents_says_what_gives_it_a_prior():
    def network(images):
        return images @ numpyro.param("net$params", jnp.ones((2, 2)))

    with pytest.raises(RuntimeError, match=r"'net\$params'.*no posterior.*random_flax_module"):
        stepped(classifier(network), "IVON")


def test_a_network_that_is_no_part_of_the_model_is_thought_of():
    with pytest.raises(RuntimeError, match="calls a network.*of its weights by random_flax_module"):
        stepped(classifier(lambda images: images @ jnp.ones((2, 2))), "IVON")


def test_nnx_networks_become_models():
    nnx = pytest.importorskip("flax.nnx")

    def network(images):
        return module.random_nnx_module("net", nnx.Linear(2, 2, rngs=nnx.Rngs(0)), NORMAL)(images)

    assert stepped(classifier(network), "VOGN").guide.latent_dim == 6


def test_equinox_networks_become_models():
    eqx = pytest.importorskip("equinox")

    def network(images):
        net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        return jax.vmap(module.random_eqx_module("net", net, NORMAL))(images)

    assert stepped(classifier(network), "VOGN").guide.latent_dim == 6


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (300.0, "observed site 'y' has log density -inf"),
        (2.0, "the log density of observed site 'y' overflows in float16"),
    ],
)
def test_half_precision_that_overflows_is_an_error_of_the_start(size, words):
    half = jnp.float16

    def model(y):
        weight = numpyro.sample("weight", NORMAL)
        outputs = half(size) * weight.astype(half) * half(3.0)
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(outputs, half(1.0)), obs=y)

    guide = NaturalGaussianGuide(
        model, "diagonal", init_loc_fn=init_to_value(values={"weight": jnp.ones(())})
    )
    with pytest.raises(ValueError, match=words), handlers.seed(rng_seed=0):
        guide(jnp.full(8, 200.0, half))  # 160,000 nats
