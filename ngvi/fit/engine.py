"""What a search needs of a model and a guide: the seam between deciding and computing.

A *place* is the parameters of model and guide, a *direction* a change of all Gaussians among
them, with the gradients of the ordinary parameters. Only an engine looks into them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.points import Points

#: The parameters of model and guide.
Place = Any
#: A natural gradient, or another change of the Gaussians, and gradients of other parameters.
Direction = Any
#: A change of the Gaussians alone.
Change = Any


class Draws(NamedTuple):
    """One group: points, and the seed of everything else that is random."""

    points: Points
    seed: int


class Measured(NamedTuple):
    """Groups of one place: minus the loss of each, in nats, and its natural gradient."""

    values: np.ndarray
    directions: list[Direction]


class Step(NamedTuple):
    """Where a step leads."""

    place: Place
    change: Change  #: what was added to the Gaussians' coordinates
    slope: float  #: of the bound along the change, at its beginning
    length: float  #: ``KL(new || old)`` in nats
    backward: float  #: ``KL(old || new)`` in nats
    rho: float  #: the step size


class Engine(Protocol):
    """Evaluates a model and moves its Gaussians.

    :ivar initial: the parameters before the first step.
    :ivar dim: the number of latents of all Gaussians.
    :ivar eps: the precision of the floating point numbers.
    :ivar max_pairs: how many pairs of the quasi-Newton memory there is room for.
    :ivar has_ordinary: whether there are parameters that are not Gaussian.
    :ivar num_gradients: gradients of the log density so far.
    :ivar num_hessian_products: Hessian-vector products so far.
    """

    initial: Place
    dim: int
    eps: float
    max_pairs: int
    has_ordinary: bool
    num_gradients: int
    num_hessian_products: int

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient, by group."""

    def mean(self, measured: Measured) -> Direction:
        """The average direction over all groups."""

    def deviations(self, measured: Measured, mean: Direction) -> list[Direction]:
        """The groups' directions minus their mean."""

    def difference(self, left: Direction, right: Direction) -> Direction:
        """``left - right``."""

    def slope(self, place: Place, direction: Direction, change: Change) -> float:
        """The derivative of the bound along a change of the Gaussians, in nats."""

    def corrected(
        self, place: Place, direction: Direction, pairs: list[tuple[Change, Direction]]
    ) -> tuple[Direction, float, float]:
        """The quasi-Newton direction, from what earlier steps did to the natural gradient.

        :param pairs: changes of the Gaussians, and the falls of the direction along them.
        :return: the direction, the gain that a quadratic bound would have along it, and the gain
            that the Fisher metric predicts, both in nats.
        """

    def step(self, place: Place, direction: Direction, rho: float, radius: float) -> Step | None:
        """The step ``rho`` along a direction, shorter if it would leave the trust region.

        :param radius: the largest ``KL(new || old)``, in nats.
        :return: None if no step leads to a finite Gaussian.
        """

    def update_ordinary(self, place: Place, direction: Direction, step_size: float) -> Place:
        """Move the parameters that are not Gaussian, by Adam with this learning rate."""

    def at(self, locs: dict[str, np.ndarray] | None, scale: float) -> Place:
        """The initial parameters with ``N(loc, scale^2 I)``; by default at the guide's means."""

    def locs(self, place: Place) -> dict[str, np.ndarray]:
        """The Gaussians' means by site."""

    def stddevs(self, place: Place) -> dict[str, np.ndarray]:
        """The Gaussians' marginal standard deviations by site."""

    def is_too_wide(self, place: Place) -> bool:
        """Whether a standard deviation is one that hardly any proper posterior has."""

    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density and its gradient at one joint latent vector."""

    def joint(self, locs: dict[str, np.ndarray]) -> np.ndarray:
        """One vector of the latents of all sites."""

    def split(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """The latents by site: the inverse of :meth:`joint`."""
