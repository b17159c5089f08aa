"""The models of the tests, each written once: functions of the adapter of a PPL, in the words of
:class:`tests.ppl.Ppl`, that give a model.

The simplex is a Gaussian's image and not a Dirichlet: in JAX, compiling a sampler of gammas
would take longer than most tests.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.ppl import load
from tests.reference import linear_regression_posterior

NUM_DATA, NUM_GROUPS, SUBSAMPLE = 12, 4, 5

#: Of the weights, and of the responses of a linear regression.
PRIOR_SCALE, NOISE_SCALE = 2.0, 0.5


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Design ``(n, 3)``, groups ``(n,)`` and responses ``(n,)``."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(NUM_DATA, 3))
    group = np.arange(NUM_DATA) % NUM_GROUPS
    return X, group, X.sum(1) + 0.5 * group + 0.3 * rng.normal(size=NUM_DATA)


# -- regressions: latents "weights", data X and y -------------------------------------


def glm(
    ppl: Any,
    likelihood: str,
    prior_scale: float = PRIOR_SCALE,
    noise_scale: float = NOISE_SCALE,
    site: str = "weights",
) -> Any:
    """A generalised linear model of ``X``, ``y`` and ``subsample_size``.

    :param likelihood: ``"gaussian"``, ``"bernoulli"`` or ``"poisson"``.
    """
    dist = ppl.dist
    response = {
        "gaussian": lambda eta: dist.Normal(eta, noise_scale),
        "bernoulli": lambda eta: dist.Bernoulli(logits=eta),
        "poisson": lambda eta: dist.Poisson(ppl.np.exp(eta)),
    }[likelihood]

    def model(X, y=None, subsample_size=None):
        prior = dist.Normal(ppl.array(np.zeros(X.shape[1])), prior_scale)
        weights = ppl.sample(site, prior.to_event(1))
        with ppl.plate("data", len(X), subsample_size=subsample_size) as index:
            obs = None if y is None else y[index]
            ppl.sample("y", response(X[index] @ weights), obs=obs)

    return model


def regression(ppl: Any) -> Any:
    return glm(ppl, "gaussian")


def logistic(ppl: Any) -> Any:
    return glm(ppl, "bernoulli")


def regression_data() -> tuple[np.ndarray, np.ndarray]:
    """``X`` and real responses."""
    X, _, y = data()
    return X, y


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    """``X`` and binary responses."""
    X, _, y = data()
    return X, (y > 0).astype(float)


def exact_posterior(X: Any = None, y: Any = None) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and log evidence of :func:`regression`, by default of its data."""
    X, y = regression_data() if X is None else (X, y)
    return linear_regression_posterior(X, y, PRIOR_SCALE, NOISE_SCALE)


# -- one latent -----------------------------------------------------------------------

#: Responses of :func:`location`, and its exact posterior.
Y = np.array([1.0, 2.0, 4.0, 5.0])
LOCATION_VARIANCE = 1 / (len(Y) + 0.01)
LOCATION_MEAN = LOCATION_VARIANCE * Y.sum()


def location(ppl: Any) -> Any:
    """``y_i ~ N(mu, 1)``, ``mu ~ N(0, 10^2)``."""

    def model(y, subsample_size=None):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y), subsample_size=subsample_size) as index:
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y[index])

    return model


# -- hierarchies ----------------------------------------------------------------------


def eight_schools(ppl: Any) -> Any:
    """Not centred, of ``y`` and ``sigma``: ten latents."""
    dist = ppl.dist

    def model(y, sigma):
        zero = ppl.array(0.0)
        mu = ppl.sample("mu", dist.Normal(zero, 5.0))
        tau = ppl.sample("tau", dist.HalfCauchy(ppl.array(5.0)))
        with ppl.plate("schools", len(y)):
            eta = ppl.sample("eta", dist.Normal(zero, 1.0))
            ppl.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)

    return model


def eight_schools_data() -> tuple[np.ndarray, np.ndarray]:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return y, np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _simplex(ppl: Any) -> Any:
    base = ppl.dist.Normal(ppl.array(np.zeros(2)), 1.0).to_event(1)
    stick_breaking = ppl.dist.transforms.StickBreakingTransform()
    return ppl.dist.TransformedDistribution(base, stick_breaking)


def hierarchy(ppl: Any) -> Any:
    """A positive site, a simplex, a scalar, latents in a plate, and a likelihood in a plate that
    may be subsampled; eight unconstrained latents."""
    dist = ppl.dist

    def hierarchy(X, group, y, subsample_size=None):
        sigma = ppl.sample("sigma", dist.LogNormal(ppl.array(0.0), 0.5))
        weights = ppl.sample("weights", _simplex(ppl))
        centre = ppl.sample("centre", dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("groups", NUM_GROUPS):
            effect = ppl.sample("effect", dist.Normal(centre, 1.0))
        ppl.deterministic("largest", ppl.np.amax(effect, axis=-1, keepdims=True))
        with ppl.plate("data", len(X), subsample_size=subsample_size) as index:
            # Leading dimensions, if any, are those of Pyro's vectorised particles.
            mean = (X[index] * weights).sum(-1) + effect[..., group[index]]
            ppl.sample("y", dist.Normal(mean, sigma), obs=y[index])

    return hierarchy


def mixture(ppl: Any) -> Any:
    """A discrete latent per observation, to be enumerated; six unconstrained latents."""
    dist = ppl.dist

    def mixture(X, group, y, subsample_size=None):
        weights = ppl.sample("weights", _simplex(ppl))
        centre = ppl.sample("centre", dist.Normal(ppl.array(np.zeros(3)), 2.0).to_event(1))
        sigma = ppl.sample("sigma", dist.LogNormal(ppl.array(0.0), 0.5))
        with ppl.plate("data", len(X), subsample_size=subsample_size) as index:
            component = ppl.sample(
                "component", dist.Categorical(weights), infer={"enumerate": "parallel"}
            )
            mean = ppl.vindex(centre)[..., component]
            ppl.sample("y", dist.Normal(mean, sigma), obs=y[index])

    return mixture


def switching(ppl: Any) -> Any:
    """A chain of two states, to be enumerated, whose locations are in a plate; three latents."""
    dist = ppl.dist

    def step(before, stay, loc, y, name=""):
        prob = ppl.np.where(before == 1, stay, 1.0 - stay)
        state = ppl.sample(f"z{name}", dist.Bernoulli(prob), infer={"enumerate": "parallel"})
        mean = ppl.np.where(state == 1, loc[..., 1], loc[..., 0])
        ppl.sample(f"y{name}", dist.Normal(mean, 1.0), obs=y)
        return state

    def switching(y):
        stay = ppl.sample("stay", dist.Uniform(ppl.array(0.0), 1.0))
        with ppl.plate("states", 2):
            loc = ppl.sample("loc", dist.Normal(ppl.array(0.0), 3.0))
        state = ppl.index(1)
        if ppl.is_numpyro:
            scan = importlib.import_module("numpyro.contrib.control_flow").scan
            scan(lambda before, y: (step(before, stay, loc, y), None), state, y)
            return
        for t in ppl.lib.markov(range(len(y))):
            state = step(state, stay, loc, y[t], str(t))

    return switching


def pyro_models() -> SimpleNamespace:
    ppl = load("pyro")
    return SimpleNamespace(hierarchy=hierarchy(ppl), mixture=mixture(ppl))
