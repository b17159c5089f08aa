"""New rows whose prior is an earlier posterior, and fewer rows.

An earlier posterior is the prior times the sites of its rows. Used as the prior, it needs only the
natural gradients of the new rows to reach the new optimum. For conjugate models the result is the
posterior of all rows. For other models the sites of earlier rows are not updated. The variance of
``log w`` measures the cost when the rows arrive: if small, it is twice the divergence of the
posterior from its Gaussian.

The bound adds up ``E_q[log p(y_t | theta)] - KL(q_t || q_{t-1})``. Under a later Gaussian the mean
of an earlier ``log w`` changes, by an amount that only the old rows would tell. Given those rows,
later posteriors may lie anywhere in theirs, so the standard deviation of ``log w`` is the error.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy

from ngvi.inference.change import Change
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Forwarding, Objective
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import APPROXIMATE, LOCAL, NOT_CONVERGED
from ngvi.inference.verdict.validation import Validation
from ngvi.workflow.arviz import ArvizGroups, Observed
from ngvi.workflow.climb import Steps
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.rows import ObservedRows


class ChangedObjective(Forwarding):
    """Values and gradients of a log density whose prior or rows are others."""

    def __init__(self, inner: Objective, rows: ObservedRows, change: Change) -> None:
        super().__init__(inner)
        self._rows, self._change = rows, change
        self._prior = None
        if change.mean is not None and change.factor is not None:
            self._prior = DenseGaussian(change.mean, change.factor)
        self.guide_is_enumerated = False
        self._kept = change.kept(rows.weights)
        self._left_out = rows.weights - self._kept

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        values = self._rows.parts(theta)[0]
        if self._prior is not None:
            self.inner.cost.values += len(theta)
            before = self._change.bound + self._prior.log_prob(theta)
            return before + _weighted(values, self._kept)
        return self.inner.log_density(state, theta) - _weighted(values, self._left_out)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.inner.cost.gradients += len(theta)
        weights = np.broadcast_to(self._kept, (len(theta), len(self._kept)))
        value, slope = self._rows.weighted(theta, weights, float(self._prior is None))
        if self._prior is None:
            return value, slope
        step = self._prior.mean - theta
        value = self._change.bound + self._prior.log_prob(theta) + value
        return value, step @ self._prior.precision + slope

    def in_double(self, state: State, theta: np.ndarray) -> None:
        """Return nothing, for another density."""
        return


def _weighted(of_rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sum along the second axis; what does not count may be infinite."""
    used = np.flatnonzero(weights)
    return np.tensordot(of_rows[:, used], weights[used], (1, 0))


def in_one_step(family: Any, shift: np.ndarray, precision: np.ndarray) -> Any:
    """Return a Gaussian of a family by one natural-gradient step, of a quadratic log density.

    :param shift: the change of the mean, shape ``(d,)``.
    :param precision: that of the result, shape ``(d, d)``.
    """
    probes = family.hessian_probes()
    units = np.zeros((probes.max() + 1, len(probes)))
    units[probes, np.arange(len(probes))] = 1.0
    hessian = family.assemble_hessian(family.ops.tensor(-units @ precision, family.loc))
    gradient = family.ops.tensor(precision @ shift, family.loc)
    return family.natural_step(family.bonnet_price(gradient, hessian), 1.0)


def check_shapes(old: ArvizGroups, new: ArvizGroups) -> None:
    """Refuse new rows with which sites are of other shapes, but for the number of rows.

    :param old: latents and data of a run with the earlier rows.
    :raises ValueError: naming the site.
    """
    for name, shape in old.latent_shapes.items():
        if (other := new.latent_shapes.get(name)) != shape:
            raise ValueError(
                f"update() keeps the latents, and with new rows '{name}' has shape {other}, not "
                f"{shape}: fit all rows again, or see sample_groups for new groups."
            )
    for name, site in new.observed.items():
        before = old.observed.get(name)
        if before is None or _in_plates(before.value.shape, before) != before.value.shape:
            continue  # a number for all elements of a plate
        wanted = _in_plates(before.value.shape, site)
        if site.value.shape != wanted:
            raise ValueError(
                f"update() has data of shape {site.value.shape} for '{name}', and its plates want "
                f"{wanted}: only the number of rows may differ from the fit's."
            )


