"""The log density is what NumPyro's own ELBOs compute, and what the formulas say."""

from __future__ import annotations

import functools

import pytest
from scipy import stats

from tests import models
from tests.models import SUBSAMPLE
from tests.once import once
from tests.ppl import QUICKLY, load, slow_but

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO
from numpyro.infer.autoguide import AutoGuideList

from numpyro_ngvi import NaturalGaussianGuide
from numpyro_ngvi.tracing import LogDensity, sites_without_hessian
from numpyro_ngvi.tracing.traced import Traced

SITE = "_auto_latent"


@pytest.fixture(autouse=True)
def _float64(numpyro_backend):
    return numpyro_backend


def quickly(function):
    return jax.jit(function, compiler_options=QUICKLY)


def arguments():
    return tuple(map(jnp.asarray, models.data()))


@functools.cache
def prepared(name):
    """A model of :mod:`tests.models` and its guide, which is set up."""
    model = getattr(models, name)(load("numpyro"))
    guide = NaturalGaussianGuide(model, init_scale=0.3)
    return model, guide, parameters(guide, *arguments())


def parameters(guide, *args):
    return load("numpyro").set_up(guide, *args)


def set_up(model, *args, guide=None, key=3):
    """A guide that is set up, the parameters, and the log density for one minibatch."""
    guide = NaturalGaussianGuide(model, init_scale=0.3) if guide is None else guide
    params = parameters(guide, *args)
    return guide, params, LogDensity(model, guide, args, {}, random.key(key))


def test_a_plate_inside_scan_is_a_plate_of_latents():
    """Of which there is no site in the trace, so that stock guides fail; NUTS does not."""

    def step(before, y):
        with numpyro.plate("chains", 2):
            z = numpyro.sample("z", dist.Normal(before, 1.0))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)
        return z, None

    def model(y):
        scan(step, jnp.zeros(2), y)

    y = jnp.array([[0.3, 1.0], [0.7, 0.2], [0.1, -0.5]])
    guide, params, density = set_up(model, y)
    (site,) = guide.sites
    assert [(plate.name, plate.axis) for plate in site.plates] == [("chains", 1)]
    z = 0.1 * jnp.arange(6.0).reshape(3, 2)
    before = jnp.concatenate([jnp.zeros((1, 2)), z[:-1]])
    expected = stats.norm.logpdf(z, before).sum() + stats.norm.logpdf(y, z).sum()
    found = density({SITE: z.reshape(-1)}, params, random.key(0))
    assert float(found) == pytest.approx(expected, rel=1e-12)


# -- the value ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "subsample_size"),
    [
        ("hierarchy", SUBSAMPLE),
        ("mixture", None),
        pytest.param("hierarchy", None, marks=pytest.mark.slow),
        pytest.param("mixture", SUBSAMPLE, marks=pytest.mark.slow),
    ],
)
def test_the_log_density_is_the_model_term_of_the_stock_elbo(name, subsample_size):
    (model, guide, params), args = prepared(name), arguments()
    kwargs = {"subsample_size": subsample_size}
    stock = TraceEnum_ELBO() if name == "mixture" else Trace_ELBO()

    @quickly
    def both(key):
        # The stock ELBO's own draw: it splits its key for the model and the guide.
        seeded = handlers.seed(handlers.substitute(guide, data=params), random.split(key)[1])
        draw = handlers.trace(seeded).get_trace(*args, **kwargs)[SITE]["value"]
        loss = stock.loss(key, params, model, guide, *args, **kwargs)
        density = LogDensity(model, guide, args, kwargs, key)
        ours = density({SITE: draw}, params, random.key(9))
        return ours, params["auto_posterior"].log_prob(draw) - loss

    for seed in range(3):
        actual, expected = both(random.key(seed))
        assert float(actual) == pytest.approx(float(expected), rel=1e-12, abs=1e-8)


def subsampled(y, size=3):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y), subsample_size=size) as index:
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y[index])


def of_list(model, **options):
    guide = AutoGuideList(model)
    guide.append(NaturalGaussianGuide(model, **options))
    return guide


@pytest.mark.parametrize("make_guide", [NaturalGaussianGuide, of_list], ids=["alone", "list"])
@pytest.mark.parametrize("plates_of", slow_but("model", ["model", "guide"]))
def test_the_key_chooses_the_minibatch_whatever_the_draw(make_guide, plates_of):
    y = 10.0 ** jnp.arange(12.0)  # every subset has a sum of its own
    plates = lambda y: numpyro.plate("data", len(y), subsample_size=3)  # noqa: E731
    guide = make_guide(subsampled, create_plates=plates if plates_of == "guide" else None)
    _, params, _ = set_up(subsampled, y, guide=guide)

    @quickly
    def slope(x, key, guide_key):
        density = LogDensity(subsampled, guide, (y,), {}, key)
        return jax.grad(lambda x: density({SITE: x[None]}, params, guide_key))(x)

    first, second = random.key(3), random.key(4)
    # The gradient is affine in x, with the minibatch's sum as its constant.
    at_zero = slope(0.0, first, random.key(0))
    assert slope(0.0, first, random.key(1)) == at_zero
    assert float(slope(2.0, first, random.key(2))) == pytest.approx(float(at_zero) - 2.0 * (12 + 1))
    assert slope(0.0, second, random.key(0)) != at_zero


# -- differentiability --------------------------------------------------------------------


def smooth(x):
    """A ``custom_vjp`` whose backward pass is differentiable."""

    @jax.custom_vjp
    def function(x):
        return -0.5 * x**2

    function.defvjp(lambda x: (function(x), x), lambda x, cotangent: (-cotangent * x,))
    return function(x)


@pytest.mark.parametrize(
    ("likelihood", "expected"), [(once, ["second"]), (smooth, []), (jnp.sin, [])]
)
def test_the_sites_without_a_hessian_are_named(likelihood, expected):
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("first", jnp.cos(x))
        numpyro.factor("second", likelihood(x))

    _, params, density = set_up(model)
    assert sites_without_hessian(density, {SITE: jnp.ones(1)}, params, random.key(0)) == expected


def test_a_traced_function_holds_another_array_in_the_place_of_one():
    old, new = jnp.arange(3.0), jnp.array([5.0, 7.0, 9.0])
    traced = Traced(lambda x: x * jnp.sin(old) + old.sum())
    operations, held = traced.at(1.0)
    traced.replace(old, new)
    found = operations(traced.at(1.0)[1], 2.0)
    assert traced.at(1.0)[0] is operations and len(held) == 1
    assert found.tolist() == pytest.approx((2.0 * jnp.sin(new) + 21.0).tolist())
