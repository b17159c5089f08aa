"""The best bounds known, by long runs from many starts that share no code with `fit`.

From draws of the prior, its moments, its medians, zero and random points, each with several
widths, the Bayesian learning rule runs on fresh draws at every step, all starts side by side:
with the gradients of Stein's identity, which hold at kinks too, or, where the density jumps, with
its values alone. The best go on with more draws and smaller steps. Parameters of the model
move by Adam beside them, from where the model has them start. The ends of runs of `fit`, if there
are any, go on with them: where one of those is better, it is that that is written down.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.initialization import init_to_median, init_to_uniform

from .target import Bound, Gaussian, Target

#: Prior draws among the starts.
NUM_PRIOR_DRAWS = 8
#: Of a start, on the unconstrained scale.
WIDTHS = (0.1, 0.5)
#: Steps, draws (at least twice the dimension), first and last step size.
PHASES = ((300, 32, 0.3, 0.1), (250, 256, 0.3, 0.01))
#: Runs of the first phase, and of `fit`, that go on.
KEPT = 4
#: With model parameters, so many times the steps.
PATIENCE = 6
#: First and last rate of Adam for them.
RATES = (0.03, 0.001)
#: The length of a step in Fisher's metric.
RADIUS = 1.0


def starts(target: Target, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and sds."""
    draws = [d for k in range(24) if (d := _prior_draw(target, None, seed + k)) is not None]
    points = draws[:NUM_PRIOR_DRAWS]
    points += [_prior_draw(target, init_to_median(num_samples=15), seed)]
    points += [_prior_draw(target, init_to_uniform, seed + k) for k in range(2)]
    points += [np.zeros(target.dim)]
    found = [(p, np.full(target.dim, w)) for p in points if p is not None for w in WIDTHS]
    if len(draws) > 10:
        mean, sd = np.median(draws, 0), np.std(draws, 0).clip(1e-3)
        found += [(mean, sd), (mean, 0.2 * sd)]
    return found


def _prior_draw(target: Target, strategy: Any, seed: int) -> np.ndarray | None:
    """A point by a strategy of NumPyro, or a draw of the prior, unconstrained."""
    model = handlers.seed(target.plain_model, random.key(seed))
    if strategy is not None:
        model = handlers.substitute(model, substitute_fn=strategy)
    try:
        trace = handlers.trace(model).get_trace(*target.args)
        parts = [biject_to(trace[n]["fn"].support).inv(trace[n]["value"]) for n in target.shapes]
    except Exception:  # noqa: BLE001  an invalid point is one start fewer
        return None
    flat = np.concatenate([np.ravel(part) for part in parts])
    return flat if np.isfinite(flat).all() else None


def _moments(target: Target, jumps: bool, state: tuple, noise: Any) -> tuple[Any, ...]:
    """``E[grad]`` and ``-E[hess] - I`` in the coordinates of the draws, and the rest."""
    mean, factor, free, *_ = state

    def density(x: Any, free: dict) -> Any:
        params = {name: target.param_transforms[name](value) for name, value in free.items()}
        return target.log_prob(x, params)

    points = mean + noise @ factor.T
    if jumps:
        values = jax.vmap(density, (0, None))(points, free) + 0.5 * (noise**2).sum(-1)
        values = values - values.mean()
        slope = (noise * values[:, None]).mean(0)
        change = -(noise * values[:, None]).T @ noise / len(noise)
        return slope, change, {}
    gradients, of_params = jax.vmap(jax.grad(density, (0, 1)), (0, None))(points, free)
    pulled = gradients @ factor
    # What is left beside the Gaussian itself is all the noise that there is.
    cross = (pulled + noise).T @ noise / len(noise)
    slope, change = (pulled + noise).mean(0), -0.5 * (cross + cross.T)
    return slope, change, jax.tree.map(lambda x: x.mean(0), of_params)


