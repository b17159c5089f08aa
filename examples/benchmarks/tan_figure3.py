"""Tan's Figure 3: Snngm on the intercept-only Poisson model of the horseshoe crabs.

The number of satellites of 173 female crabs, y_i ~ Poisson(exp(theta)), theta ~ N(0, 100).
The bound of q = N(mu, sigma^2) is known exactly,

    L = sum(y) mu - n exp(mu + sigma^2 / 2) - sum(log y!)
        - (mu^2 + sigma^2) / 200 - log(10) + 1/2 + log(sigma),

with its maximum -499.46527 at (mu, sigma^2) = (1.07, 0.002). From the paper's three
starting points this runs, in both packages,

- exact: Snngm on the exact natural gradient, alpha = 0.001 sqrt(2), until the bound is
  within `--tolerance` nats of its maximum (the figure's setting);
- SVI: the guide, Snngm and Trace_ELBO of the PPL, one draw a step, with a decreasing
  step size; the bound is evaluated exactly at the end. Normalising a noisy gradient biases
  it, here by half a nat;
- STL: the same with sticking_the_landing=True, the paper's estimator grad h: its noise
  vanishes at the optimum, and with it the bias.

    python examples/benchmarks/tan_figure3.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from machine import describe

# Agresti, Categorical Data Analysis, table of the horseshoe crabs: how many crabs had
# 0, 1, 2, ... satellites.
FREQUENCIES = [62, 16, 9, 19, 19, 15, 13, 4, 6, 3, 3, 1, 1, 0, 1, 1]
COUNTS = np.repeat(np.arange(len(FREQUENCIES)), FREQUENCIES)
STARTS = [(0.0, 0.1), (0.5, 0.02), (2.0, 0.01)]
OPTIMUM = -499.46526713715
PRIOR_VARIANCE = 100.0
STEP_SIZE = 1e-3


def bound(loc: float, scale: float) -> float:
    """The exact lower bound in nats."""
    rate = math.exp(loc + scale**2 / 2)
    likelihood = COUNTS.sum() * loc - len(COUNTS) * rate
    likelihood -= sum(math.lgamma(count + 1) for count in COUNTS)
    prior = -(loc**2 + scale**2) / (2 * PRIOR_VARIANCE) - 0.5 * math.log(PRIOR_VARIANCE)
    return likelihood + prior + 0.5 + math.log(scale)


def loss_gradient(loc: float, scale: float) -> tuple[float, float]:
    """Euclidean gradient of minus the bound, with respect to mean and scale."""
    rate = len(COUNTS) * math.exp(loc + scale**2 / 2)
    return (
        -COUNTS.sum() + rate + loc / PRIOR_VARIANCE,
        scale * rate + scale / PRIOR_VARIANCE - 1 / scale,
    )


def exact_numpyro(loc: float, scale: float, tolerance: float, max_steps: int) -> tuple:
    import jax
    import optax

    from numpyro_ngvi import Snngm
    from numpyro_ngvi.families import CovarianceCholesky

    with jax.enable_x64(True):
        as_family = lambda a, b: CovarianceCholesky(jax.numpy.array([a]), jax.numpy.array([[b]]))  # noqa: E731
        optimiser = Snngm(STEP_SIZE)
        family = as_family(loc, scale)
        state = optimiser.init(family)

        @jax.jit
        def update(gradient, state, family):
            updates, state = optimiser.update(family.natural_gradient(gradient), state, family)
            return optax.apply_updates(family, updates), state

        for step in range(max_steps):  # noqa: B007
            loc, scale = float(family.loc[0]), float(family.scale_tril[0, 0])
            if bound(loc, scale) > OPTIMUM - tolerance:
                break
            family, state = update(as_family(*loss_gradient(loc, scale)), state, family)
        return step, loc, scale


def exact_pyro(loc: float, scale: float, tolerance: float, max_steps: int) -> tuple:
    import torch

    from pyro_ngvi.families import CovarianceCholesky
    from pyro_ngvi.families.coordinates import Coordinate, mark
    from pyro_ngvi.optim.snngm import SnngmOptimizer

    as_family = lambda a, b: CovarianceCholesky(  # noqa: E731
        torch.tensor([a], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64)
    )
    family = as_family(loc, scale)
    for name, tensor in family.coordinates().items():
        mark(tensor, Coordinate(family.specification(), "q", name))
    optimiser = SnngmOptimizer(family.coordinates().values(), lr=STEP_SIZE)
    for step in range(max_steps):  # noqa: B007
        loc, scale = family.loc.item(), family.scale_tril.item()
        if bound(loc, scale) > OPTIMUM - tolerance:
            break
        direction = family.natural_gradient(as_family(*loss_gradient(loc, scale)))
        for name, tensor in family.coordinates().items():
            tensor.grad = getattr(direction, name)
        optimiser.step()
    return step, loc, scale


def schedule(max_steps: int) -> Callable:
    """Constant for half of the run, then linearly down to a thousandth."""
    return lambda step: STEP_SIZE * (1.001 - 1.0 * _clip((2 * step - max_steps) / max_steps))


def _clip(value):
    # Of an int in Pyro, of a traced array in NumPyro.
    return value.clip(0, 1) if hasattr(value, "clip") else min(max(value, 0), 1)


def svi_numpyro(loc: float, scale: float, max_steps: int, seed: int, stl: bool) -> tuple:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.initialization import init_to_value

    from numpyro_ngvi import SVI, NaturalGaussianGuide, Snngm

    def model(counts: jax.Array) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, math.sqrt(PRIOR_VARIANCE)))
        with numpyro.plate("crabs", len(COUNTS)):
            numpyro.sample("y", dist.Poisson(jax.numpy.exp(theta)), obs=counts)

    guide = NaturalGaussianGuide(
        model,
        init_loc_fn=init_to_value(values={"theta": loc}),
        init_scale=scale,
        sticking_the_landing=stl,
    )
    svi = SVI(model, guide, Snngm(schedule(max_steps)), Trace_ELBO())
    result = svi.run(jax.random.key(seed), max_steps, COUNTS, progress_bar=False)
    posterior = result.params["auto_posterior"]
    return max_steps, float(posterior.loc[0]), float(posterior.stddev[0])


def svi_pyro(loc: float, scale: float, max_steps: int, seed: int, stl: bool) -> tuple:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import Trace_ELBO
    from pyro.infer.autoguide import init_to_value

    from pyro_ngvi import SVI, NaturalGaussianGuide, Snngm

    counts = torch.tensor(COUNTS, dtype=torch.float)

    def model(counts: torch.Tensor) -> None:
        theta = pyro.sample("theta", dist.Normal(0.0, math.sqrt(PRIOR_VARIANCE)))
        with pyro.plate("crabs", len(COUNTS)):
            pyro.sample("y", dist.Poisson(theta.exp()), obs=counts)

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    start = init_to_value(values={"theta": torch.tensor(loc)})
    guide = NaturalGaussianGuide(
        model, init_loc_fn=start, init_scale=scale, sticking_the_landing=stl
    )
    svi = SVI(model, guide, Snngm({"lr": schedule(max_steps)}), Trace_ELBO())
    for _ in range(max_steps):
        svi.step(counts)
    posterior = guide.get_posterior()
    return max_steps, posterior.mean.item(), posterior.stddev.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tolerance", type=float, default=1e-3, help="nats, exact runs")
    parser.add_argument("--max-steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe())
    print(f"optimum {OPTIMUM:.5f} nats; step size {STEP_SIZE} sqrt(2); seed {options.seed}")
    print(f"{'run':15s} {'start':>12s} {'steps':>6s} {'mu':>7s} {'sigma^2':>8s} {'bound':>11s}")
    for name, run, arguments in (
        ("exact numpyro", exact_numpyro, (options.tolerance, options.max_steps)),
        ("exact pyro", exact_pyro, (options.tolerance, options.max_steps)),
        ("SVI numpyro", svi_numpyro, (options.max_steps, options.seed, False)),
        ("SVI pyro", svi_pyro, (options.max_steps, options.seed, False)),
        ("STL numpyro", svi_numpyro, (options.max_steps, options.seed, True)),
        ("STL pyro", svi_pyro, (options.max_steps, options.seed, True)),
    ):
        for loc, variance in STARTS:
            steps, mean, scale = run(loc, math.sqrt(variance), *arguments)
            print(
                f"{name:15s} {f'({loc:g}, {variance:g})':>12s} {steps:6d} {mean:7.4f} "
                f"{scale**2:8.5f} {bound(mean, scale):11.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
