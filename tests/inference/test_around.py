"""Handlers around ``fit`` and around a result's methods, and models that differ from run to run."""

import importlib

import numpy as np
import pytest

Y = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture(params=["pyro", "numpyro"])
def ppl(request):
    """Return a PPL, its handlers, our package for it, and data."""
    name = request.param
    library = importlib.import_module(name)
    found = importlib.import_module("pyro.poutine" if name == "pyro" else "numpyro.handlers")
    array = importlib.import_module("torch" if name == "pyro" else "jax.numpy").asarray
    return library, found, importlib.import_module(f"{name}_ngvi"), array


def model_of(library):
    dist = importlib.import_module(f"{library.__name__}.distributions")

    def model(y):
        mean = library.sample("mean", dist.Normal(0.0, 100.0))
        shift = library.sample("shift", dist.Normal(0.0, 1.0))
        with library.plate("rows", len(y)):
            library.sample("y", dist.Normal(mean + shift, 1.0), obs=y)

    return model


def stddevs(result):
    return np.asarray(result.posterior.variance, float) ** 0.5


def test_they_are_the_models_and_a_result_refuses_others(ppl):
    library, handlers, ngvi, array = ppl
    condition = handlers.condition(data={"shift": array(0.0)})
    with handlers.seed(rng_seed=0), condition, handlers.scale(scale=4.0):
        result = ngvi.fit(model_of(library), array(Y), progress_bar=False)
        assert result.sample(10)["mean"].shape == (10,)
        with pytest.raises(ValueError, match=r"\.scale is around result.loo"):
            result.loo()
    np.testing.assert_allclose(stddevs(result), [12**-0.5], rtol=0.01)
    assert result.converged and result.predictive(array(Y), num_samples=5)
    with handlers.scale(scale=4.0), handlers.block():  # which hides the model from it
        alone = ngvi.fit(handlers.block(model_of(library), hide=[]), array(Y), progress_bar=False)
    np.testing.assert_allclose(stddevs(alone), [1.1545, 1.0], rtol=0.01)


def test_what_is_not_of_a_model_is_refused(ppl):
    library, handlers, ngvi, array = ppl
    model = model_of(library)
    with library.plate("others", 2), pytest.raises(ValueError, match="plate is around fit"):
        ngvi.fit(model, array(Y), progress_bar=False)
    with pytest.raises(ValueError, match="collapse is around fit"), handlers.collapse():
        ngvi.fit(model, array(Y), progress_bar=False)
    guide = ngvi.NaturalGaussianGuide(model)
    with handlers.scale(scale=4.0), pytest.raises(ValueError, match="scale is around fit"):
        ngvi.fit(model, array(Y), guide=guide, progress_bar=False)
    for hidden in ({"hide": ["mean"]}, {"hide_fn": lambda site: not site["is_observed"]}):
        refused = pytest.raises(ValueError, match="block is around fit")
        with handlers.scale(scale=4.0), handlers.block(**hidden), refused:
            ngvi.fit(model, array(Y), progress_bar=False)
        with handlers.block(**hidden), handlers.seed(rng_seed=0):
            assert ngvi.fit(model, array(Y), progress_bar=False, effort="quick").converged


@pytest.mark.parametrize("kind", ["key", "state"])
def test_models_that_differ_from_run_to_run(kind):
    numpyro, dist = pytest.importorskip("numpyro"), importlib.import_module("numpyro.distributions")
    from numpyro_ngvi import fit

    def model(y):
        noise = 0.0
        if kind == "key":
            noise = importlib.import_module("jax").random.normal(numpyro.prng_key())
        else:
            numpyro.primitives.mutable("state", {"count": 0.0})
        mean = numpyro.sample("mean", dist.Normal(0.0, 100.0))
        numpyro.sample("y", dist.Normal(mean + noise, 1.0), obs=y)

    words = {"key": r"at numpyro.prng_key\(\)", "state": "keeps a state, 'state'"}
    with pytest.raises(ValueError, match=words[kind]):
        fit(model, Y, progress_bar=False)
