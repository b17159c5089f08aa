"""Models for the guide tests, each written twice, once in each PPL.

The simplex is a Gaussian's image and not a Dirichlet: in JAX, compiling a sampler of gammas
would take longer than most tests.

``hierarchy``: a positive site, a simplex, a scalar, latents in a plate, and a likelihood in a
plate that may be subsampled; eight unconstrained latents. ``mixture``: the same idea with a
discrete latent per observation, to be enumerated.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

NUM_DATA, NUM_GROUPS, SUBSAMPLE = 12, 4, 5


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Design ``(n, 3)``, groups ``(n,)`` and responses ``(n,)``."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(NUM_DATA, 3))
    group = np.arange(NUM_DATA) % NUM_GROUPS
    return X, group, X.sum(1) + 0.5 * group + 0.3 * rng.normal(size=NUM_DATA)


def numpyro_models() -> SimpleNamespace:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def simplex():
        base = dist.Normal(jnp.zeros(2), 1.0).to_event(1)
        return dist.TransformedDistribution(base, dist.transforms.StickBreakingTransform())

    def hierarchy(X, group, y, subsample_size=None):
        sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
        weights = numpyro.sample("weights", simplex())
        centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
        with numpyro.plate("groups", NUM_GROUPS):
            effect = numpyro.sample("effect", dist.Normal(centre, 1.0))
        numpyro.deterministic("largest", effect.max())
        with numpyro.plate("data", len(X), subsample_size=subsample_size) as index:
            mean = X[index] @ weights + effect[group[index]]
            numpyro.sample("y", dist.Normal(mean, sigma), obs=y[index])

    def mixture(X, group, y, subsample_size=None):
        weights = numpyro.sample("weights", simplex())
        centre = numpyro.sample("centre", dist.Normal(jnp.zeros(3), 2.0).to_event(1))
        sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("data", len(X), subsample_size=subsample_size) as index:
            component = numpyro.sample(
                "component", dist.Categorical(weights), infer={"enumerate": "parallel"}
            )
            numpyro.sample("y", dist.Normal(centre[component], sigma), obs=y[index])

    return SimpleNamespace(hierarchy=hierarchy, mixture=mixture)


def pyro_models() -> SimpleNamespace:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.ops.indexing import Vindex

    def simplex():
        base = dist.Normal(torch.zeros(2), 1.0).to_event(1)
        return dist.TransformedDistribution(base, dist.transforms.StickBreakingTransform())

    def hierarchy(X, group, y, subsample_size=None):
        sigma = pyro.sample("sigma", dist.LogNormal(0.0, 0.5))
        weights = pyro.sample("weights", simplex())
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", NUM_GROUPS):
            effect = pyro.sample("effect", dist.Normal(centre, 1.0))
        pyro.deterministic("largest", effect.max(-1, keepdim=True).values)
        with pyro.plate("data", len(X), subsample_size=subsample_size) as index:
            # Leading dimensions, if any, are those of vectorised particles.
            mean = (X[index] * weights).sum(-1) + effect[..., group[index]]
            pyro.sample("y", dist.Normal(mean, sigma), obs=y[index])

    def mixture(X, group, y, subsample_size=None):
        weights = pyro.sample("weights", simplex())
        centre = pyro.sample("centre", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        sigma = pyro.sample("sigma", dist.LogNormal(0.0, 0.5))
        with pyro.plate("data", len(X), subsample_size=subsample_size) as index:
            component = pyro.sample(
                "component", dist.Categorical(weights), infer={"enumerate": "parallel"}
            )
            pyro.sample("y", dist.Normal(Vindex(centre)[..., component], sigma), obs=y[index])

    return SimpleNamespace(hierarchy=hierarchy, mixture=mixture)
