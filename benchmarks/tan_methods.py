"""The methods of Tan's Tables 7 and 8, by their names there, and the rates that are tried.

The paper keeps Adam and PGA (ProxGenAdam) at their defaults, tunes the rates of the others, and
prints none: here the best of those below is taken, by the bound at the end. Two are not in the
paper. The precision of "VOGN, auto" is an average over all steps (``beta2="auto"``), where 0.999
remembers a start at n for thousands; "VOGN, longer" is the paper's, with so many steps.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ngvi.families import direction
from numpyro_ngvi.families.coordinates import families_in, replace_families
from numpyro_ngvi.optim import IVON, VOGN, Nagm, Snngm

from . import pages
from .baselines.in_numpyro import NAdam, ProxGenAdam


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
    "VOGN": partial(VOGN, beta2=0.999),
    "VOGN, auto": partial(VOGN, beta2="auto"),
    "VOGN, longer": partial(VOGN, beta2=0.999),
    "Snngm()": Snngm,
    "IVON": IVON,
}
RATES: dict[str, tuple] = {
    "Adam": (1e-3,),
    "PGA": (1e-3,),
    "NAdam": (1e-3,),
    "Snngm": (1e-3, 5e-3),
    "Nagm": (1e-1, 5e-1),
    "VOGN": (1e-2, 1e-1),
    "VOGN, auto": (1e-1,),
    "VOGN, longer": (1e-2,),
    "Snngm()": ("auto",),
    "IVON": (1e-2, 1e-1),
}
#: Longer steps of Nagm leave networks some weights of a width of 1e20.
RATES_OF_NETWORKS = RATES | {"Nagm": (1e-2, 3e-2)}
FLOOR = 0.03  #: of pictures, in nats
#: Nats below the optimum from which on a run has diverged.
LOST = 1e6

#: Gives a minibatch's estimate of the natural gradient.
Estimator = Callable[[Any, jax.Array, jax.Array, jax.Array], Any]


def path(
    optimiser: optax.GradientTransformation,
    q: Any,
    estimator: Callable[..., tuple[Any, Any]],
    X: jax.Array,
    y: jax.Array,
    batch: int,
    marks: Sequence[int],
    seed: int,
    memory: Any = (),
) -> list[tuple[Any, Any]]:
    """The Gaussians after so many passes over the rows, with what is remembered beside them.

    :param q: where it starts.
    :param estimator: called with ``q``, the memory, a random key, and the rows of a minibatch; it
        gives a natural gradient and the new memory.
    :param marks: numbers of passes, increasing.
    """
    num_batches = len(y) // batch

    def one_pass(carry: Any, key: jax.Array) -> Any:
        order = jax.random.permutation(key, len(y))[: num_batches * batch]
        rows = order.reshape(num_batches, batch)

        def step(carry: Any, now: Any) -> Any:
            (q, memory, state), (rows, key) = carry, now
            natural, memory = estimator(q, memory, key, X[rows], y[rows])
            loss_gradient = jax.tree.map(jnp.negative, natural)
            updates, state = optimiser.update(loss_gradient, state, q)
            return (optax.apply_updates(q, updates), memory, state), None

        return jax.lax.scan(step, carry, (rows, jax.random.split(key, num_batches)))[0]

    @jax.jit
    def passes(carry: Any, keys: jax.Array, begin: int, end: int) -> Any:
        return jax.lax.fori_loop(begin, end, lambda i, carry: one_pass(carry, keys[i]), carry)

    keys = jax.random.split(jax.random.key(seed), marks[-1])
    carry, found = (q, memory, optimiser.init(q)), []
    for begin, end in zip((0, *marks), marks, strict=False):
        carry = jax.block_until_ready(passes(carry, keys, begin, end))
        found.append(carry[:2])
    return found


def run(
    optimiser: optax.GradientTransformation,
    q: Any,
    estimator: Estimator,
    X: jax.Array,
    y: jax.Array,
    batch: int,
    marks: Sequence[int],
    seed: int,
) -> list[Any]:
    """:func:`path` of an estimator that remembers nothing: the Gaussians."""

    def forgetful(q: Any, memory: Any, *args: Any) -> tuple[Any, Any]:
        return estimator(q, *args), memory

    return [q for q, _ in path(optimiser, q, forgetful, X, y, batch, marks, seed)]


def of_draw(
    q: Any, z: jax.Array, gradient: jax.Array, precision: Any, curvature: jax.Array | None = None
) -> Any:
    """A mean field's natural gradient of the bound, with prior and entropy exact.

    :param gradient: of the log likelihood at the draw ``q.sample(z)``.
    :param precision: of the prior, whose mean is zero.
    :param curvature: minus the log likelihood's diagonal Hessian; without it the scale moves by
        ``gradient z`` (Theorem 2).
    """
    if curvature is not None:
        return q.bonnet_price(gradient - precision * q.loc, -curvature - precision)
    scale = gradient * z - precision * q.scale + 1 / q.scale
    return q.natural_gradient(type(q)(gradient - precision * q.loc, scale))


#: What the curvature of a network's log likelihood is from.
CURVATURE = {"VOGN": "squares", "VOGN, auto": "squares", "IVON": "draw"}


def marks_until(passes: int, first: int = 1) -> list[int]:
    """Of a curve: 1, 2, 5, 10, 20, ... passes, and the last."""
    some = (digit * 10**power for power in range(7) for digit in (1, 2, 5))
    return [*(mark for mark in some if first <= mark < passes), passes]


def best_rate(
    name: str,
    make: Callable[[Any], Any],
    score: Callable[[Any], float],
    rates: Mapping[str, tuple] = RATES,
) -> tuple[float, Any, float]:
    """Of a method's rates, the one whose end has the best score: it, what it made, CPU seconds."""
    ends = []
    for rate in rates[name]:
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
    figure, axes = _panels(len(panels), (3.6, 3.6))
    for axis, panel in zip(axes.flat, panels, strict=True):
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
            if not found:
                continue
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


