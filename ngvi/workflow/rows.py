"""Log likelihoods of a model's observations, one by one."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.estimators.nodes import (
    NodeSums,
    PredictorCovariance,
    TermMoments,
    halved_nodes,
    nodes,
    pairs,
)
from ngvi.estimators.options import DEFAULTS as ESTIMATORS
from ngvi.estimators.points import map_tree
from ngvi.latents.layout import Plate
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS


class RowSite(NamedTuple):
    """An observed site, whose *elements* are those of its log density."""

    name: str
    shape: tuple[int, ...]  #: Shape of its log density.
    plates: tuple[Plate, ...]  #: Whose axes are those of that shape.

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=int))


class ObservedRows(Protocol):
    """The elements of all observed sites, ``M`` of them, one site after another.

    :ivar sites: in their order.
    :ivar weights: how many times the model counts each, its ``scale``; shape ``(M,)``.
    :ivar is_masked: which a mask leaves out, so that they are no observations; shape ``(M,)``.
    :ivar factors: names of statements that add to the log density and have no data.
    :ivar eps: the precision in which the model computes.
    :ivar is_enumerated: whether discrete latents are summed out, so that there are no elements.
    """

    sites: tuple[RowSite, ...]
    weights: np.ndarray
    is_masked: np.ndarray
    factors: tuple[str, ...]
    is_enumerated: bool
    eps: float

    def running(self) -> AbstractContextManager:
        """Hold what the model reads during many calls."""

    def parts(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each once, at latent vectors ``(K, d)``, in nats, and the rest of the log density.

        :return: shapes ``(K, M)`` and ``(K,)``.
        """

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log likelihoods and their gradients, shape ``(K, M, d)``."""

    def weighted(
        self, theta: np.ndarray, weights: np.ndarray, prior: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted log density, ``(K,)``, and its gradient, ``(K, d)``.

        :param weights: of the elements, shape ``(K, M)``.
        :param prior: how many times all that is no element counts.
        """

    def predictors(self) -> tuple[Predictors, WeightedTerms | None] | None:
        """Return elements as functions of one or two affine functions of the latents, or None.

        The rest of the density comes as terms of such functions, if it is that.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Predictors:
    """Elements as functions of ``P`` affine functions of the latents, one or two.

    :param offset: shape ``(P, M)``.
    :param slopes: ``J``, shape ``(P, M, d)``.
    :param derivatives: from predictors, ``P`` arrays of shape ``(B, M)``, to the log likelihoods
        and their derivatives.
    :param eps: the precision in which the model computes these.
    """

    offset: np.ndarray
    slopes: np.ndarray
    derivatives: Callable[[list[np.ndarray]], TermMoments]
    eps: float = float(np.finfo(float).eps)

    @property
    def count(self) -> int:
        """``P``."""
        return len(self.slopes)

    def of(self, element: int) -> Predictors:
        """Return the affine functions of one element; its values are those of all."""
        some = slice(element, element + 1)
        return dataclasses.replace(self, offset=self.offset[:, some], slopes=self.slopes[:, some])

    def values(self, at: list[np.ndarray]) -> np.ndarray:
        """Return the log likelihoods, shape ``(B, M)``."""
        size = self._at_once
        parts = (
            self.derivatives([one[start : start + size] for one in at]).value
            for start in range(0, len(at[0]), size)
        )
        return np.concatenate(list(parts))

    def at(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return the predictors at latent vectors of shape ``(K, d)``."""
        pairs_of = zip(self.offset, self.slopes, strict=True)
        return [offset + theta @ slope.T for offset, slope in pairs_of]

    def under(self, q: DenseGaussian) -> tuple[np.ndarray, np.ndarray]:
        """Return means ``(P, M)`` and ``J C``, ``(P, M, d)``; or of Gaussians ``(P, U, M)``."""
        slopes = self.slopes if q.mean.ndim == 1 else self.slopes[:, None]
        offset = self.offset if q.mean.ndim == 1 else self.offset[:, None]
        return offset + (slopes @ q.mean[..., None])[..., 0], slopes @ q.factor

    def expected(self, means: np.ndarray, spreads: np.ndarray) -> TermMoments:
        """Return expectations of the elements and their derivatives, by quadrature.

        :param means: shape ``(P, M)``, or of several Gaussians ``(P, U, M)``.
        :param spreads: whose products, summed over the last axis, are covariances.
        """
        return self._resolved(means, spreads)[0].mean()

    def are_smooth(self, q: DenseGaussian) -> bool:
        """Return whether quadrature misses nothing: of a kink it misses the curvature."""
        return not self._resolved(*self.under(q))[1]

    def _resolved(self, means: np.ndarray, spreads: np.ndarray) -> tuple[NodeSums, bool]:
        """Return sums over as many nodes as it takes, and whether they miss something."""
        if means.ndim == 2:
            sums, missed = self._resolved(means[:, None], spreads[:, None])
            return map_tree(lambda x: x[0], sums), missed
        covariance = PredictorCovariance.of(list(spreads), np)
        waiting = np.arange(means.shape[1])
        found: Any = None
        for halvings in range(DEFAULTS.max_halvings + 1):
            at = halved_nodes(self.count, halvings)
            some = map_tree(lambda x, of=waiting: x[of], covariance)
            sums = self._sums(list(means[:, waiting]), some, at)
            missed = sums.missed(some, self.eps, np).sum(-1) > ESTIMATORS.max_missed
            if found is None:
                found = sums
            else:
                map_tree(lambda x, y, of=waiting: x.__setitem__(of, y), found, sums)
            if not missed.any() or len(at) * means[0, waiting].size > DEFAULTS.max_numbers:
                break
            waiting = waiting[missed]
        return found, bool(np.any(missed))

    def log_mean(self, means: np.ndarray, spreads: np.ndarray) -> np.ndarray:
        """Return ``log E[exp l]`` of each element by quadrature, shape ``(M,)``.

        :param means: shape ``(P, M)``.
        :param spreads: whose products, summed over the last axis, are covariances.
        """
        covariance = PredictorCovariance.of(list(spreads), np)
        same = max(DEFAULTS.same_log_mean, DEFAULTS.rounding_units * self.eps) ** 0.5
        for halvings in range(DEFAULTS.max_halvings + 1):
            halves = self._log_means(means, covariance, halvings)
            found = np.logaddexp(*halves) - np.log(2.0)
            with np.errstate(invalid="ignore"):
                # By half of the nodes the error is the root of what it is by all, or more.
                missed = np.abs(halves[0] - halves[1]) > same * (1.0 + np.abs(found))
            numbers = len(halved_nodes(self.count, halvings)) * means.shape[1]
            if not missed.any() or numbers > DEFAULTS.max_numbers:
                break
        return found

    def _log_means(
        self, means: np.ndarray, covariance: PredictorCovariance, halvings: int
    ) -> np.ndarray:
        """Integrate by the nodes of either colour of a chequerboard, shape ``(2, M)``."""
        at = halved_nodes(self.count, halvings)
        distance = nodes(self.count)[1] / 2**halvings
        colours = np.floor(at / distance).sum(1).astype(int) % 2
        logs = -0.5 * (at**2).sum(1)
        found = np.full((2, means.shape[1]), -np.inf)
        for colour in range(2):
            own, weights = at[colours == colour], logs[colours == colour]
            weights = weights - np.logaddexp.reduce(weights)
            for start in range(0, len(own), self._at_once):
                some = slice(start, start + self._at_once)
                noise = [own[some, k, None] for k in range(self.count)]
                with np.errstate(all="ignore"):
                    values = self.values(covariance.at(list(means), noise))
                values = np.where(np.isnan(values), -np.inf, values) + weights[some, None]
                found[colour] = np.logaddexp(found[colour], np.logaddexp.reduce(values, 0))
        return found

    @property
    def _at_once(self) -> int:
        return max(1, DEFAULTS.numbers_at_once // max(1, self.offset.shape[1]))

    def _sums(
        self, means: list[np.ndarray], covariance: PredictorCovariance, at: np.ndarray
    ) -> NodeSums:
        parts, shape = [], means[0].shape
        size = max(1, DEFAULTS.numbers_at_once // max(1, means[0].size))
        for start in range(0, len(at), size):
            some = at[start : start + size]
            noise = [some[:, k].reshape(-1, *[1] * len(shape)) for k in range(self.count)]
            with np.errstate(all="ignore"):
                places = covariance.at(means, noise)
                found = self.derivatives([one.reshape(-1, shape[-1]) for one in places])
                value, first, second = (
                    [x.reshape(-1, *shape) for x in part]
                    for part in ([found.value], found.first, found.second)
                )
                moments = TermMoments(value[0], first, second)
                parts.append(NodeSums.at(some, moments, means, covariance, np))
        return functools.reduce(functools.partial(map_tree, operator.add), parts)


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedTerms:
    """A weighted sum of terms, and a constant.

    :param predictors: whose elements are the terms.
    :param weights: shape ``(M,)``.
    """

    predictors: Predictors
    weights: np.ndarray
    constant: float

    def at(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values ``(K,)`` and gradients ``(K, d)`` at latent vectors ``(K, d)``."""
        found = self.predictors.derivatives(self.predictors.at(theta))
        slopes = zip(found.first, self.predictors.slopes, strict=True)
        gradient = sum((self.weights * first) @ slope for first, slope in slopes)
        return found.value @ self.weights + self.constant, np.asarray(gradient)


def curvature_of(moments: TermMoments) -> np.ndarray:
    """Return minus the expected second derivatives, shape ``(P, P, M)``."""
    count = len(moments.first)
    found = np.empty((count, count, *np.shape(moments.value)))
    for (one, two), second in zip(pairs(count), moments.second, strict=True):
        found[one, two] = found[two, one] = -second
    return found
