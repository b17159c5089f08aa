"""The methods of Tan's Tables 7 and 8, by their names there, and the rates that are tried.

The paper keeps Adam and PGA (ProxGenAdam) at their defaults, tunes the rates of the others, and
prints none: here the best of those below is taken, by the bound at the end. Two are not in the
paper. The precision of "VOGN, auto" is an average over all steps (``beta2="auto"``), where 0.999
remembers a start at n for thousands; "VOGN, longer" is the paper's, with so many steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.benchmarks import pages
from ngvi.families import direction
from numpyro_ngvi import VOGN, NAdam, Nagm, ProxGenAdam, Snngm
from numpyro_ngvi.families.coordinates import families_in, replace_families


def euclidean_adam(step_size: float) -> optax.GradientTransformation:
    """Adam on Euclidean gradients of mean and scale, which no package needs: from natural ones."""
    adam = optax.adam(step_size)

    def update(gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        natural, families = families_in(gradients), families_in(params)
        gradients = replace_families(gradients, direction.dual(families, natural))
        return adam.update(gradients, state, params)

    return optax.GradientTransformation(adam.init, update)


OPTIMISERS: dict[str, Callable] = {
    "Adam": euclidean_adam,
    "PGA": ProxGenAdam,
    "NAdam": NAdam,
    "Snngm": Snngm,
    "Nagm": Nagm,
    "VOGN": VOGN,
    "VOGN, auto": partial(VOGN, beta2="auto"),
    "VOGN, longer": VOGN,
}
RATES = {
    "Adam": (1e-3,),
    "PGA": (1e-3,),
    "NAdam": (1e-3,),
    "Snngm": (1e-3, 5e-3),
    "Nagm": (1e-1, 5e-1),
    "VOGN": (1e-2, 1e-1),
    "VOGN, auto": (1e-1,),
    "VOGN, longer": (1e-2,),
}
FLOOR = 0.03  #: of pictures, in nats

#: Gives a minibatch's estimate of the natural gradient.
Estimator = Callable[[Any, jax.Array, jax.Array, jax.Array], Any]


def run(
    optimiser: optax.GradientTransformation,
    q: Any,
    estimator: Estimator,
    X: jax.Array,
    y: jax.Array,
    batch: int,
    passes: int,
    seed: int,
) -> Any:
    """The Gaussian after so many passes over the rows.

    :param q: where it starts.
    :param estimator: called with ``q``, a random key, and the rows of a minibatch.
    """
    num_batches = len(y) // batch

    def one_pass(carry: Any, key: jax.Array) -> Any:
        order = jax.random.permutation(key, len(y))[: num_batches * batch]
        rows = order.reshape(num_batches, batch)

        def step(carry: Any, now: Any) -> Any:
            (q, state), (rows, key) = carry, now
            natural = estimator(q, key, X[rows], y[rows])
            loss_gradient = jax.tree.map(jnp.negative, natural)
            updates, state = optimiser.update(loss_gradient, state, q)
            return (optax.apply_updates(q, updates), state), None

        return jax.lax.scan(step, carry, (rows, jax.random.split(key, num_batches)))

    @jax.jit
    def all_passes(q: Any, keys: jax.Array) -> Any:
        return jax.lax.scan(one_pass, (q, optimiser.init(q)), keys)[0][0]

    return jax.block_until_ready(all_passes(q, jax.random.split(jax.random.key(seed), passes)))


def best_rate(
    name: str, make: Callable[[Any], Any], score: Callable[[Any], float]
) -> tuple[float, Any, float]:
    """Of a method's rates, the one whose end has the best score: it, what it made, CPU seconds."""
    ends = []
    for rate in RATES[name]:
        begin = time.process_time()
        q = make(OPTIMISERS[name](rate))
        seconds, value = time.process_time() - begin, score(q)
        ends.append((value if math.isfinite(value) else -math.inf, rate, q, seconds))
    return max(ends, key=lambda end: end[0])[1:]


def draw_gaps(csv: str, keys: tuple[str, ...], picture: str) -> None:
    """How far below the optimum each method ends, and the paper's, a panel for each column.

    :param keys: of the CSV; its column "paper's gap" is from the same optimum, or from the best of
        the paper's column where the data are others.
    """
    rows = pages.read(csv)
    panels = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    figure, axes = pages.figure(1, len(panels), (3.6, 3.6))
    for axis, panel in zip(axes[0], panels, strict=True):
        own = [row for row in rows if tuple(row[key] for key in keys) == panel][::-1]
        marks = {"first": "1", "second": "2"}
        names = [f"{row['method']}{marks.get(row.get('derivatives', ''), '')}" for row in own]
        lines = np.arange(len(own))
        for column, style, label in (
            ("paper's gap", "o", "the paper's"),
            ("below the optimum", "D", "here"),
        ):
            found = [
                (float(row[column]), at) for row, at in zip(own, lines, strict=True) if row[column]
            ]
            gaps, at = np.array(found).T
            colour = "#d55e00" if style == "o" else "#0072b2"
            axis.plot(np.maximum(gaps, FLOOR), at, style, color=colour, ms=4.5, label=label)
        axis.set(
            xscale="log", yticks=lines, title=", ".join(panel), xlabel="nats below the optimum"
        )
        axis.set_yticklabels([name.replace("`", "") for name in names])
    axes[0, 0].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    pages.save(figure, picture)
