"""Draws of a posterior, with their method and their accuracy."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from ngvi.inference.arguments import GAUSSIAN
from ngvi.inference.draws.accuracy import Accuracy
from ngvi.inference.draws.nuts import STATISTICS, NutsResult
from ngvi.inference.draws.pareto import USABLE
from ngvi.inference.draws.proposals import Weighed
from ngvi.inference.saved.schema import printable
from ngvi.inference.tells import TellsWhatItHas


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnostics(TellsWhatItHas):
    """Draws of a posterior, and whether to trust them. Undefined attributes are None."""

    #: The method that has made them: ``"gaussian"``, ``"corrected"`` or ``"nuts"``.
    method: str
    #: Errors of their means and standard deviations.
    accuracy: Accuracy
    #: The method in words.
    how: str
    #: Vectors of the model's own latents, unconstrained, shape ``(n, d)``; None of the Gaussian's,
    #: which are drawn anew.
    latents: np.ndarray | None = None
    #: ``log w`` in nats of draws of the Gaussian, shape ``(num_draws,)``.
    log_weights: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    #: Chains of NUTS, with their divergences, R-hat and effective draws; also of chains in vain.
    chains: Any = None

    @property
    def verdict(self) -> str:
        """``"accurate"`` or ``"doubtful"``: of :attr:`accuracy`."""
        return self.accuracy.verdict

    def __repr__(self) -> str:
        return f"Diagnostics({self.verdict}: {self.how}; {self.accuracy.words})"

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a file holds of them."""
        found = {"latents": self.latents, "log_weights": self.log_weights}
        found |= {"errors": self.accuracy.errors, "limits": self.accuracy.limits}
        if self.chains is not None:
            found |= {"latents": self.chains.latents, "optima": self.chains.optima}
            found |= self.chains.sample_stats
        return {name: array for name, array in found.items() if array is not None}

    def in_words(self) -> dict[str, Any]:
        """Return what a file holds of them, for JSON."""
        gradients = self.chains.num_gradients if self.chains is not None else None
        own = {"method": self.method, "how": self.how, "chain_gradients": gradients}
        fault = printable(self.accuracy.fault)
        return {**own, "names": list(self.accuracy.names), "fault": fault}

    @classmethod
    def of(cls, words: dict[str, Any], arrays: dict[str, np.ndarray], result: Any) -> Diagnostics:
        """Return the draws of which a file holds these.

        :param result: of the draws.
        :raises ValueError: if they are none of its latents.
        """
        limits, log_weights = (arrays["errors"], arrays["limits"]), arrays["log_weights"]
        chains, latents = None, arrays.get("latents", np.zeros((1, result.dim)))
        shapes = [one.shape for one in limits] == [(2, len(words["names"]))] * 2
        is_right = shapes and log_weights.ndim == 1 and np.isfinite(latents).all()
        accuracy = Accuracy(tuple(words["names"]), *limits, words["fault"])
        if (gradients := words["chain_gradients"]) is not None:
            stats = {name: arrays[name] for name in STATISTICS}
            kinds = [one.dtype.kind in STATISTICS[name] for name, one in stats.items()]
            is_right &= all(kinds) and {one.shape for one in stats.values()} == {latents.shape[:2]}
            is_right &= arrays["optima"].shape == latents.shape[:1] and latents.ndim == 3
            own = accuracy, gradients, stats, arrays["optima"], result
            chains, latents = NutsResult(latents, *own), in_one(latents)
        if not is_right or latents.shape != (len(latents), result.dim) or not len(latents):
            raise ValueError("its draws are none of these latents")
        found = latents if "latents" in arrays else None
        return cls(words["method"], accuracy, words["how"], found, log_weights, chains)

    @property
    def num_draws(self) -> int:
        """Number of draws of the Gaussian that were weighed."""
        return len(self.log_weights)

    @functools.cached_property
    def _weighed(self) -> Weighed | None:
        is_known = np.isfinite(self.log_weights).any()
        return Weighed(np.empty((self.num_draws, 0)), self.log_weights) if is_known else None

    @property
    def pareto_k(self) -> float | None:
        """K-hat, the shape of the weights' tail, for information only."""
        return None if self._weighed is None else self._weighed.pareto_k

    @property
    def importance_weighted_bound(self) -> float | None:
        """``log mean(w)`` in nats: a lower bound on the log evidence in expectation.

        It estimates the log evidence if k-hat is below 0.7.
        """
        return None if self._weighed is None else self._weighed.evidence

    @property
    def importance_weighted_bound_error(self) -> float | None:
        """The standard error of that, in nats; None if by k-hat weights have no variance."""
        if self._weighed is None or not self._weighed.pareto_k < USABLE:
            return None
        raw = np.exp(self.log_weights - self.log_weights.max())
        variance = len(raw) * np.sum(raw**2) / np.sum(raw) ** 2 - 1.0
        return math.sqrt(max(variance, 0.0) / len(raw))


def undefined(why: str) -> Diagnostics:
    """Return the account of a Gaussian without importance weights, and why it has none."""
    return Diagnostics(GAUSSIAN, Accuracy(fault=why), "the Gaussian, of unknown accuracy")


def order(draws: Diagnostics) -> tuple[bool, bool, float]:
    """Rank draws: accurate ones first, then those without a fault, then by the average limit."""
    accuracy = draws.accuracy
    average = np.minimum(accuracy.limits, 1.0).mean() if accuracy.names else 1.0
    return not accuracy.is_accurate, bool(accuracy.fault), average


def in_one(latents: np.ndarray) -> np.ndarray:
    """Return the draws of all chains in an order without a meaning."""
    return np.random.default_rng(0).permutation(latents.reshape(-1, latents.shape[-1]))
