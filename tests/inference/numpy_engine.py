"""An engine whose bound is known: a diagonal Gaussian in numpy, and whatever can go wrong.

The bound is minus the divergence from ``N(centre, scale^2)``, so that its optimum is zero, or what
a test makes of it: noise, walls, plateaus, other modes, NaN.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.families.points import Points
from ngvi.inference.engine import Direction, Draws, Engine, Measured, Step
from ngvi.inference.geometry import Geometry


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """``N(loc, exp(2 log_scale))``, and one ordinary parameter, a number or a vector."""

    loc: np.ndarray
    log_scale: np.ndarray
    ordinary: float | np.ndarray = 0.0


#: The logarithm of the width of a point.
POINT = -20.0


@dataclasses.dataclass
class Target:
    """Evaluator and parameters.

    :ivar others: centre and height in nats of further modes, of the same scale.
    :ivar steepness: of the bound; one is that of the Fisher metric at the optimum.
    :ivar coupling: of the latents in units of their scales, a matrix with a unit diagonal, which
        the diagonal Gaussians leave out.
    :ivar is_restricted: whether the metric says so.
    :ivar noise: sd of what a seed adds to a group's gradient with respect to the mean.
    :ivar change: of a place and its bound, what the bound is instead; of a point and its log
        density too, as a place of no width.
    :ivar of_ordinary: value and derivative of what the ordinary parameter adds.
    :ivar of_start: the ordinary parameter before the first step.
    :ivar step: of latent vectors, what their log density has more that no gradient sees.
    :ivar in_double: of latent vectors, their log density in double precision.
    :ivar rows: of which minibatches are, for sweeps.
    :ivar of_prior: mean and standard deviation of the prior that can be sampled.
    :ivar is_dear: whether independent latents come first.
    :ivar is_exact: whether it is one that integrates.
    :ivar collapsed: the place that is taken for that of independent latents, wherever they are.
    """

    centre: np.ndarray
    scale: np.ndarray
    others: tuple = ()
    steepness: float = 1.0
    coupling: np.ndarray | None = None
    is_restricted: bool = False
    noise: float = 0.0
    change: object = None
    of_ordinary: object = None
    of_start: object = 0.0
    step: object = None
    in_double: object = None
    of_prior: object = None
    is_subsampled: bool = False
    is_dear: bool = False
    is_exact: bool = False
    collapsed: Place | None = None
    rows: object = None
    max_pairs: int = 1000
    curvature: str = "spherical"

    asked_for_few: bool = False
    num_gradients: int = 0
    num_hessian_products: int = 0
    num_values: int = 0
    num_doubled: int = 0
    measured: list = dataclasses.field(default_factory=list)
    written: list = dataclasses.field(default_factory=list)

    eps: float = 2.0**-52

    def __post_init__(self):
        self.dim = len(self.centre)
        self.initial = Place(np.zeros(self.dim), np.zeros(self.dim), self.of_start)
        self.has_ordinary = self.of_ordinary is not None
        self.groups = self

    def engine(self):
        return Engine(self, Parameters(self), lambda place, pairs: Metric(self, place, pairs))

    # -- the evaluator ----------------------------------------------------------------

    def draws(self, rng, num_groups):
        points = Points(np.zeros((5, self.dim)), np.full(5, 0.2))
        return [Draws(points, int(seed)) for seed in rng.integers(2**31, size=num_groups)]

    def few(self, rng, num_groups, count=5):
        self.asked_for_few = True
        return [group._replace(is_rough=True) for group in self.draws(rng, num_groups)]

    def measure(self, place, draws):
        self.num_gradients += 5 * len(draws)
        self.measured.append((place, len(draws)))
        shift = np.array(
            [self.noise * np.random.default_rng(g.seed).normal(size=self.dim) for g in draws]
        )
        (gap,), (level,) = self._gaps(place.loc[None])
        log_ratio = place.log_scale - np.log(self.scale)
        variances = np.exp(2 * log_ratio)
        fall = self._fall(gap)
        value = -self.steepness * np.sum(0.5 * (variances + gap * fall - 1) - log_ratio)
        values = level + value + shift @ place.loc
        of_loc = -self.steepness * fall / self.scale + shift
        of_scale = np.broadcast_to(self.steepness * (1 - variances), of_loc.shape)
        ordinary = []
        if self.has_ordinary:
            add, derivative = self.of_ordinary(place.ordinary)
            values, ordinary = values + add, [np.array(derivative)]
        if self.change is not None:
            values = np.array([self.change(place, value) for value in values], float)
        gradients = np.concatenate([of_loc, of_scale], 1)
        vectors = gradients / metric(place)
        mean = Direction(vectors.mean(0), gradients.mean(0), ordinary)
        return Measured(values, vectors, mean)

    def measure_values(self, place, draws):
        """By the score function."""
        values, gradients = [], []
        for noise, _ in (group.points for group in draws):
            theta = place.loc + np.exp(place.log_scale) * noise
            weights = self.values(place, theta) - normal(noise, place.log_scale)
            centred = (weights - weights.mean()) / len(weights)
            of_loc = centred @ noise * np.exp(-place.log_scale)
            gradients.append(np.concatenate([of_loc, centred @ (noise**2 - 1)]))
            values.append(weights.mean())
        vectors = np.stack(gradients) / metric(place)
        ordinary = [np.array(0.0)] if self.has_ordinary else []
        return Measured(
            np.array(values), vectors, Direction(vectors.mean(0), np.mean(gradients, 0), ordinary)
        )

    def values_and_gradients(self, place, theta):
        self.num_gradients += len(theta)
        gaps, levels = self._gaps(theta)
        values = levels - 0.5 * self.steepness * np.sum(gaps * self._fall(gaps), 1)
        if self.has_ordinary:
            values += self.of_ordinary(place.ordinary)[0]
        return np.array(list(map(self._at_point, theta, values))), (
            -self.steepness * self._fall(gaps) / self.scale
        )

    def values(self, place, theta):
        """Densities of which the bound is the average, whatever the steepness."""
        self.num_values += len(theta)
        log_q = normal((theta - place.loc) * np.exp(-place.log_scale), place.log_scale)
        gaps, levels = self._gaps(theta)
        values = levels + log_q + self.steepness * (normal(gaps, np.log(self.scale)) - log_q)
        values -= 0.5 * self.steepness * np.sum(gaps * (self._fall(gaps) - gaps), 1)
        if self.has_ordinary:
            values += self.of_ordinary(place.ordinary)[0]
        if self.change is not None:
            values = np.array(list(map(self._at_point, theta, values)), float)
        return values + (0.0 if self.step is None else self.step(theta))

    def _at_point(self, theta, value):
        if self.change is None:
            return value
        return self.change(Place(theta, np.full(self.dim, POINT)), value)

    def values_in_double(self, place, theta):
        self.num_doubled += len(theta)
        return None if self.in_double is None else self.in_double(theta)

    def prior(self, rng, count):
        if self.of_prior is None:
            return None
        mean, sd = self.of_prior
        return mean + sd * rng.normal(size=(count, self.dim))

    def _fall(self, gaps):
        """The gradient, in units of the scales, of what the gaps cost."""
        return gaps if self.coupling is None else gaps @ self.coupling

    def _gaps(self, theta):
        """From the mode that is the highest at each row, in its standard deviations; its height."""
        centres, heights = zip((self.centre, 0.0), *self.others, strict=True)
        gaps = (theta[:, None] - np.array(centres)) / self.scale
        heights = np.array(heights, float)
        best = np.argmax(heights - 0.5 * np.sum(gaps**2, -1), 1)
        return gaps[np.arange(len(theta)), best], heights[best]

    # -- the parameters ---------------------------------------------------------------

    def at(self, mean, scale):
        mean = self.initial.loc if mean is None else mean
        return Place(mean, np.broadcast_to(np.log(scale), (self.dim,)), self.initial.ordinary)

    def independent(self, place):
        return place if self.collapsed is None else self.collapsed

    def square_distance(self, place, theta):
        return float(np.sum(((theta - place.loc) * np.exp(-place.log_scale)) ** 2))

    def mean(self, place):
        return place.loc

    def stddevs(self, place):
        return {"x": np.exp(place.log_scale)}

    def own(self, place):
        return [np.asarray(place.ordinary)] if self.has_ordinary else []

    def moved(self, place, steps):
        return dataclasses.replace(place, ordinary=place.ordinary + steps[0])

    def write(self, place):
        self.written.append(place)


class Parameters:
    """Those of a target, whose draws are those of its evaluator."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        return getattr(self._target, name)

    def arrays(self, place):
        return [place.loc, place.log_scale, np.array(place.ordinary)]

    def of_arrays(self, arrays):
        loc, log_scale, ordinary = arrays
        return Place(loc, log_scale, ordinary[()])

    def draws(self, place, noise):
        return place.loc + np.exp(place.log_scale) * noise, normal(noise, place.log_scale)


