"""The model and its inference in Pyro."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_feasible

from examples.demo.settings import INIT_SCALE, PRIOR_SCALE, Method, cosine
from pyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide, Snngm

NAME = "Pyro"

# The work between two synchronisations is too small to share: a second thread gains nothing,
# and costs a factor of ten where another program uses the cores.
torch.set_num_threads(1)


def model(X, y=None):
    """Logistic regression."""
    prior = dist.Normal(0.0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1)
    weights = pyro.sample("weights", prior)
    with pyro.plate("loans", X.shape[0]):
        pyro.sample("bad", dist.Bernoulli(logits=X @ weights), obs=y)


class Inference:
    """One guide with its optimiser, ready to step."""

    def __init__(self, method: Method, X: np.ndarray, y: np.ndarray, num_steps: int, seed: int):
        self.parameters, self.random_state = None, torch.Generator().manual_seed(seed).get_state()
        self.data = torch.from_numpy(X), torch.from_numpy(y)
        start = {"init_loc_fn": init_to_feasible, "init_scale": INIT_SCALE}
        self.scheduled, loss = False, Trace_ELBO()
        if method.optimiser == "BLR":
            self.guide = NaturalGaussianGuide(model, **start)
            self.optimiser, loss = BLR(), NaturalELBO()
        elif method.optimiser == "Snngm":
            self.guide = NaturalGaussianGuide(model, **start)
            rate = method.learning_rate
            self.optimiser = Snngm({"lr": lambda step: cosine(rate, step, num_steps)})
        else:
            self.guide = AutoMultivariateNormal(model, **start)
            self.optimiser = pyro.optim.CosineAnnealingLR(
                {
                    "optimizer": torch.optim.Adam,
                    "optim_args": {"lr": method.learning_rate},
                    "T_max": num_steps,
                }
            )
            self.scheduled = True
        self.svi = SVI(model, self.guide, self.optimiser, loss)

    def run(self, num_steps: int) -> None:
        """Take steps."""
        with self._turn():
            for _ in range(num_steps):
                self.svi.step(*self.data)
                if self.scheduled:
                    self.optimiser.step()

    @torch.no_grad()
    def posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the weights."""
        with self._turn():
            posterior = self.guide.get_posterior()
        covariance = posterior.covariance_matrix.double().numpy()
        return posterior.mean.double().numpy().copy(), covariance

    @torch.no_grad()
    def bound_draws(self, num_draws: int, seed: int) -> np.ndarray:
        """Independent one-draw estimates of the bound, by the stock ELBO."""
        with self._turn():
            pyro.set_rng_seed(seed)
            losses = [Trace_ELBO().loss(model, self.guide, *self.data) for _ in range(num_draws)]
        return -np.asarray(losses)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # Pyro has one parameter store and one random state; inferences that take turns need
        # their own.
        torch.set_rng_state(self.random_state)
        with pyro.get_param_store().scope(self.parameters) as self.parameters:
            yield
        self.random_state = torch.get_rng_state()
