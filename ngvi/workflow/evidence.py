"""The log evidence, for Bayes factors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ngvi.inference.tells import TellsWhatItHas


@dataclass(frozen=True)
class LogEvidence(TellsWhatItHas):
    """An estimate of the log evidence, ``log p(y)``, and whether it is reliable.

    It uses importance weights of the Gaussian's draws, and is a lower bound in expectation. It
    omits the mass of other optima. Priors must be proper and normalised::

        one.log_evidence.value - other.log_evidence.value  # log Bayes factor of two models
    """

    value: float  #: In nats.
    error: float  #: Its standard error in nats; NaN where the weights have no variance.
    is_reliable: bool  #: True if weights can be trusted and the fit has converged.

    @classmethod
    def of(cls, result: Any) -> LogEvidence:
        """Return the log evidence of a result, by importance weights of its Gaussian's draws.

        :raises ValueError: if there are no weights, as with minibatches.
        """
        found = result.diagnostics
        value, error = found.importance_weighted_bound, found.importance_weighted_bound_error
        if value is None:
            raise ValueError(f"The log evidence has no importance weights: {found}.")
        is_known = error is not None and result.converged
        return cls(value, math.nan if error is None else error, is_known)

    def _is_no_number(self, *_: Any) -> Any:
        raise TypeError("log_evidence has value, error and is_reliable: write log_evidence.value.")

    __float__ = __sub__ = __rsub__ = _is_no_number

    def __repr__(self) -> str:
        words = "reliable" if self.is_reliable else "not reliable"
        return f"{self.value:,.3f} ± {self.error:.2g} nats, {words}"
