"""The problem of a fit: the seam between deciding and computing.

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
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.estimators.choice import Case, choose
from ngvi.guide.reparametrized import ReparametrizedGaussianGuide
from ngvi.inference.estimate import Estimate, Pairs, Sample, State
from ngvi.inference.metric import Metric
from ngvi.inference.samples import ChainCubature, Groups
from ngvi.latents.layout import Site, pieces, sites_of_all

#: Values of a log density that cost as much as its gradient, by reverse mode (Griewank and Walther,
#: 2008, section 4.6: at most four).
VALUES_OF_A_GRADIENT = 3


@dataclasses.dataclass(frozen=True)
class Prices:
    """Seconds of single evaluations, the least that were seen; NaN of a kind that was not made.

    They are those of a pass over many, and have no compilation in them.
    """

    value: float = math.nan  #: Seconds of a value of the log density.
    gradient: float = math.nan  #: Seconds of a gradient.
    call: float = math.nan  #: Seconds of the shortest call for gradients, of a few points.
    group: float = math.nan  #: Seconds of a group of draws, with its natural gradient.
    by_modes: float = math.nan  #: Seconds of a group with locals by their conditional modes.
    own: float = math.nan  #: Seconds of a gradient without modes, of a fit that tried both ways.
    program: float = math.nan  #: Mean seconds to compile one of NumPyro's programs.

    @property
    def draw(self) -> float:
        """Seconds of a draw of the report: a value, or at most a gradient."""
        return self.gradient if math.isnan(self.value) else self.value


@dataclasses.dataclass
class Cost:
    """Evaluations of a log density."""

    gradients: int = 0
    products: int = 0  #: Hessian-vector products; a Hessian of ``d`` latents counts as ``d``.
    values: int = 0  #: Values besides those that come with gradients.
    passes: int = 0  #: Passes over all minibatches, of values.
    #: NumPyro's programs that were compiled, and those that an earlier fit had left: of other data
    #: of the same shapes none is compiled. Pyro has none.
    compiled: int = dataclasses.field(default=0, compare=False)
    reused: int = dataclasses.field(default=0, compare=False)
    #: Seconds of one of each.
    prices: Prices = dataclasses.field(default=Prices(), compare=False)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of evaluations, by kind."""
        return {name: count for name, count in vars(self).items() if name != "prices"}

    @property
    def evaluations(self) -> int:
        """Gradients and Hessian-vector products."""
        return self.gradients + self.products

    @property
    def total(self) -> float:
        """All of it, in gradients."""
        return self.evaluations + self.values / VALUES_OF_A_GRADIENT

    def become(self, other: Cost) -> None:
        """Take another's counts; who holds this one sees them."""
        vars(self).update(vars(other))

    def share(self, other: Cost) -> None:
        """Let both have the counts of both; what one takes stays their own."""
        for name, own in self.counts.items():
            total = own + getattr(other, name)
            setattr(self, name, total)
            setattr(other, name, total)


class Rows(NamedTuple):
    """The plate of which a model sees a part."""

    plate: str
    size: int  #: Size of the plate.
    visited: int  #: Rows of a minibatch.


def fraction(plates: dict[str, tuple[int, int]], batch: str) -> float:
    """Return which part of all rows a batch has.

    :param plates: for each that is seen in parts, how many rows are seen, and how many there are.
    :param batch: an example for words.
    :raises ValueError: if the model sees all rows of its plates, or plates say different things.
    """
    found = {name: visited / size for name, (visited, size) in plates.items()}
    if not found:
        raise ValueError(
            "The model treats every batch as all rows. Give the number of all rows by "
            f"{batch}, where y has the rows of the batch."
        )
    first = next(iter(found.values()))
    if not all(math.isclose(part, first) for part in found.values()):
        words = ", ".join(f"{100 * part:.4g}% of '{name}'" for name, part in found.items())
        raise ValueError(f"A batch has {words}: all plates must have the same part of their rows.")
    return first


#: Model and guide, with their arguments.
ModelRun = tuple[Callable, Any, tuple, dict[str, Any]]


