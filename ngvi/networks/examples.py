"""Log densities as sums over examples, and what is said where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ngvi.families.base import Array

#: Gradients of so many numbers in all are computed from a run of all examples, one reverse pass for
#: each; beyond, from runs of single examples.
FEW_NUMBERS = 2**20
#: Numbers in gradients of examples that are computed at once on a GPU, which launches each part.
NUMBERS_ON_GPU = 2**27


class Examples(NamedTuple):
    """A log density as a sum over examples and a rest: ``sum(scale * log_lik) + rest``."""

    log_likelihood: Array  #: Without the plates' scale, in nats, shape ``(..., N)``.
    scale: Array  #: Number of examples that each stands for, shape ``(..., N)``.
    rest: Array  #: Prior, Jacobians, partners; shape ``(...)``.


NOT_BY_ROWS = (
    "curvature='gauss_newton' runs a model of many latents on one example at a time, each on its "
    "rows of the model's arguments, and this model has another log likelihood there. Give it the "
    "rows of a minibatch as arguments, in plate('data', size, subsample_size=len(x)), and put "
    "batch normalisation and dropout into evaluation mode; or use IVON() with "
    "NaturalELBO(1, 'stein'), which needs no examples."
)


def are_same(alone: np.ndarray, together: np.ndarray) -> bool:
    """Return whether examples have the same log likelihoods alone and together, up to rounding."""
    finite = together[np.isfinite(together)]
    rounding = float(np.finfo(together.dtype).eps ** 0.5 * np.abs(finite).max(initial=0.0))
    return np.allclose(alone, together, rtol=0.0, atol=rounding, equal_nan=True)


def check_not_enumerated(is_enumerated: bool) -> None:
    """Refuse examples of a model with latents that are summed out.

    :raises ValueError: saying what to use.
    """
    if is_enumerated:
        raise ValueError(
            "curvature='gauss_newton' needs the likelihood of each example, which a model with "
            "enumerated latents does not have site by site: use curvature='hessian'."
        )


def without_plate(site: str, ppl: str) -> str:
    """Say that an observed site has no examples."""
    return (
        f"curvature='gauss_newton' sums over examples, but the observed site '{site}' is in no "
        f"plate: put it into {ppl}.plate('data', len(y)), or use curvature='hessian'."
    )


def aligned(groups: Iterable[Sequence[tuple[Array, Array]]]) -> tuple[list[Array], list[Array]]:
    """Add the log likelihoods of sites that share their examples.

    :param groups: of such sites log likelihoods and scales, a vector each.
    :return: log likelihoods by example, and how their sums are scaled.
    :raises ValueError: if there are none.
    """
    log_likelihoods, scales = [], []
    for members in groups:
        scale = members[0][1]
        # Sites of one group may be scaled differently (by the handler ``scale``).
        log_likelihoods.append(sum(value * (s / scale) for value, s in members))
        scales.append(scale)
    if not scales:
        raise ValueError(
            "curvature='gauss_newton' needs observed sites, and the model has none: use "
            "curvature='hessian'."
        )
    return log_likelihoods, scales