def normal(noise, log_scale):
    """The log density of a normal distribution, at whitened vectors."""
    return -np.sum(0.5 * noise**2 + 0.5 * np.log(2 * np.pi) + log_scale, -1)


def metric(place):
    """The Fisher information of ``(loc, log_scale)``, diagonal."""
    return np.concatenate([np.exp(-2 * place.log_scale), np.full(len(place.loc), 2.0)])


class Metric(Geometry):
    def __init__(self, target, place, pairs):
        super().__init__(place, 2 * target.dim, pairs, is_restricted=target.is_restricted)
        self.max_pairs = min(self.max_pairs, target.max_pairs)

    def covectors(self, vectors):
        return vectors * metric(self.place)

    def step(self, direction, rho, radius):
        while rho > 1e-60:
            loc, log_scale = np.split(rho * direction.vector, 2)
            place = dataclasses.replace(
                self.place,
                loc=self.place.loc + loc,
                log_scale=self.place.log_scale + np.clip(log_scale, -3.0, 3.0),
            )
            length, backward = divergence(place, self.place), divergence(self.place, place)
            if length <= radius:
                change = np.concatenate(
                    [place.loc - self.place.loc, place.log_scale - self.place.log_scale]
                )
                slope = float(direction.covector @ change)
                return Step(place, change, slope, length, backward, rho)
            closer = (max(radius, 0.0) / length) ** 0.5 if np.isfinite(length) else 0.0
            rho *= np.clip(closer, 0.1, 0.7)
        return None


def divergence(one, other):
    """``KL(one || other)``."""
    log_ratio = one.log_scale - other.log_scale
    gap = (one.loc - other.loc) * np.exp(-other.log_scale)
    with np.errstate(over="ignore"):
        return float(np.sum(0.5 * (np.exp(2 * log_ratio) + gap**2 - 1) - log_ratio))
