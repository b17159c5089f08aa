"""The model and its inference in NumPyro."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import Trace_ELBO, init_to_feasible
from numpyro.infer.autoguide import AutoMultivariateNormal

from examples.demo.settings import INIT_SCALE, PRIOR_SCALE, Method
from numpyro_ngvi import BLR, SVI, NaturalELBO, NaturalGaussianGuide, Snngm

NAME = "NumPyro"


def model(X, y=None):
    """Logistic regression."""
    prior = dist.Normal(0.0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1)
    weights = numpyro.sample("weights", prior)
    with numpyro.plate("loans", X.shape[0]):
        numpyro.sample("bad", dist.Bernoulli(logits=X @ weights), obs=y)


class Inference:
    """One guide with its optimiser, ready to step."""

    def __init__(self, method: Method, X: np.ndarray, y: np.ndarray, num_steps: int, seed: int):
        self.data = jnp.asarray(X), jnp.asarray(y)
        start = {"init_loc_fn": init_to_feasible, "init_scale": INIT_SCALE}
        loss = Trace_ELBO()
        if method.optimiser == "BLR":
            self.guide = NaturalGaussianGuide(model, **start)
            optimiser, loss = BLR(), NaturalELBO()
        elif method.optimiser == "Snngm":
            self.guide = NaturalGaussianGuide(model, **start)
            optimiser = Snngm(optax.cosine_decay_schedule(method.learning_rate, num_steps))
        else:
            self.guide = AutoMultivariateNormal(model, **start)
            optimiser = optax.adam(optax.cosine_decay_schedule(method.learning_rate, num_steps))
        key = jax.random.key(seed)
        self.svi = SVI(model, self.guide, optimiser, loss, rng_key=key)

    def run(self, num_steps: int) -> None:
        """Take steps, and wait until they are done."""
        for _ in range(num_steps):
            loss = self.svi.step(*self.data)
        loss.block_until_ready()

    def posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the weights."""
        posterior = self.guide.get_posterior(self.svi.params)
        covariance = np.asarray(posterior.covariance_matrix, np.float64)
        return np.asarray(posterior.mean, np.float64), covariance

    def bound_draws(self, num_draws: int, seed: int) -> np.ndarray:
        """Independent one-draw estimates of the bound, by the stock ELBO."""
        params = self.svi.params

        def loss(key):
            return Trace_ELBO().loss(key, params, model, self.guide, *self.data)

        keys = jax.random.split(jax.random.key(seed), num_draws)
        return -np.asarray(jax.lax.map(loss, keys), np.float64)
