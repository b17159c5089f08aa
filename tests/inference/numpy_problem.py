"""A problem in numpy: diagonal Gaussians, and a log density of the test's choice.

The bound is estimated at real draws, by the gradient of the log density, which finite differences
give. :func:`best` knows its optimum, by quadrature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from ngvi.estimators.choice import Case
from ngvi.families.points import Points
from ngvi.inference import metric as ngvi_metric
from ngvi.inference.estimate import Direction, Estimate, Group, Step
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import FitOptions
from ngvi.inference.problem import Cost, Problem
from ngvi.inference.samples import Groups
from ngvi.inference.search import Context
from ngvi.latents.layout import Site

#: Of central differences.
WIDTH = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """``N(mean, exp(2 log_scale))``, and parameters of the model's own."""

    mean: np.ndarray
    log_scale: np.ndarray
    own: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @property
    def scale(self):
        return np.exp(self.log_scale)


@dataclasses.dataclass
class Target:
    """An objective and a space.

    :ivar smooth: the log density that gradients see, of vectors ``(N, d)``, and of the model's own
        parameters if there are any.
    :ivar unseen: what is added to its values alone.
    :ivar own: the first parameters of the model's own.
    :ivar noise: the standard deviation of a gradient that the seed of a group adds, as minibatches.
    :ivar of_rows: with ``rows``, the log density of some rows, of vectors and their indices.
    :ivar change: of a state and the bound of a group there, what it is instead.
    :ivar of_prior: mean and standard deviation of the prior, if it can be sampled.
    :ivar is_exact: whether the bound is integrated.
    :ivar double: the log density in double precision.
    :ivar has_free_scales: whether the check of values takes a scale of each latent.
    """

    smooth: Callable
    dim: int = 2
    unseen: Callable | None = None
    own: np.ndarray | None = None
    noise: float = 0.0
    rows: Any = None
    of_rows: Callable | None = None
    change: Callable | None = None
    of_prior: tuple | None = None
    is_subsampled: bool = False
    is_exact: bool = False
    leaves_out_correlations: bool = False
    has_free_scales: bool = True
    double: Callable | None = None
    start: tuple = (0.0, 1.0)
    eps: float = 2.0**-52
    estimator: str = "spherical"
    fault: str = ""
    num_programs = 0

    def __post_init__(self):
        self.cost = Cost()
        self.has_model_parameters = self.own is not None
        own = np.zeros(0) if self.own is None else np.asarray(self.own, float)
        mean, scale = (np.broadcast_to(part, (self.dim,)).astype(float) for part in self.start)
        self.initial = State(mean, np.log(scale), own)
        self.noise_dim = self.dim
        self.groups = Groups.of("spherical", Case(self.dim, 0, None), 1)
        self.written, self.asked, self.num_doubled = [], [], 0

    def problem(self):
        return Problem(self, self, lambda state, pairs: Metric(self, state, pairs))

    # -- the objective ----------------------------------------------------------------

    def sample(self, rng, num_groups):
        if not self.is_exact:
            return self.groups.sample(rng, num_groups)
        one, weights = np.polynomial.hermite_e.hermegauss(20)
        grid = np.stack(np.meshgrid(*[one] * self.dim), -1).reshape(-1, self.dim)
        product = np.stack(np.meshgrid(*[weights] * self.dim), -1).reshape(-1, self.dim).prod(-1)
        return [Group(Points(grid, product / product.sum()), 0) for _ in range(num_groups)]

    def begin_near(self, latent):
        """There are no locals with conditional modes."""

    def bound(self, state, sample, rows=None):
        self.asked.append((state, sample))
        found = [self._of_group(state, group, rows) for group in sample]
        values, gradients, of_own = (np.array(part) for part in zip(*found, strict=True))
        if self.change is not None:
            values = np.array([self.change(state, value) for value in values], float)
        naturals = gradients / fisher(state)
        own = [of_own.mean(0)] if self.has_model_parameters else []
        return Estimate(values, naturals, Direction(naturals.mean(0), gradients.mean(0), own))

    def _of_group(self, state, group, rows):
        (noise, weights), seed = group.points, group.seed
        self.cost.gradients += len(weights)
        theta = state.mean + state.scale * noise
        shift = self.noise * np.random.default_rng(seed).standard_normal(self.dim)
        with np.errstate(all="ignore"):
            values = self._smooth(theta, state.own, rows) + theta @ shift
            slopes = self._slopes(theta, state.own, rows) + shift
            value = weights @ values + state.log_scale.sum() + 0.5 * self.dim * LOG_2_PI_E
            of_scale = weights @ (slopes * noise * state.scale) + 1.0
            of_own = [
                weights @ difference(lambda w: self._smooth(theta, w, rows), state.own, index)
                for index in range(len(state.own))
            ]
        return value, np.concatenate([weights @ slopes, of_scale]), np.array(of_own)

    def gradient(self, state, theta, rows=None):
        self.cost.gradients += len(theta)
        with np.errstate(all="ignore"):
            return self._smooth(theta, state.own, rows), self._slopes(theta, state.own, rows)

    def log_density(self, state, theta, rows=None):
        self.cost.values += len(theta)
        with np.errstate(all="ignore"):
            values = self._smooth(theta, state.own, rows)
            return values if self.unseen is None else values + self.unseen(theta)

    def in_double(self, state, theta):
        self.num_doubled += len(theta)
        return None if self.double is None else self.double(theta)

    def prior(self, rng, count):
        if self.of_prior is None:
            return None, {}
        mean, sd = self.of_prior
        return mean + sd * rng.standard_normal((count, self.dim)), {}

    def _smooth(self, theta, own, rows):
        values = self.smooth(theta, own) if self.has_model_parameters else self.smooth(theta)
        if self.of_rows is not None:
            every = np.arange(self.rows.size) if rows is None else rows
            values = values + self.rows.size / len(every) * self.of_rows(theta, every).sum(1)
        return values

    def _slopes(self, theta, own, rows):
        function = lambda theta: self._smooth(theta, own, rows)  # noqa: E731
        return np.stack([difference(function, theta, index) for index in range(self.dim)], -1)

    # -- the space --------------------------------------------------------------------

    def at(self, mean, scale):
        mean = self.initial.mean if mean is None else mean
        return State(mean, np.log(np.broadcast_to(scale, (self.dim,))), self.initial.own)

    def draw(self, state, noise):
        return state.mean + state.scale * noise, normal(noise) - state.log_scale.sum()

    def log_q(self, state, theta):
        return normal((theta - state.mean) / state.scale) - state.log_scale.sum()

    def square_distance(self, state, theta):
        return float(np.sum(((theta - state.mean) / state.scale) ** 2))

    def mean(self, state):
        return state.mean

    def stddevs(self, state):
        return {"x": state.scale}

    def model_parameters(self, state):
        return {"own": state.own} if self.has_model_parameters else {}

    @property
    def sites(self):
        return (Site("x", 0, (self.dim,)),)

    def moved(self, state, steps):
        return dataclasses.replace(state, own=state.own + steps[0])

    def params(self, state):
        return {"mean": state.mean, "scale": state.scale}

    def write(self, state):
        self.written.append(state)