def _in_plates(shape: tuple[int, ...], site: Observed) -> tuple[int, ...]:
    """Return the shape with the sizes of a site's plates."""
    sizes = {plate.axis: plate.size for plate in site.plates}
    return tuple(sizes.get(axis, size) for axis, size in enumerate(shape))


def account(old: Any, steps: Steps, log_weights: np.ndarray, change: Change) -> dict[str, Any]:
    """Return the fields of a changed result that say how it went.

    :param log_weights: at independent draws, of the density that the bound is of.
    """
    finite = log_weights[np.isfinite(log_weights)]
    value = float(finite.mean()) if len(finite) == len(log_weights) else -math.inf
    spread = float(finite.std(ddof=1)) if len(finite) > 1 else math.inf
    error = spread / math.sqrt(len(log_weights))
    validation = Validation(value, math.hypot(error, change.bound_error), spread=spread)
    bound, verdict = steps.bound + change.bound, old.verdict
    is_done = steps.left <= DEFAULTS.tolerance and math.isfinite(value)
    is_done &= abs(value - bound) <= LEVELS.certain * error + DEFAULTS.tolerance
    words = f"{steps.count} natural-gradient steps on these rows leave {steps.left:.2g} nats"
    if not is_done:
        words += f", more than {DEFAULTS.tolerance}, or draws deny their bound: fit all rows"
        verdict = NOT_CONVERGED
    elif not old.converged:
        words += f"; before them: {old.reason}"
    else:
        words += "; other optima have not been looked for"
        verdict = LOCAL if steps.left + change.left_open <= DEFAULTS.tolerance else APPROXIMATE
    if change.drift > DEFAULTS.left:
        words += f"; {change.in_words()}"
    return {
        "verdict": verdict,
        "reason": words,
        "validation": validation,
        "trace": Trace([-bound], [error], [1.0], [steps.left], [len(log_weights)]),
        "restarts": (),
        "optima": (),
    }


def is_part(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Return whether rows of one data set stand in the other, and not by chance.

    So do more of the rows that the other has once than new ones would be, and all rows in their
    order.

    :param one: arrays by name; those with as many rows as most observations are compared.
    """
    names = sorted(one.keys() & other.keys())
    if not names:
        return False
    tables = [
        np.column_stack([found[name].reshape(len(found[name]), -1) for name in names])
        for found in sorted((one, other), key=lambda found: len(found[names[0]]))
    ]
    _, numbers = np.unique(np.concatenate(tables), axis=0, return_inverse=True)
    few, many = np.split(numbers.ravel(), [count := len(tables[0])])
    seen = np.bincount(many, minlength=numbers.max() + 1)
    # A new row is one of those that are there once with about this probability (Good, 1953).
    chance = min(1.0, 2 * (np.sum(seen == 2) + 1) / len(many))
    if scipy.special.bdtrc(np.sum(seen[few] == 1) - 1.0, count, chance) <= LEVELS.tiny**2:
        return True
    # Rows like these, drawn anew, would stand there somewhere with this probability.
    parts = seen[few] / len(many)
    if (parts == 0).any() or len(many) * np.prod(parts) > LEVELS.tiny:
        return False
    windows = np.flatnonzero(many[: len(many) - count + 1] == few[0])
    return any(np.array_equal(many[start : start + count], few) for start in windows)


def next_change(old: Any, q: DenseGaussian) -> Change:
    """Return the change of an update: all that came before is a prior.

    The drift is what it costs that earlier rows count as Gaussians.
    """
    before = old.change or Change()
    spread = (old.validation and old.validation.spread) or 0.0
    return Change(
        mean=q.mean,
        factor=q.factor,
        bound=old.bound,
        bound_error=math.hypot(old.bound_error, spread),
        drift=before.drift + 0.5 * spread**2,
        num_updates=before.num_updates + 1,
    )


def fewer(old: Any, elements: np.ndarray) -> Change:
    """Return the change by rows left out, besides those that were before."""
    before = old.change or Change()
    left_out = np.unique(np.concatenate([before.left_out, elements]).astype(int))
    return dataclasses.replace(before, left_out=left_out)
