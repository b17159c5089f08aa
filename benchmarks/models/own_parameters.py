"""Models with parameters of their own, which are fitted with the posterior."""

import numpy as np

from .entries import codes, columns, design, entry, standard

GROUP = "own_parameters"


def _constraints(ppl):
    return ppl.constraints


def _grouped() -> tuple:
    rng = np.random.default_rng(81)
    x = rng.uniform(-2, 2, 150)
    group = np.arange(150) % 10
    y = 3 * np.sin(2 * x) + rng.normal(size=10)[group] + 0.3 * rng.normal(size=150)
    return x, group, y


def _network(ppl, x, hidden=8):
    """A network whose weights are parameters."""
    rng = np.random.default_rng(82)
    first = ppl.param("w1", ppl.array(rng.normal(size=hidden)))
    bias = ppl.param("b1", ppl.array(rng.normal(size=hidden)))
    second = ppl.param("w2", ppl.array(0.1 * rng.normal(size=hidden)))
    return ppl.tanh(x[:, None] * first + bias) @ second


@entry(GROUP, _grouped)
def network_mean(ppl, x, group, y):
    """A network in the mean, learned noise, effects of groups."""
    mean = _network(ppl, x)
    sigma = ppl.param("sigma", ppl.array(1.0), constraint=_constraints(ppl).positive)
    tau = ppl.sample("tau", ppl.HalfNormal(2.0))
    with ppl.plate("groups", 10):
        effect = ppl.sample("effect", ppl.Normal(0.0, tau))
    ppl.rows(ppl.Normal(mean + effect[group], sigma), y)


def _line() -> tuple:
    X = design(80, 6, 83)
    y = X @ np.linspace(-1, 1, 6) + 0.05 * np.random.default_rng(84).normal(size=80)
    return X, y


@entry(GROUP, _line)
def small_noise(ppl, X, y):
    """The noise is a parameter that starts twenty times too large; the prior's scale another."""
    sigma = ppl.param("sigma", ppl.array(1.0), constraint=_constraints(ppl).positive)
    width = ppl.param("width", ppl.array(10.0), constraint=_constraints(ppl).positive)
    beta = ppl.sample("beta", ppl.Normal(0.0, width).expand([6]).to_event(1))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _schools() -> tuple:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return y, np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@entry(GROUP, _schools)
def empirical_bayes(ppl, y, sigma):
    """Mean and scale of the schools' effects are parameters."""
    mu = ppl.param("mu", ppl.array(0.0))
    tau = ppl.param("tau", ppl.array(5.0), constraint=_constraints(ppl).positive)
    with ppl.plate("schools", len(y)):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
        ppl.sample("y", ppl.Normal(mu + (tau + 0.5) * z, sigma), obs=y)


def _factors() -> tuple:
    rng = np.random.default_rng(85)
    z = rng.normal(size=25)
    loading = np.array([1.0, -0.8, 0.6, 1.5, 0.3])
    return (5 + z[:, None] * loading + 0.4 * rng.normal(size=(25, 5)),)


@entry(GROUP, _factors)
def factor_analysis(ppl, y):
    """One factor a row; loadings, means and noise are parameters."""
    loading = ppl.param("loading", ppl.array(0.1 * np.ones(5)))
    mean = ppl.param("mean", ppl.array(np.zeros(5)))
    sigma = ppl.param("sigma", ppl.array(np.ones(5)), constraint=_constraints(ppl).positive)
    with ppl.plate("rows", y.shape[0]):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
        ppl.sample("y", ppl.Normal(mean + z[:, None] * loading, sigma).to_event(1), obs=y)


def _insects() -> tuple:
    count, spray = columns("datasets", "InsectSprays", "count", "spray")
    return codes(spray), count


@entry(GROUP, _insects)
def sprays(ppl, spray, y):
    """Counts whose dispersion and base rate are parameters."""
    shape = ppl.param("shape", ppl.array(1.0), constraint=_constraints(ppl).positive)
    base = ppl.param("base", ppl.array(0.0))
    with ppl.plate("sprays", 6):
        effect = ppl.sample("effect", ppl.Normal(0.0, 1.0))
    rate = shape / ppl.exp(base + effect[spray])
    ppl.rows(ppl.GammaPoisson(shape, rate), y)


def _kernel_data() -> tuple:
    (level,) = columns("datasets", "LakeHuron", "value")
    return np.arange(25.0) / 5, standard(level[::4])


@entry(GROUP, _kernel_data)
def kernel(ppl, x, y):
    """A Gaussian process at 25 points; length, amplitude and noise are parameters."""
    positive = _constraints(ppl).positive
    length = ppl.param("length", ppl.array(0.3), constraint=positive)
    amplitude = ppl.param("amplitude", ppl.array(0.3), constraint=positive)
    sigma = ppl.param("sigma", ppl.array(1.0), constraint=positive)
    K = ppl.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-4 * ppl.array(_EYE)
    f = amplitude * (ppl.linalg.cholesky(K) @ ppl.normals("white", 25))
    ppl.rows(ppl.Normal(f, sigma), y)


_EYE = np.eye(25)