LOG_2_PI_E = np.log(2 * np.pi) + 1.0


def normal(noise):
    """The log density of ``N(0, I)``."""
    return -0.5 * np.sum(noise**2 + np.log(2 * np.pi), -1)


def difference(function, at, index):
    """The derivative of a function along one coordinate."""
    step = np.zeros(at.shape[-1])
    step[index] = WIDTH
    return (function(at + step) - function(at - step)) / (2 * WIDTH)


def fisher(state):
    """The Fisher information of ``(mean, log_scale)``, a diagonal."""
    return np.concatenate([state.scale**-2.0, np.full(len(state.mean), 2.0)])


class Metric(ngvi_metric.Metric):
    def __init__(self, target, state, pairs):
        super().__init__(state, 2 * target.dim, pairs, target.leaves_out_correlations)

    def gradients(self, naturals):
        return naturals * fisher(self.state)

    def step(self, direction, step_size, radius):
        while step_size > 1e-60 and np.isfinite(direction.natural).all():
            of_mean, of_scale = np.split(step_size * direction.natural, 2)
            of_scale = np.clip(of_scale, -3.0, 3.0)
            old = self.state
            state = dataclasses.replace(
                old, mean=old.mean + of_mean, log_scale=old.log_scale + of_scale
            )
            length, backward = divergence(state, old), divergence(old, state)
            if length <= radius:
                change = np.concatenate([of_mean, of_scale])
                slope = float(direction.gradient @ change)
                return Step(state, change, slope, length, backward, step_size)
            closer = (max(radius, 0.0) / length) ** 0.5 if np.isfinite(length) else 0.0
            step_size *= np.clip(closer, 0.1, 0.7)
        return None