def _step(target: Target, jumps: bool, state: tuple, noise: Any, rho: Any, rate: Any) -> tuple:
    mean, factor, free, first, second, count = state
    slope, change, of_params = _moments(target, jumps, state, noise)
    finite = jnp.isfinite(slope).all() & jnp.isfinite(change).all()
    slope, change = jnp.where(finite, slope, 0.0), jnp.where(finite, change, 0.0)
    length = jnp.sqrt((slope**2).sum() + 0.5 * (change**2).sum())
    rho = jnp.minimum(rho, RADIUS / (length + 1e-30))
    # Lin, Schmidt and Khan (2020): the precision stays positive definite.
    precision = jnp.eye(len(mean)) + rho * change + 0.5 * rho**2 * change @ change
    root = jnp.linalg.cholesky(precision)
    moved = jax.scipy.linalg.cho_solve((root, True), slope)
    # N(mean, F F^T) with F = L root^-T, whose draws are as good as those of the triangular one.
    wider = jax.scipy.linalg.solve_triangular(root, factor.T, lower=True).T
    mean, factor = mean + rho * factor @ moved, jnp.where(finite, wider, 0.5 * factor)
    of_params = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), of_params)
    count = count + 1
    if of_params:
        tree = jax.tree.map
        first = tree(lambda m, g: 0.9 * m + 0.1 * g, first, of_params)
        second = tree(lambda v, g: 0.99 * v + 0.01 * g**2, second, of_params)
        free = tree(
            lambda x, m, v: (
                x + rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)
            ),
            free,
            first,
            second,
        )
    return mean, factor, free, first, second, count


def ascend(
    target: Target, begin: list[Gaussian], phase: tuple, seed: int, jumps: bool
) -> list[Gaussian]:
    """Steps from all of these at once, on fresh draws, the sizes falling geometrically."""
    steps, draws, rho, last_rho = phase
    if jumps:
        draws = 16 * draws
    draws = max(draws, 2 * target.dim) // 2
    rates = RATES
    if target.params:
        steps = PATIENCE * steps

    def one(state: tuple, key: Any) -> tuple:
        def body(t: Any, state: tuple) -> tuple:
            half = random.normal(random.fold_in(key, t), (draws, target.dim))
            noise = jnp.concatenate([half, -half])
            done = t / steps
            now = rho * (last_rho / rho) ** done
            return _step(target, jumps, state, noise, now, rates[0] * (rates[1] / rates[0]) ** done)

        return jax.lax.fori_loop(0, steps, body, state)

    states = [_state(target, gaussian) for gaussian in begin]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    keys = random.split(random.key(seed), len(begin))
    mean, factor, free, *_ = jax.jit(jax.vmap(one))(stacked, keys)
    ends = []
    for k in range(len(begin)):
        params = {n: np.asarray(target.param_transforms[n](v[k])) for n, v in free.items()}
        ends.append(Gaussian(np.asarray(mean[k]), np.asarray(factor[k]), params))
    return ends


def _state(target: Target, gaussian: Gaussian) -> tuple:
    free = {n: jnp.asarray(target.param_transforms[n].inv(v)) for n, v in gaussian.params.items()}
    zero = jax.tree.map(jnp.zeros_like, free)
    return jnp.asarray(gaussian.mean), jnp.asarray(gaussian.factor), free, zero, zero, 0


def best(
    target: Target, others: Iterable[Gaussian] = (), seed: int = 0
) -> tuple[Bound, str, Gaussian]:
    """The best bound, where it comes from, and its Gaussian.

    :param others: the ends of runs of `fit`.
    """
    jumps = target.entry.group == "jumps"
    here = [Gaussian(mean, np.diag(sd), target.params) for mean, sd in starts(target, seed)]
    found: list[tuple[Bound, str, Gaussian]] = []
    others = list(others)
    found += [(target.bound(g), "fit", g) for g in others]
    for index, phase in enumerate(PHASES):
        ends = ascend(target, here, phase, seed + index, jumps)
        found += [(target.bound(g), f"search {index + 1}", g) for g in ends]
        here = _best(found, KEPT)
    return max(found, key=lambda f: f[0].value)


def _best(found: list, count: int) -> list[Gaussian]:
    """The best that are not the same optimum."""
    kept: list[tuple[float, Gaussian]] = []
    for bound, _, gaussian in sorted(found, key=lambda f: -f[0].value):
        if np.isfinite(bound.value) and all(abs(bound.value - b) > 0.01 for b, _ in kept):
            kept.append((bound.value, gaussian))
    return [gaussian for _, gaussian in kept[:count]]
