"""The posteriors as NumPyro models, with the names and the density of the Stan programs.

Constant factors may differ: a Cauchy prior on a positive parameter is a HalfCauchy. Double
precision (`jax_enable_x64`) is the one to use: the jitter of the Gaussian process is 1e-10.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints

from .data import Conversion, Data, Posterior
from .transformed import CONVERSIONS, INPUTS, JITTER, NAMES


def flat(support: constraints.Constraint, *event_shape: int) -> dist.Distribution:
    """The improper uniform prior of a Stan parameter without one."""
    return dist.ImproperUniform(support, (), event_shape)


def linear_regression(
    X: jax.Array, y: jax.Array, sigma_prior: dist.Distribution | None = None
) -> None:
    """Flat coefficients; the residual sd is flat unless it has a prior."""
    beta = numpyro.sample("beta", flat(constraints.real_vector, X.shape[1]))
    sigma = numpyro.sample("sigma", sigma_prior or flat(constraints.positive))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def kidscore(X: jax.Array, y: jax.Array) -> None:
    linear_regression(X, y, sigma_prior=dist.HalfCauchy(2.5))


def blr(X: jax.Array, y: jax.Array) -> None:
    with numpyro.plate("columns", X.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def kilpisjarvi(
    x: jax.Array,
    y: jax.Array,
    alpha_loc: jax.Array,
    alpha_scale: jax.Array,
    beta_loc: jax.Array,
    beta_scale: jax.Array,
) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(alpha_loc, alpha_scale))
    beta = numpyro.sample("beta", dist.Normal(beta_loc, beta_scale))
    sigma = numpyro.sample("sigma", flat(constraints.positive))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


def autoregression(lags: jax.Array, y: jax.Array) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(0, 10))
    with numpyro.plate("lags", lags.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("times", len(y)):
        numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


def eight_schools_centered(y: jax.Array, sigma: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_noncentered(y: jax.Array, sigma: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(y)):
        theta_trans = numpyro.sample("theta_trans", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", theta_trans * tau + mu)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def gp_pois_regr(x: jax.Array, k: jax.Array) -> None:
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    covariance = alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)
    factor = jnp.linalg.cholesky(covariance + JITTER * jnp.eye(len(x)))
    points = numpyro.plate("points", len(x))
    with points:
        f_tilde = numpyro.sample("f_tilde", dist.Normal(0, 1))
    f = numpyro.deterministic("f", factor @ f_tilde)
    with points:
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def ordered(name: str, prior: dist.Distribution, support: constraints.Constraint) -> jax.Array:
    """A vector with the density of `prior`, restricted to an ordered support."""
    value = numpyro.sample(name, flat(support, *prior.event_shape))
    numpyro.factor(f"{name}_prior", prior.log_prob(value))
    return value


def low_dim_gauss_mix(y: jax.Array) -> None:
    prior = dist.Normal(0, 2).expand([2]).to_event(1)
    mu = ordered("mu", prior, constraints.ordered_vector)
    with numpyro.plate("components", 2):
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def forward(transitions: jax.Array, emissions: jax.Array) -> jax.Array:
    """Log likelihood of a hidden Markov chain that starts with weight one in every state.

    :param transitions: probabilities, from rows to columns.
    :param emissions: log densities of the observations, times x states.
    """
    log_transitions = jnp.log(transitions)

    def step(weights: jax.Array, emission: jax.Array) -> tuple[jax.Array, None]:
        return logsumexp(weights[:, None] + log_transitions, axis=0) + emission, None

    weights, _ = jax.lax.scan(step, emissions[0], emissions[1:])
    return logsumexp(weights)


def hmm_example(y: jax.Array) -> None:
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.ones(2)))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.ones(2)))
    prior = dist.Normal(jnp.array([3.0, 10.0]), 1).to_event(1)
    mu = ordered("mu", prior, constraints.positive_ordered_vector)
    emissions = dist.Normal(mu, 1).log_prob(y[:, None])
    numpyro.factor("y", forward(jnp.stack([theta1, theta2]), emissions))


def hmm_drive_0(y: jax.Array, concentrations: jax.Array) -> None:
    theta1 = numpyro.sample("theta1", dist.Dirichlet(concentrations[0]))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(concentrations[1]))
    prior = dist.Normal(jnp.array([0.0, 3.0]), 1).to_event(1)
    phi = ordered("phi", prior, constraints.positive_ordered_vector)
    lambda_ = ordered("lambda", prior, constraints.positive_ordered_vector)
    # One row a state, one column for each of the two series.
    rates = jnp.stack([phi, lambda_], axis=1)
    emissions = dist.Exponential(rates).to_event(1).log_prob(y[:, None])
    numpyro.factor("y", forward(jnp.stack([theta1, theta2]), emissions))


MODELS: dict[str, Callable] = {
    "arK": autoregression,
    "blr": blr,
    "earn_height": linear_regression,
    "eight_schools_centered": eight_schools_centered,
    "eight_schools_noncentered": eight_schools_noncentered,
    "gp_pois_regr": gp_pois_regr,
    "hmm_drive_0": hmm_drive_0,
    "hmm_example": hmm_example,
    "kidscore_interaction": kidscore,
    "kidscore_interaction_c": linear_regression,
    "kidscore_momhs": kidscore,
    "kidscore_momhsiq": kidscore,
    "kidscore_momiq": kidscore,
    "kilpisjarvi": kilpisjarvi,
    "logearn_height": linear_regression,
    "logearn_height_male": linear_regression,
    "logmesquite": linear_regression,
    "logmesquite_logvolume": linear_regression,
    "low_dim_gauss_mix": low_dim_gauss_mix,
    "mesquite": linear_regression,
    "nes": linear_regression,
}


def build(model_name: str, data: Data) -> tuple[Callable, tuple]:
    """The model and its arguments."""
    return MODELS[model_name], tuple(jnp.asarray(value) for value in INPUTS[model_name](data))


def posterior(name: str) -> Posterior:
    model_name = name.partition("-")[2]
    conversion = CONVERSIONS.get(model_name, Conversion())
    return Posterior(name, partial(build, model_name), conversion)


POSTERIORS: dict[str, Posterior] = {name: posterior(name) for name in NAMES}