def divergence(one, other):
    """``KL(one || other)``."""
    log_ratio = one.log_scale - other.log_scale
    with np.errstate(over="ignore"):
        gap = (one.mean - other.mean) / other.scale
        return max(float(np.sum(0.5 * (np.exp(2 * log_ratio) + gap**2 - 1) - log_ratio)), 0.0)


# -- what is known of a target ---------------------------------------------------------


def exact_bound(target, state, count=60):
    """By quadrature; of at most three latents."""
    one, weights = np.polynomial.hermite_e.hermegauss(count if target.dim < 3 else 20)
    grid = np.stack(np.meshgrid(*[one] * target.dim), -1).reshape(-1, target.dim)
    product = np.stack(np.meshgrid(*[weights] * target.dim), -1).reshape(-1, target.dim).prod(-1)
    with np.errstate(all="ignore"):
        values = target._smooth(state.mean + state.scale * grid, state.own, None)
        if target.unseen is not None:
            values = values + target.unseen(state.mean + state.scale * grid)
    bound = product @ values / product.sum() + state.log_scale.sum() + 0.5 * target.dim * LOG_2_PI_E
    return float(bound)


def best(target, near=None):
    """The optimum of the bound about a state, and its bound."""
    near = near or target.initial
    dim = target.dim

    def state(numbers):
        return State(*np.split(numbers, [dim, 2 * dim]))

    start = np.concatenate([near.mean, near.log_scale, near.own])
    found = minimize(
        lambda x: -exact_bound(target, state(x)), start, method="BFGS", options={"gtol": 1e-7}
    )
    return state(found.x), -found.fun


# -- densities -------------------------------------------------------------------------

CENTRE, SCALE = np.array([2.0, -1.0]), np.array([0.3, 2.0])
OPTIMUM = State(CENTRE, np.log(SCALE))


def gaussian(theta, centre=CENTRE, scale=SCALE):
    """Normalised, so that its bound is zero at the optimum, :data:`OPTIMUM`."""
    return normal((theta - centre) / scale) - np.log(scale).sum()


def mixture(*parts):
    """Of ``(weight, centre, scale)``; the weights need not add up to one."""

    def log_density(theta):
        logs = [
            np.log(weight) + gaussian(theta, np.asarray(c, float), s * np.ones(theta.shape[-1]))
            for weight, c, s in parts
        ]
        return np.logaddexp.reduce(logs, 0)

    return log_density


def correlated(theta, correlation=0.9):
    """``N(0, [[1, r], [r, 1]])``: the mean field's optimum is ``log(1 - r^2) / 2``."""
    (x, y), rest = theta.T, 1 - correlation**2
    return -0.5 * (x**2 + y**2 - 2 * correlation * x * y) / rest - np.log(2 * np.pi * rest**0.5)


TOLERANCE = 0.05


def monitored(**options):
    return Monitor(**{"max_steps": 400, **options})


def search_of(kind, target, seed=0, state=None, options=None, tolerance=TOLERANCE, **monitor):
    """A search of one target, which has not begun."""
    rng, state = np.random.default_rng(seed), target.initial if state is None else state
    context = Context(target.problem(), rng, tolerance, options or FitOptions())
    return kind(context, monitored(**monitor), state)
