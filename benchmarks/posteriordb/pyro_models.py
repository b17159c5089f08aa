"""The posteriors as Pyro models, with the names and the density of the Stan programs.

As in `numpyro_models`, constant factors may differ. The arguments are in torch's default
precision, and double precision (`torch.set_default_dtype`) is the one to use: see there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch.distributions import biject_to

from .data import Conversion, Data, Posterior
from .transformed import CONVERSIONS, INPUTS, JITTER, NAMES


class Flat(dist.ImproperUniform):
    """ImproperUniform that Pyro's autoguides can start from: their initial values sample.

    A sample is an arbitrary point of the support.
    """

    def sample(self, sample_shape: tuple[int, ...] = ()) -> torch.Tensor:
        to_support = biject_to(self.support)
        shape = to_support.inverse_shape(self.shape(torch.Size(sample_shape)))
        return to_support(4 * torch.rand(shape) - 2)


def flat(support: constraints.Constraint, *event_shape: int) -> dist.Distribution:
    """The improper uniform prior of a Stan parameter without one."""
    return Flat(support, torch.Size(), torch.Size(event_shape))


def linear_regression(
    X: torch.Tensor, y: torch.Tensor, sigma_prior: dist.Distribution | None = None
) -> None:
    """Flat coefficients; the residual sd is flat unless it has a prior."""
    beta = pyro.sample("beta", flat(constraints.real_vector, X.shape[1]))
    sigma = pyro.sample("sigma", sigma_prior or flat(constraints.positive))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def kidscore(X: torch.Tensor, y: torch.Tensor) -> None:
    linear_regression(X, y, sigma_prior=dist.HalfCauchy(torch.tensor(2.5)))


def blr(X: torch.Tensor, y: torch.Tensor) -> None:
    with pyro.plate("columns", X.shape[1]):
        beta = pyro.sample("beta", dist.Normal(0.0, 10.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(10.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def kilpisjarvi(
    x: torch.Tensor,
    y: torch.Tensor,
    alpha_loc: torch.Tensor,
    alpha_scale: torch.Tensor,
    beta_loc: torch.Tensor,
    beta_scale: torch.Tensor,
) -> None:
    alpha = pyro.sample("alpha", dist.Normal(alpha_loc, alpha_scale))
    beta = pyro.sample("beta", dist.Normal(beta_loc, beta_scale))
    sigma = pyro.sample("sigma", flat(constraints.positive))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


def autoregression(lags: torch.Tensor, y: torch.Tensor) -> None:
    alpha = pyro.sample("alpha", dist.Normal(0.0, 10.0))
    with pyro.plate("lags", lags.shape[1]):
        beta = pyro.sample("beta", dist.Normal(0.0, 10.0))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    with pyro.plate("times", len(y)):
        pyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


def eight_schools_centered(y: torch.Tensor, sigma: torch.Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_noncentered(y: torch.Tensor, sigma: torch.Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta_trans = pyro.sample("theta_trans", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", theta_trans * tau + mu)
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


def gp_pois_regr(x: torch.Tensor, k: torch.Tensor) -> None:
    rho = pyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = pyro.sample("alpha", dist.HalfNormal(2.0))
    covariance = alpha**2 * torch.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)
    factor = torch.linalg.cholesky(covariance + JITTER * torch.eye(len(x)))
    points = pyro.plate("points", len(x))
    with points:
        f_tilde = pyro.sample("f_tilde", dist.Normal(0.0, 1.0))
    f = pyro.deterministic("f", factor @ f_tilde)
    with points:
        pyro.sample("k", dist.Poisson(f.exp()), obs=k)


def ordered(name: str, prior: dist.Distribution, support: constraints.Constraint) -> torch.Tensor:
    """A vector with the density of `prior`, restricted to an ordered support."""
    value = pyro.sample(name, flat(support, *prior.event_shape))
    pyro.factor(f"{name}_prior", prior.log_prob(value))
    return value


def low_dim_gauss_mix(y: torch.Tensor) -> None:
    prior = dist.Normal(0.0, 2.0).expand([2]).to_event(1)
    mu = ordered("mu", prior, constraints.ordered_vector)
    with pyro.plate("components", 2):
        sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
    theta = pyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(torch.stack([theta, 1 - theta]))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def hidden_markov(
    transitions: torch.Tensor, emissions: dist.Distribution, num_steps: int
) -> dist.DiscreteHMM:
    """A chain whose first state has equal probabilities; in Stan they are all one.

    DiscreteHMM moves once before the first observation, here from anywhere to anywhere.
    """
    size = len(transitions)
    later = transitions.log().expand(num_steps - 1, size, size)
    logits = torch.cat([torch.zeros(1, size, size), later])
    return dist.DiscreteHMM(torch.zeros(size), logits, emissions)


def hmm_example(y: torch.Tensor) -> None:
    theta1 = pyro.sample("theta1", dist.Dirichlet(torch.ones(2)))
    theta2 = pyro.sample("theta2", dist.Dirichlet(torch.ones(2)))
    prior = dist.Normal(torch.tensor([3.0, 10.0]), 1.0).to_event(1)
    mu = ordered("mu", prior, constraints.positive_ordered_vector)
    chain = hidden_markov(torch.stack([theta1, theta2]), dist.Normal(mu, 1.0), len(y))
    pyro.sample("y", chain, obs=y)


def hmm_drive_0(y: torch.Tensor, concentrations: torch.Tensor) -> None:
    theta1 = pyro.sample("theta1", dist.Dirichlet(concentrations[0]))
    theta2 = pyro.sample("theta2", dist.Dirichlet(concentrations[1]))
    prior = dist.Normal(torch.tensor([0.0, 3.0]), 1.0).to_event(1)
    phi = ordered("phi", prior, constraints.positive_ordered_vector)
    lambda_ = ordered("lambda", prior, constraints.positive_ordered_vector)
    # One row a state, one column for each of the two series.
    emissions = dist.Exponential(torch.stack([phi, lambda_], dim=1)).to_event(1)
    chain = hidden_markov(torch.stack([theta1, theta2]), emissions, len(y))
    pyro.sample("y", chain, obs=y)


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


def to_torch(value: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.get_default_dtype())


def build(model_name: str, data: Data) -> tuple[Callable, tuple]:
    """The model and its arguments."""
    return MODELS[model_name], tuple(to_torch(value) for value in INPUTS[model_name](data))


def posterior(name: str) -> Posterior:
    model_name = name.partition("-")[2]
    conversion = CONVERSIONS.get(model_name, Conversion())
    return Posterior(name, partial(build, model_name), conversion)


POSTERIORS: dict[str, Posterior] = {name: posterior(name) for name in NAMES}
