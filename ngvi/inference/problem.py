"""What a fit needs of a model and a guide: the seam between deciding and computing.

A *state* holds the parameters of model and guide. Only the two parts of a :class:`Problem` look
into it: the :class:`Objective`, which runs the model, and the :class:`StateSpace`, which makes and
reads states. Everything else is numpy's. A *natural gradient* is a change of all Gaussians of a
state, its coordinates one after another. The *gradient* that belongs to it is the Fisher
information of the state times it, and its products with other changes are their Fisher inner
products.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.inference.estimate import Estimate, Pairs, Sample, State
from ngvi.inference.metric import Metric
from ngvi.inference.samples import Groups
from ngvi.latents.layout import Site

#: Values of a log density that cost as much as its gradient, by reverse mode (Griewank and Walther,
#: 2008, section 4.6: at most four).
VALUES_OF_A_GRADIENT = 3


@dataclasses.dataclass
class Cost:
    """What has been evaluated of a log density."""

    gradients: int = 0
    products: int = 0  #: Hessian-vector products; a Hessian of ``d`` latents counts as ``d``
    values: int = 0  #: besides those that come with gradients
    passes: int = 0  #: over all minibatches, of values
    #: NumPyro's programs that were compiled, and those that an earlier fit had left: of other data
    #: of the same shapes none is compiled. Pyro has none.
    compiled: int = dataclasses.field(default=0, compare=False)
    reused: int = dataclasses.field(default=0, compare=False)
    #: Of this process, in evaluations by programs that were there already.
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def counts(self) -> dict[str, int]:
        """All but the time, by name."""
        return {name: int(value) for name, value in vars(self).items() if name != "seconds"}

    @property
    def evaluations(self) -> int:
        """Gradients and Hessian-vector products."""
        return self.gradients + self.products

    @property
    def total(self) -> float:
        """All of it, in gradients."""
        return self.evaluations + self.values / VALUES_OF_A_GRADIENT

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def become(self, other: Cost) -> None:
        """Take another's counts; who holds this one sees them."""
        vars(self).update(vars(other))

    def share(self, other: Cost) -> None:
        """Let both have the counts of both."""
        total = self + other
        self.become(total)
        other.become(total)


def timed(evaluate: Callable) -> Callable:
    """Return a method of an :class:`Objective` whose time counts, but for that of compilation."""

    @functools.wraps(evaluate)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        cost, programs, start = self.cost, self.num_programs, time.perf_counter()
        before = cost.seconds
        found = evaluate(self, *args, **kwargs)
        if programs == self.num_programs:
            cost.seconds = before + time.perf_counter() - start  # with calls of the same inside
        return found

    return run


class Rows(NamedTuple):
    """The plate of which a model sees a part."""

    plate: str
    size: int  #: of the plate
    visited: int  #: rows of a minibatch