class Objective(Protocol):
    """Runs the model; what both packages share of it is here.

    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar cost: of everything so far.
    :ivar fault: which part of the data had no finite log density, in words; or nothing.
    :ivar is_subsampled: whether the model sees minibatches.
    :ivar rows: the plate that they are of, if it is one and the model can be given its rows.
    """

    dim: int
    cost: Cost
    fault: str = ""
    is_subsampled: bool
    rows: Rows | None
    guide: Any
    _chosen: Callable[[], tuple[str, Groups]]
    _fractions: dict[tuple, float]
    #: A plate that has the rows of a batch, as the user writes it.
    batch_in_words: str

    def _choose(self, estimator: str, data_size: int, case: Case) -> None:
        """Choose the estimator and its groups; ``"auto"`` when these are asked for."""
        self.guide, self.dim, self.cost, self._fractions = case.guide, case.dim, Cost(), {}
        cubature = ChainCubature.of_guide(case.guide)
        case = case._replace(has_paths=cubature is not None)

        def chosen() -> tuple[str, Groups]:
            found = choose(estimator, case).curvature
            return found, Groups.of(found, case, data_size, cubature)

        self._chosen = functools.cache(chosen)
        if estimator != "auto":
            self._chosen()

    @property
    def estimator(self) -> str:
        """Name of the estimator, one of :data:`ngvi.estimators.choice.CURVATURES_OF_FIT`."""
        return self._chosen()[0]

    @property
    def groups(self) -> Groups:
        """Groups of draws, and their cost."""
        return self._chosen()[1]

    @property
    def sample(self) -> Callable[[np.random.Generator, int], Sample]:
        """Gives fresh groups of draws."""
        return self.groups.sample

    @property
    def is_random(self) -> bool:
        """Return whether the log density is another one at each call."""
        return self.is_subsampled

    @property
    def num_programs(self) -> int:
        """Number of programs that were compiled so far, in the whole process."""
        return 0

    @property
    def is_exact(self) -> bool:
        """Return whether :meth:`bound` integrates, so that its draws bring no noise."""
        return self.estimator == "quadrature" and not self.is_random

    def see(self, args: tuple, kwargs: dict[str, Any]) -> float:
        """Look at a batch of the data, and return which part of all rows it is."""
        shapes = self._take(args, kwargs)
        if shapes not in self._fractions:
            self._fractions[shapes] = fraction(self._parts(args, kwargs), self.batch_in_words)
        return self._fractions[shapes]

    def _take(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """Take other arguments for the model's, and return the shapes of their arrays."""

    def _parts(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, tuple[int, int]]:
        """Return, for each plate that is seen in parts, how many rows are seen, and all."""

    def begin_near(self, latent: np.ndarray) -> None:
        """Begin searches for conditional modes of locals at those for these latents, ``(d,)``."""
        if isinstance(self.guide, ReparametrizedGaussianGuide):
            self.guide.begin_near(latent)

    def bound(self, state: State, sample: Sample, rows: np.ndarray | None = None) -> Estimate:
        """Return the bound and its natural gradient; not finite where the model is not.

        :param rows: of the subsampled plate; None leaves them to the seeds of the draws.
        """

    def gradient(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and their gradients at latent vectors, each by itself.

        :param theta: shape ``(N, d)``.
        """

    def log_density(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Return log densities at latent vectors, with the state's parameters of the model."""

    def in_double(self, state: State, theta: np.ndarray) -> np.ndarray | None:
        """Return log densities in double precision; None where that cannot be."""

    def prior(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray | None, dict[str, float]]:
        """Return draws of all latents from the model's prior, or None if it cannot be sampled.

        :return: shape ``(count, d)``; and which parameters of distributions are outside of their
            domain, in words, at which part of the draws.
        """


class StateSpace(Protocol):
    """Makes states, and reads them; what both packages share of it is here.

    :ivar initial: the state before the first step.
    :ivar dims: the number of latents of each family, by the guide's sites.
    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar noise_dim: numbers of noise that a draw takes, one more of a mixture.
    :ivar has_free_scales: whether each whitened latent can be widened alone.
    :ivar eps: the precision of the floating point numbers.
    :ivar has_model_parameters: whether the model has parameters of its own.
    """

    initial: State
    dims: dict[str, int]
    dim: int
    noise_dim: int
    has_free_scales: bool
    eps: float
    has_model_parameters: bool

    def families(self, state: State) -> list[Any]:
        """Return the families of a state, in the order of the sites."""

    def with_families(self, state: State, families: list[Any]) -> State:
        """Return a state with other families."""

    def array(self, values: np.ndarray) -> Any:
        """Return an array of the package's own, in the precision of the families."""

    def numbers(self, array: Any) -> np.ndarray:
        """Return an array of numpy's, in double precision."""

    def gaussians(self) -> dict[str, Any]:
        """Return the ``NaturalGaussianGuide`` in the guide, by the names of their latents."""

    def new_families(self, locs: list[Any], scales: list[Any]) -> list[Any]:
        """Return families like the initial ones with these means and standard deviations."""

    def all_stddevs(self, families: list[Any]) -> list[Any]:
        """Return the standard deviations of some families."""
        return [family.stddev for family in families]

    def draw(self, state: State, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return latent vectors ``mean + C z``, shape ``(N, d)``, and their ``log q``, ``(N,)``.

        :param noise: shape ``(N, noise_dim)``.
        """

    def log_q(self, state: State, theta: np.ndarray) -> np.ndarray:
        """Return ``log q`` of any latent vectors, shape ``(N, d)``; shape ``(N,)``."""

    def square_distance(self, state: State, theta: np.ndarray) -> float:
        """Return the squared Mahalanobis distance of one latent vector from the state's mean."""

    def model_parameters(self, state: State) -> dict[str, np.ndarray]:
        """Return the parameters of the model's own, unconstrained, by their names."""

    def moved(self, state: State, steps: list[np.ndarray]) -> State:
        """Return the state after steps of the model's own parameters."""

    def write(self, state: State) -> None:
        """Make a state that of the guide, if the guide keeps its parameters."""

    def split(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Return the parts of vectors of all latents, shape ``(..., d)``, in the sites' order."""
        return np.split(vectors, np.cumsum(list(self.dims.values()))[:-1], -1)

    def at(self, mean: np.ndarray | None, scale: float | np.ndarray) -> State:
        """Return the initial state with ``N(mean, diag(scale^2))``, by default its own mean."""
        mean = self.mean(self.initial) if mean is None else mean
        vectors = mean, np.broadcast_to(scale, mean.shape).copy()
        parts = ([*map(self.array, self.split(vector))] for vector in vectors)
        return self.with_families(self.initial, self.new_families(*parts))

    def components(self, state: State) -> tuple[list[State], np.ndarray]:
        """Return states of a mixture's base, and their log weights, shape ``(K,)``."""
        (family,) = self.families(state)
        states = [self.with_families(state, [one]) for one in family.components]
        return states, self.numbers(family.log_weights)

    def mixture(self, states: list[State], log_weights: np.ndarray) -> State:
        """Return the inverse of :meth:`components`; the states are of a space of the base."""
        (family,), components = self.families(self.initial), [self.families(s)[0] for s in states]
        found = type(family).of(components, self.array(log_weights))
        return self.with_families(self.initial, [found])

    def mean(self, state: State) -> np.ndarray:
        """Return the mean of all latents, shape ``(d,)``."""
        return np.concatenate([self.numbers(family.mean) for family in self.families(state)])

    def stddevs(self, state: State) -> dict[str, np.ndarray]:
        """Return standard deviations of the unconstrained latents, by the model's sites."""
        found = map(self.numbers, self.all_stddevs(self.families(state)))
        stddevs, named = dict(zip(self.dims, found, strict=True)), {}
        for name, part in self.gaussians().items():
            named.update(pieces(part.sites, stddevs.get(name, np.zeros(0))))
        return named or stddevs

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that the latents belong to, in their order."""
        own = {name: part.own_sites for name, part in self.gaussians().items()}
        return sites_of_all(self.dims, own)


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
        """Return one unit of rounding of a log density or a bound, in nats."""
        return self.space.eps * abs(value)

    def replace(self, **changes: Any) -> Problem:
        """Replace parts."""
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
        if self._found is None or self._state is not state:
            self._found, self._state = self.inner.bound(state, sample[:1]), state
        return self._found.repeated(len(sample))
