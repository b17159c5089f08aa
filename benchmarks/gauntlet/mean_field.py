"""The best mean fields known, by long deterministic searches that share no code with `fit`.

The bound over fixed quasi-random draws is a function without noise of means and log standard
deviations (and of model parameters), which L-BFGS of SciPy maximises from all the starts
of `search`, over few draws at first; the best go on over more. Where mean field leaves out
correlations the bound has long flat valleys: the search ends only where gradients are zero. It has
nothing for densities that jump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from .search import KEPT, starts
from .target import CHUNK, Bound, Gaussian, Target, normal_draws

#: Draws of a phase, and its steps at most.
PHASES = ((64, 300), (2048, 2000))
#: Pairs of L-BFGS: curvatures are many.
PAIRS = 50
#: Minus the bound, in nats, where it is not finite.
NOWHERE = 1e12
#: Optima whose bounds differ by less are the same one, in nats.
SAME = 0.01


def best(
    target: Target, others: Iterable[Gaussian] = (), seed: int = 0
) -> tuple[Bound, str, Gaussian]:
    """The best bound, where it comes from, and its Gaussian.

    :param others: the ends of runs of `fit`.
    """
    here = [Gaussian(mean, np.diag(sd), target.params) for mean, sd in starts(target, seed)]
    found = [(target.bound(gaussian), "fit", gaussian) for gaussian in others]
    for index, (count, steps) in enumerate(PHASES):
        ascend = _ascent(target, normal_draws(count, target.dim, seed + index), steps)
        ends = list(map(ascend, here))
        found += [(target.bound(gaussian), f"L-BFGS {index + 1}", gaussian) for gaussian in ends]
        here = _best(found)
    return max(found, key=lambda one: one[0].value)


def _ascent(target: Target, draws: np.ndarray, steps: int) -> Callable[[Gaussian], Gaussian]:
    """From a mean field to the nearest optimum over these draws."""
    start = {name: target.param_transforms[name].inv(v) for name, v in target.params.items()}
    zero = (jnp.zeros(target.dim), jnp.zeros(target.dim), jax.tree.map(jnp.asarray, start))
    unflat = jax.flatten_util.ravel_pytree(zero)[1]

    def constrained(free: dict[str, Any]) -> dict[str, Any]:
        return {name: target.param_transforms[name](value) for name, value in free.items()}

    @jax.jit
    @jax.value_and_grad
    def loss(flat: Any) -> Any:
        mean, log_sd, free = unflat(flat)
        params = constrained(free)

        @jax.checkpoint
        def of_draw(noise: Any) -> Any:
            return target.log_prob(mean + jnp.exp(log_sd) * noise, params)

        values = jax.lax.map(of_draw, jnp.asarray(draws), batch_size=CHUNK)
        return -values.mean() - log_sd.sum()

    def of(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = map(np.asarray, loss(flat))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return NOWHERE, np.zeros_like(flat)
        return float(value), gradient

    def ascend(gaussian: Gaussian) -> Gaussian:
        free = {
            n: jnp.asarray(target.param_transforms[n].inv(v)) for n, v in gaussian.params.items()
        }
        sd = np.sqrt(np.sum(np.square(gaussian.factor), 1))
        flat = np.asarray(jax.flatten_util.ravel_pytree((gaussian.mean, np.log(sd), free))[0])
        # A second run forgets the memory, in which a long way may have left what is not so.
        for _ in range(2):
            options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": PAIRS}
            options |= {"ftol": 1e-14, "gtol": 1e-7}
            flat = minimize(of, flat, jac=True, method="L-BFGS-B", options=options).x
        mean, log_sd, free = unflat(flat)
        params = {name: np.asarray(value) for name, value in constrained(free).items()}
        return Gaussian(np.asarray(mean), np.diag(np.exp(log_sd)), params)

    return ascend


def _best(found: list[tuple[Bound, str, Gaussian]]) -> list[Gaussian]:
    """The best that are not the same optimum."""
    kept: list[tuple[float, Gaussian]] = []
    for bound, _, gaussian in sorted(found, key=lambda one: -one[0].value):
        if np.isfinite(bound.value) and all(abs(bound.value - b) > SAME for b, _ in kept):
            kept.append((bound.value, gaussian))
    return [gaussian for _, gaussian in kept[:KEPT]]
