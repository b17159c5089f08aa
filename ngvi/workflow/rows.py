"""What the workflow asks of a model: the log likelihoods of its observations, one by one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ngvi.estimators.nodes import NodeSums, PredictorCovariance, TermMoments, halved_nodes, pairs
from ngvi.latents.layout import Plate
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS


class RowSite(NamedTuple):
    """An observed site, whose *elements* are those of its log density."""

    name: str
    shape: tuple[int, ...]  #: of its log density
    plates: tuple[Plate, ...]  #: whose axes are those of that shape

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=int))


class ObservedRows(Protocol):
    """The elements of all observed sites, ``M`` of them, one site after another.

    :ivar sites: in their order.
    :ivar factors: names of statements that add to the log density and have no data.
    :ivar eps: the precision in which the model computes.
    :ivar is_enumerated: whether discrete latents are summed out, so that there are no elements.
    """

    sites: tuple[RowSite, ...]
    factors: tuple[str, ...]
    is_enumerated: bool
    eps: float

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        """At latent vectors of shape ``(K, d)``, in nats; shape ``(K, M)``."""

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`log_likelihood`, and its gradients, shape ``(K, M, d)``."""

    def predictors(self) -> Predictors | None:
        """Each element as a function of one or two affine functions of the latents, if it is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Predictors:
    """Elements as functions of ``P`` affine functions of the latents, one or two.

    :param offset: shape ``(P, M)``.
    :param slopes: ``J``, shape ``(P, M, d)``.
    :param values: from predictors, ``P`` arrays of shape ``(B, M)``, to the log likelihoods.
    :param derivatives: from the same to the log likelihoods and their derivatives.
    :param eps: the precision in which the model computes these.
    """

    offset: np.ndarray
    slopes: np.ndarray
    values: Callable[[list[np.ndarray]], np.ndarray]
    derivatives: Callable[[list[np.ndarray]], TermMoments]
    eps: float = float(np.finfo(float).eps)

    @property
    def count(self) -> int:
        """``P``."""
        return len(self.slopes)

    def of(self, element: int) -> Predictors:
        """The affine functions of one element; its values are those of all."""
        some = slice(element, element + 1)
        return dataclasses.replace(self, offset=self.offset[:, some], slopes=self.slopes[:, some])

    def at(self, theta: np.ndarray) -> list[np.ndarray]:
        """The predictors at latent vectors of shape ``(K, d)``."""
        pairs_of = zip(self.offset, self.slopes, strict=True)
        return [offset + theta @ slope.T for offset, slope in pairs_of]

    def under(self, q: DenseGaussian) -> tuple[np.ndarray, np.ndarray]:
        """Their means ``(P, M)`` and ``J C``, ``(P, M, d)``."""
        return self.offset + self.slopes @ q.mean, self.slopes @ q.factor

    def expected(self, means: np.ndarray, spreads: np.ndarray) -> TermMoments:
        """Expectations of the elements and of their derivatives, by quadrature.

        :param means: shape ``(P, M)``.
        :param spreads: whose products, summed over the last axis, are covariances.
        """
        covariance = PredictorCovariance.of(list(spreads), np)
        sums = None
        for halvings in range(DEFAULTS.max_halvings + 1):
            sums = self._sums(list(means), covariance, halvings)
            if not sums.misses(covariance, self.eps, np):
                break
            numbers = len(halved_nodes(self.count, halvings)) * means.shape[1]
            if numbers * 2**self.count > DEFAULTS.max_node_numbers:
                break
        return sums.mean()  # type: ignore[union-attr]

    def log_mean(self, means: np.ndarray, factor: list[list[np.ndarray]]) -> np.ndarray:
        """``log E[exp l]`` of each element by quadrature, shape ``(M,)``.

        :param means: shape ``(P, M)``.
        :param factor: rows of the Cholesky factors of the covariances, each of shape ``(M,)``.
        """
        covariance, found = PredictorCovariance(factor, []), None
        same = max(DEFAULTS.same_log_mean, DEFAULTS.rounding_units * self.eps)
        for halvings in range(DEFAULTS.max_halvings + 1):
            nodes = halved_nodes(self.count, halvings)
            weights = -0.5 * (nodes**2).sum(1)
            weights = weights - np.logaddexp.reduce(weights)
            last, found = found, np.full(means.shape[1], -np.inf)
            for start in range(0, len(nodes), self._at_once):
                some = nodes[start : start + self._at_once]
                noise = [some[:, k, None] for k in range(self.count)]
                with np.errstate(all="ignore"):
                    values = self.values(covariance.at(list(means), noise))
                values = np.where(np.isnan(values), -np.inf, values)
                logs = values + weights[start : start + self._at_once, None]
                found = np.logaddexp(found, np.logaddexp.reduce(logs, 0))
            if last is not None:
                with np.errstate(invalid="ignore"):
                    if not (np.abs(found - last) > same * (1.0 + np.abs(found))).any():
                        break
            if len(nodes) * means.shape[1] * 2**self.count > DEFAULTS.max_node_numbers:
                break
        return found  # type: ignore[return-value]

    @property
    def _at_once(self) -> int:
        return max(1, DEFAULTS.numbers_at_once // max(1, self.offset.shape[1]))

    def _sums(
        self, means: list[np.ndarray], covariance: PredictorCovariance, halvings: int
    ) -> NodeSums:
        nodes = halved_nodes(self.count, halvings)
        parts = []
        for start in range(0, len(nodes), self._at_once):
            some = nodes[start : start + self._at_once]
            noise = [some[:, k, None] for k in range(self.count)]
            with np.errstate(all="ignore"):
                found = self.derivatives(covariance.at(means, noise))
                parts.append(NodeSums.at(some, found, means, covariance, np))
        return functools.reduce(_added, parts)


def _added(one: NodeSums, other: NodeSums) -> NodeSums:
    def added(a: Any, b: Any) -> Any:
        if isinstance(a, list):
            return [added(x, y) for x, y in zip(a, b, strict=True)]
        return a + b

    return NodeSums(*map(added, one, other))


def curvature_of(moments: TermMoments) -> np.ndarray:
    """Minus the expected second derivatives, shape ``(P, P, M)``."""
    count = len(moments.first)
    found = np.empty((count, count, *np.shape(moments.value)))
    for (one, two), second in zip(pairs(count), moments.second, strict=True):
        found[one, two] = found[two, one] = -second
    return found
