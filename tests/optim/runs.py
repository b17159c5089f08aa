"""Runs of an optimiser, in both packages: on exact expectations, and through stock ``SVI``."""

from __future__ import annotations

import functools

import numpy as np

from tests import reference
from tests.optim.table5 import QUICKLY, driver
from tests.ppl import algorithm, initialised

#: What torch calls NumPyro's options.
PYRO_NAMES = {"step_size": "lr", "precision_step_size": "precision_lr"}


def make(backend, name, **options):
    """An optimiser of either package from the same options."""
    if backend.name == "numpyro":
        return _of_numpyro(name, tuple(options.items()))
    options = {PYRO_NAMES.get(key, key): value for key, value in options.items()}
    return algorithm(backend.package, name)(options)


@functools.cache
def _of_numpyro(name, options):
    # One object for one set of options: its step is compiled once for all tests.
    import numpyro_ngvi

    return algorithm(numpyro_ngvi, name)(**dict(options))


# -- on given moments -----------------------------------------------------------------


class Loop:
    """A rule that sees ``E[grad l]`` and ``E[hess l]`` of its own Gaussian.

    :param moments: a function of ``mu`` and ``Sigma``.
    """

    def __init__(self, backend, optimiser, moments, family, loc, sigma, dtype="float64"):
        self.backend, self.moments, self.family = backend, moments, family
        self.dtype = dtype
        scale = reference.gaussian_from_covariance(family, np.asarray(sigma, float))
        self.run = driver(
            backend, optimiser, {"q": (family, np.asarray(loc, float), scale)}, dtype=dtype
        )

    @property
    def gaussian(self):
        """``mu`` and ``Sigma``."""
        loc, scale = self.run.gaussian("q")
        return np.asarray(loc, float), reference.covariance(self.family, scale)

    def step(self):
        """One step, on the natural gradient of the loss."""
        gradient, hessian = self.moments(*self.gaussian)
        self.run.step({"q": (self.family, *self.natural_gradient(gradient, hessian))})
        return self.gaussian

    def natural_gradient(self, gradient, hessian):
        q = self.backend.family(self.family, *self.run.gaussian("q"), dtype=self.dtype)
        hessian = q.assemble_hessian(self.backend.array(hessian, self.dtype))
        direction = q.bonnet_price(self.backend.array(gradient, self.dtype), hessian)
        return tuple(-c for c in self.backend.coordinates(direction))

    def path(self, num_steps):
        """``(mu, Sigma)`` after each of some steps."""
        return [self.step() for _ in range(num_steps)]


def kl_divergence(new, old):
    """``KL(new || old)`` of two ``(mu, Sigma)``, in nats."""
    (a, S), (b, T) = new, old
    precision = np.linalg.inv(T)
    log_dets = np.linalg.slogdet(T)[1] - np.linalg.slogdet(S)[1]
    return 0.5 * (np.trace(precision @ S) - len(a) + (a - b) @ precision @ (a - b) + log_dets)


# -- through SVI ----------------------------------------------------------------------


def glm_model(backend, glm):
    """A :class:`~tests.reference.Glm` as a model of ``X`` and ``y``, with the site ``theta``."""
    import importlib

    ppl = importlib.import_module(backend.name)
    dist = ppl.distributions
    likelihood = {
        "bernoulli": lambda eta: dist.Bernoulli(logits=eta),
        "poisson": lambda eta: dist.Poisson(_exp(backend, eta)),
        "gaussian": lambda eta: dist.Normal(eta, glm.noise_scale),
    }[glm.likelihood]

    def model(X, y):
        prior = dist.Normal(backend.array(np.zeros(glm.dim)), glm.prior_scale)
        theta = ppl.sample("theta", prior.to_event(1))
        with ppl.plate("data", len(y)):
            ppl.sample("y", likelihood(X @ theta), obs=y)

    return model


def _exp(backend, value):
    if backend.name == "pyro":
        return value.exp()
    import jax.numpy as jnp

    return jnp.exp(value)


class NumPyroSvi:
    def __init__(self, backend, model, args, family, optimiser, loss, seed=0, **guide_options):
        import jax
        from numpyro.infer import SVI

        self.backend, self.args = backend, tuple(map(backend.array, args))
        self.guide = backend.guide(model, family, **guide_options)
        self.svi = SVI(model, self.guide, optimiser, loss)
        self.state = initialised(self.svi, jax.random.key(seed), *self.args)
        self.update = jax.jit(self.svi.update, compiler_options=QUICKLY)

    def step(self):
        self.state, loss = self.update(self.state, *self.args)
        return float(loss)

    @property
    def family(self):
        return self.svi.get_params(self.state)["auto_posterior"]

    @property
    def gaussian(self):
        return tuple(map(np.asarray, (self.family.mean, self.family.covariance_matrix)))

    def move_to(self, loc, sigma):
        """Start again from here."""
        family = self.family
        scale = reference.gaussian_from_covariance(family.name, sigma)
        params = {"auto_posterior": self.backend.family(family.name, loc, scale)}
        self.state = self.state._replace(optim_state=self.svi.optim.init(params))

    def seed(self, seed):
        import jax

        self.state = self.state._replace(rng_key=jax.random.key(seed))


class PyroSvi:
    def __init__(self, backend, model, args, family, optimiser, loss, seed=0, **guide_options):
        import pyro
        from pyro.infer import SVI

        pyro.set_rng_seed(seed)
        self.backend, self.args = backend, tuple(map(backend.array, args))
        self.guide = backend.guide(model, family, **guide_options)
        self.guide(*self.args)
        self.svi = SVI(model, self.guide, optimiser, loss)

    def step(self):
        return self.svi.step(*self.args)

    @property
    def family(self):
        return self.guide.posterior.family().detach()

    @property
    def gaussian(self):
        family = self.family
        return tuple(self.backend.numpy(x).copy() for x in (family.mean, family.covariance_matrix))

    def move_to(self, loc, sigma):
        """Start again from here."""
        import torch

        family = self.guide.posterior.family()
        scale = reference.gaussian_from_covariance(family.name, sigma)
        new = self.backend.family(family.name, loc, scale)
        with torch.no_grad():
            family.map(torch.Tensor.copy_, new)
        self.svi.optim = type(self.svi.optim)(self.svi.optim.pt_optim_args)

    def seed(self, seed):
        import pyro

        pyro.set_rng_seed(seed)


def svi_run(backend, *args, **kwargs):
    return {"numpyro": NumPyroSvi, "pyro": PyroSvi}[backend.name](backend, *args, **kwargs)