def _panels(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Side by side, or where there are many, two in a row: those of a data set."""
    columns = count if count <= 3 else 2
    return pages.figure(math.ceil(count / columns), columns, size)


def gaps_at(marks: Sequence[int], gaps: Sequence[float]) -> dict[str, str]:
    """Cells of a curve's row, by passes, until it has diverged."""
    near = itertools.takewhile(lambda pair: pair[1] < LOST, zip(marks, gaps, strict=False))
    return {str(mark): f"{gap:.2f}" for mark, gap in near}


def replace_curve(csv: str, row: dict[str, str], about: str, keys: Sequence[str]) -> None:
    """Write a curve's row in the place of one with the same keys; columns in order of passes."""
    pages.replace(csv, [row], about, keys)
    rows = pages.read(csv)
    marks = sorted((name for name in rows[0] if name.isdigit()), key=int)
    names = [*(name for name in rows[0] if not name.isdigit()), *marks]
    pages.write(csv, [{name: row[name] for name in names} for row in rows], about)


#: Of curves; a method's second derivatives are dashed.
COLOURS = (
    "#e69f00",
    "#56b4e9",
    "#cc79a7",
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#7f7f7f",
    "#8c564b",
    "#000000",
)


def draw_curves(csv: str, keys: tuple[str, ...], picture: str) -> None:
    """How far below the optimum each method is after so many passes, a panel for each column.

    :param keys: of the CSV, whose numbers have the passes for names.
    """
    rows = pages.read(csv)
    panels = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, axes = _panels(len(panels), (3.4, 3.2))
    shown: dict[str, Any] = {}
    for axis, panel in zip(axes.flat, panels, strict=True):
        for row in rows:
            if tuple(row[key] for key in keys) != panel:
                continue
            curve = {int(k): float(v) for k, v in row.items() if k.isdigit() and v}
            if not curve:
                continue
            at, gaps = np.array(sorted(curve.items())).T
            order = row.get("derivatives", "")
            label = f"{row['method']} {order}".replace("`", "").replace("NaturalELBO()", "")
            (shown[label],) = axis.plot(
                *(at, np.maximum(gaps, FLOOR)),
                {"second": "--", "rows' squares": "-."}.get(order, "-"),
                color=COLOURS[methods.index(row["method"]) % len(COLOURS)],
                lw=2.2 if "BLR" in row["method"] else 1.2,
            )
        axis.set(xscale="log", yscale="log", title=", ".join(panel), xlabel="passes")
    for axis in axes[:, 0]:
        axis.set_ylabel("nats below the optimum")
    options = {"fontsize": 7, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes[0, -1].legend(shown.values(), shown, **options)
    figure.tight_layout()
    pages.save(figure, picture)
