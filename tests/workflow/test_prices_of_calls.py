"""A call of a result that runs the model more than a few times says before how often, at most."""

import inspect
import logging
import time

import numpy as np
import pytest

from ngvi.inference.problem import Cost, Prices
from tests.inference.results import result
from tests.ppl import PPLS, load

X, Y = np.linspace(-1.0, 1.0, 5), np.array([1.0, 0.0, 2.0, 1.0, 3.0])
#: Evaluations that nobody prices: a look at the model, its height, a block that is filled up.
FEW = 300
#: Names that are called with arguments.
CALLS = {
    "load": lambda result, path: type(result).load(path, result.model, *result.args),
    "nuts": lambda result, path: result.nuts(
        num_samples=4, num_warmup=0, num_chains=2, progress_bar=False
    ),
    "predictive": lambda result, path: result.predictive(num_samples=150),
    "posterior_of": lambda result, path: None,  # of other optima, which there are none of here
    "sample_groups": lambda result, path: None,  # of a guide by modes
    "save": lambda result, path: result.save(path),
    "to_arviz": lambda result, path: result.to_arviz(num_samples=150),
    "update": lambda result, path: result.update(*result.args),
    "whitened_density": lambda result, path: result.whitened_density(),
    "with_draws": lambda result, path: result.with_draws("corrected"),
    "without": lambda result, path: result.without(0),
}


@pytest.fixture(params=PPLS)
def ppl(request):
    """The adapter of either PPL, in single precision, as JAX's callbacks run beside this thread."""
    return load(request.param)


def counted(ppl, seen):
    """An identity that notes each of its values, which it cannot take together."""
    if ppl.is_numpyro:
        import jax

        @jax.custom_jvp
        def identity(x):
            def host(value):
                seen.append(1)
                return np.asarray(value)

            like = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(host, like, x, vmap_method="sequential")

        identity.defjvp(lambda at, steps: (identity(at[0]), steps[0]))
        return identity

    def identity(x):
        seen.append(float(x.detach().sum()))  # which no batch of runs has
        return x

    return identity


def model_of(ppl, identity):
    def model(x, y=None):
        a = ppl.sample("a", ppl.dist.Normal(ppl.array(0.0), 1.0))
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(0.0), 1.0))
        rate = ppl.np.exp(identity(a + b * x))
        with ppl.plate("rows", len(x)):
            ppl.sample("y", ppl.dist.Poisson(rate), obs=y)

    return model


def slow(ppl, seen):
    """A result of such a model, at some Gaussian, whose evaluations are known to take long."""
    prices = Prices(value=0.05, gradient=0.15)
    known = {"cost": Cost(400, 0, 300, prices=prices), "seconds": 60.0}
    at = np.array([0.2, 0.6]), 0.4 * np.eye(2)
    return result(
        ppl, model_of(ppl, counted(ppl, seen)), (ppl.array(X), ppl.array(Y)), at=at, **known
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_call_of_a_result_says_its_price(ppl, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ngvi")
    seen: list = []
    made, path = slow(ppl, seen), tmp_path / "result.ngvi"
    made.save(path)
    for name in [one for one in dir(type(made)) if not one.startswith("_")]:
        seen.clear(), caplog.clear()
        if name in CALLS:
            answer = CALLS[name](made, path)
        else:
            answer = getattr(made, name)
            answer = answer() if inspect.ismethod(answer) else answer
        said = sum(one.args[1] for one in caplog.records if "at most" in one.msg)
        said += getattr(answer, "num_gradients", 0) if name == "nuts" else 0  # its bar counts them
        assert len(seen) <= 3 * said + FEW, name
    assert len(made.diagnostics.log_weights) == 240  # a fifth of the minute


def test_a_price_above_the_fits_is_a_warning(ppl):
    with pytest.warns(UserWarning, match="predictive runs the model up to 1,300 times, about 65 s"):
        slow(ppl, []).predictive(num_samples=1300)


def test_draws_that_have_runs_of_their_own_are_priced_by_a_run(pyro_backend, caplog):
    def slept(rate):
        time.sleep(0.02)
        return rate

    data, prices = [pyro_backend.array(one) for one in (X, Y)], Prices(value=1e-6, gradient=1e-6)
    known = {"cost": Cost(400, 0, 300, prices=prices), "seconds": 60.0}
    at = np.array([0.2, 0.6]), 0.4 * np.eye(2)
    made = result(pyro_backend, model_of(pyro_backend, slept), data, at=at, **known)
    caplog.set_level(logging.INFO, "ngvi")
    made.predictive(num_samples=50)
    made.to_arviz(num_samples=50, prior=False)
    said = [one.args for one in caplog.records if "at most" in one.msg]
    assert [args[:2] for args in said] == [("predictive", 50), ("to_arviz", 100)]
    for _, runs, seconds, _ in said:
        assert 0.02 * runs <= seconds < 0.04 * runs


def test_a_prediction_is_priced_by_its_own_rows(numpyro_backend, caplog):
    known = {"cost": Cost(400, 0, 300, prices=Prices(value=1e-3)), "seconds": 60.0}
    at, data = (np.array([0.2, 0.6]), 0.4 * np.eye(2)), map(numpyro_backend.array, (X, Y))
    made = result(numpyro_backend, model_of(numpyro_backend, abs), tuple(data), at=at, **known)
    caplog.set_level(logging.INFO, "ngvi")
    for count, seconds in ((5, 0.02), (5_000, 10.0)):
        caplog.clear()
        made.predictive(numpyro_backend.array(np.linspace(-1.0, 1.0, count)), num_samples=20)
        (said,) = [one for one in caplog.records if "at most" in one.msg]
        np.testing.assert_allclose(said.args[2], seconds)
        assert ("less than a second" in said.getMessage()) == (count == 5)


def test_a_price_has_compilation_in_it(ppl, caplog):
    fitted = ppl.fit(model_of(ppl, lambda rate: rate), ppl.array(X), ppl.array(Y), draws="gaussian")
    caplog.set_level(logging.INFO, "ngvi")
    fitted.to_arviz(num_samples=100)
    (said,) = [one.getMessage() for one in caplog.records if "to_arviz" in one.msg % one.args]
    assert ("and compilation as much as" in said) == ppl.is_numpyro
    assert (fitted.cost.prices.program > 0) == ppl.is_numpyro