class Objective(Protocol):
    """Runs the model.

    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar cost: of everything so far.
    :ivar is_subsampled: whether the model sees minibatches.
    :ivar rows: the plate that they are of, if it is one and the model can be given its rows.
    :ivar estimator: its name, one of :data:`ngvi.estimators.choice.CURVATURES_OF_FIT`.
    :ivar groups: of what a group of draws is made.
    """

    dim: int
    cost: Cost
    is_subsampled: bool
    rows: Rows | None
    estimator: str
    groups: Groups

    @property
    def is_exact(self) -> bool:
        """Whether :meth:`bound` integrates, so that its draws bring no noise."""

    @property
    def fault(self) -> str:
        """Which part of the data had no finite log density, in words; or nothing."""

    def sample(self, rng: np.random.Generator, num_groups: int) -> Sample:
        """Fresh groups of draws."""

    def bound(self, state: State, sample: Sample) -> Estimate:
        """Return the bound and its natural gradient; not finite where the model is not.

        :param sample: of :meth:`sample`, or groups of few random draws, which have Stein's lemma.
        """

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log density and its gradient at vectors of all latents, shape ``(N, d)``, each by
        itself.
        """

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        """At vectors of all latents, shape ``(N, d)``, with the state's parameters of the model."""

    def in_double(self, state: State, theta: np.ndarray) -> np.ndarray | None:
        """As :meth:`log_density`, in double precision; None where that cannot be."""

    def prior(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Draws of all latents from the model's prior, shape ``(count, d)``; None if it has none
        that can be sampled.
        """


class StateSpace(Protocol):
    """Makes states, and reads them.

    :ivar initial: the state before the first step.
    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar noise_dim: numbers of noise that a draw takes, one more of a mixture.
    :ivar eps: the precision of the floating point numbers.
    :ivar has_model_parameters: whether the model has parameters of its own.
    """

    initial: State
    dim: int
    noise_dim: int
    eps: float
    has_model_parameters: bool

    @property
    def sites(self) -> tuple[Site, ...]:
        """That the latents belong to, in their order."""

    def at(self, mean: np.ndarray | None, scale: float | np.ndarray) -> State:
        """Return the initial state with ``N(mean, diag(scale^2))``, by default its own mean."""

    def mean_field(self, state: State) -> State:
        """Return a state of independent latents with the same means and standard deviations."""

    def draw(self, state: State, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latent vectors ``mean + C z``, shape ``(N, d)``, and their ``log q``, shape ``(N,)``.

        :param noise: shape ``(N, noise_dim)``.
        """

    def log_q(self, state: State, theta: np.ndarray) -> np.ndarray:
        """``log q`` of any latent vectors, shape ``(N, d)``; shape ``(N,)``."""

    def components(self, state: State) -> tuple[list[State], np.ndarray]:
        """Of a mixture: states of a space of its base, and their log weights, shape ``(K,)``."""

    def mixture(self, states: list[State], log_weights: np.ndarray) -> State:
        """Return the inverse of :meth:`components`; the states are of a space of the base."""

    def square_distance(self, state: State, theta: np.ndarray) -> float:
        """Return the squared Mahalanobis distance of one latent vector from the state's mean."""

    def mean(self, state: State) -> np.ndarray:
        """Return the mean of all latents, shape ``(d,)``."""

    def stddevs(self, state: State) -> dict[str, np.ndarray]:
        """Return standard deviations of the unconstrained latents, by the model's sites."""

    def model_parameters(self, state: State) -> dict[str, np.ndarray]:
        """Return the parameters of the model's own, unconstrained, by their names."""

    def moved(self, state: State, steps: list[np.ndarray]) -> State:
        """Return the state after steps of the model's own parameters."""

    def write(self, state: State) -> None:
        """Make a state that of the guide, if the guide keeps its parameters."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A bound to be maximised."""

    objective: Objective
    space: StateSpace
    #: The metric of a state, corrected by pairs of the quasi-Newton memory.
    metric: Callable[[State, Pairs], Metric]

    def log_weights(self, state: State, noise: np.ndarray) -> np.ndarray:
        """``log p(y, theta) - log q(theta)`` in nats, at draws of noise, ``(N, noise_dim)``."""
        theta, log_q = self.space.draw(state, noise)
        return self.objective.log_density(state, theta) - log_q

    def rounding(self, value: float) -> float:
        """One unit of rounding of a log density or a bound, in nats."""
        return self.space.eps * abs(value)

    def replace(self, **changes: Any) -> Problem:
        """With other parts."""
        return dataclasses.replace(self, **changes)


class Forwarding:
    """An objective that does some things in its own way, and leaves the others to another."""

    def __init__(self, inner: Objective) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.inner, name)


class Integrated(Forwarding):
    """An objective without noise, which is asked once for the bound of a state."""

    def __init__(self, inner: Objective) -> None:
        super().__init__(inner)
        self._state: State = None
        self._found: Estimate | None = None

    def bound(self, state: State, sample: Sample) -> Estimate:
        if len(sample[0].points.weights) > self.groups.cost.num_gradients:  # a few random draws
            return self.inner.bound(state, sample)
        if self._found is None or self._state is not state:
            self._found, self._state = self.inner.bound(state, sample[:1]), state
        return self._found.repeated(len(sample))
