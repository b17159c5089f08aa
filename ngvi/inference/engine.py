"""What a search needs of a model and a guide: the seam between deciding and computing.

A *place* is the parameters of model and guide; only the three rooms of an :class:`Engine` look
into it. Everything else is numpy's: a *vector* is a change of all Gaussians of a place, its
coordinates one after another, and a *covector* is the Fisher information ``F`` of the place times a
vector, whose products with other vectors are their Fisher inner products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ngvi.families.points import Points

if TYPE_CHECKING:
    from ngvi.inference.geometry import Geometry
    from ngvi.inference.groups import Groups
    from ngvi.inference.sweep import Rows

#: The parameters of model and guide.
Place = Any


class Draws(NamedTuple):
    """One group: points, and the seed of everything else that is random."""

    points: Points
    seed: int
    is_rough: bool = False  #: whether one minibatch is enough for it, where a sweep sees all


class Direction(NamedTuple):
    """A natural gradient of the bound, or a correction of it."""

    vector: np.ndarray  #: shape ``(n,)``
    covector: np.ndarray  #: the gradient: ``F`` of its place times the natural one
    ordinary: Sequence[np.ndarray] = ()  #: gradients of the parameters that are not Gaussian


class Measured(NamedTuple):
    """Groups of draws at one place."""

    values: np.ndarray  #: the bound of each, in nats, shape ``(groups,)``
    vectors: np.ndarray  #: the natural gradient of each, shape ``(groups, n)``
    mean: Direction  #: the average over all groups

    @property
    def value(self) -> float:
        """The average bound in nats."""
        return float(self.values.mean())

    def repeated(self, count: int) -> Measured:
        """What so many groups find where there is no noise."""
        return Measured(np.tile(self.values, count), np.tile(self.vectors, (count, 1)), self.mean)

    def joined(self, other: Measured) -> Measured:
        """With further groups at the same place."""
        values = np.concatenate([self.values, other.values])
        vectors = np.concatenate([self.vectors, other.vectors])
        part = len(self.values) / len(values)
        of_mean = part * self.mean.covector + (1.0 - part) * other.mean.covector
        pairs = zip(self.mean.ordinary, other.mean.ordinary, strict=True)
        ordinary = [part * one + (1.0 - part) * two for one, two in pairs]
        return Measured(values, vectors, Direction(vectors.mean(0), of_mean, ordinary))


class Step(NamedTuple):
    """Where a step leads."""

    place: Place
    change: np.ndarray  #: the vector from the old Gaussians to the new ones
    slope: float  #: of the bound along the change, at its beginning, in nats
    length: float  #: ``KL(new || old)`` in nats
    backward: float  #: ``KL(old || new)`` in nats
    rho: float  #: the step size


class Evaluator(Protocol):
    """Runs the model.

    :ivar is_subsampled: whether the model sees minibatches.
    :ivar rows: the plate they are of, if it is one and the model can be told its rows, for
        :mod:`~ngvi.inference.sweep`.
    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar curvature: the name of the estimator, one of
        :data:`ngvi.estimators.choice.CURVATURES_OF_FIT`.
    :ivar groups: of what a group of draws is made.
    :ivar is_dear: whether one costs so much that independent latents shall come first.
    :ivar is_exact: whether :meth:`measure` integrates, so that its draws bring no noise.
    :ivar num_gradients: gradients of the log density so far.
    :ivar num_hessian_products: Hessian-vector products so far.
    :ivar num_values: values of the log density so far, besides those of gradients.
    """

    is_subsampled: bool
    rows: Rows | None
    dim: int
    curvature: str
    groups: Groups
    is_dear: bool
    is_exact: bool
    num_gradients: int
    num_hessian_products: int
    num_values: int

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient; not finite where the model is not.

        :param draws: of :meth:`draws`, or groups of few random draws, which have Stein's lemma.
        """

    def values_and_gradients(
        self, place: Place, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The log density and its gradient at vectors of all latents, shape ``(N, d)``, each by
        itself, with the place's ordinary parameters.
        """

    def measure_values(self, place: Place, draws: list[Draws]) -> Measured:
        """As :meth:`measure`, from values of the log density alone; ordinary parameters get no
        gradient.
        """

    def values(self, place: Place, theta: np.ndarray) -> np.ndarray:
        """The log density at vectors of all latents, shape ``(N, d)``, with the place's ordinary
        parameters.
        """

    def values_in_double(self, place: Place, theta: np.ndarray) -> np.ndarray | None:
        """As :meth:`values`, with all numbers in double precision; None where that cannot be, as
        for a model that is random or insists on single precision, or with more data than are to be
        copied.
        """

    def prior(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Draws of all latents from the model's prior, shape ``(count, d)``; None if it has none
        that can be sampled.
        """


class Parameters(Protocol):
    """Makes places, and reads them.

    :ivar initial: the place before the first step.
    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar eps: the precision of the floating point numbers.
    :ivar has_ordinary: whether there are parameters that are not Gaussian.
    """

    initial: Place
    dim: int
    eps: float
    has_ordinary: bool

    def at(self, mean: np.ndarray | None, scale: float | np.ndarray) -> Place:
        """The initial place with ``N(mean, diag(scale^2))``; by default with its own mean."""

    def independent(self, place: Place) -> Place:
        """A place of mean field with the same means and marginal standard deviations."""

    def draws(self, place: Place, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latent vectors ``mean + C z``, shape ``(N, d)``, and their ``log q``, shape ``(N,)``."""

    def square_distance(self, place: Place, theta: np.ndarray) -> float:
        """The squared Mahalanobis distance of one latent vector from the place's mean."""

    def mean(self, place: Place) -> np.ndarray:
        """The mean of all latents, shape ``(d,)``."""

    def stddevs(self, place: Place) -> dict[str, np.ndarray]:
        """Marginal standard deviations of the unconstrained latents, by the model's sites."""

    def own(self, place: Place) -> list[np.ndarray]:
        """The parameters that are not Gaussian, unconstrained."""

    def moved(self, place: Place, steps: list[np.ndarray]) -> Place:
        """The place after steps of the parameters that are not Gaussian."""

    def arrays(self, place: Place) -> list[np.ndarray]:
        """The numbers of a place, in a fixed order, for a file."""

    def of_arrays(self, arrays: list[np.ndarray]) -> Place:
        """The place of which :meth:`arrays` are these."""

    def write(self, place: Place) -> None:
        """Make a place that of the guide, if the guide keeps its parameters."""


class Engine(NamedTuple):
    """The three rooms: one that runs the model, one for the metric, one for the parameters."""

    evaluator: Evaluator
    parameters: Parameters
    #: The metric of a place, with pairs of the quasi-Newton memory.
    geometry: Callable[[Place, list[tuple[np.ndarray, np.ndarray]]], Geometry]


class Around:
    """A room of an engine that does some things in its own way, and leaves the others to a room.

    :param inner: the room inside.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._inner, name)
