"""Predictors of several sites as those of all elements, and whether they are the model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ngvi.estimators.additive_terms import NotAdditiveError, Term
from ngvi.estimators.nodes import TermMoments, pairs
from ngvi.estimators.options import DEFAULTS
from ngvi.workflow.rows import ObservedRows, Predictors, WeightedTerms


def joined(
    offsets: Sequence[np.ndarray], slopes: Sequence[np.ndarray], places: list[list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets ``(P, M)`` and slopes ``(P, M, d)``, zeros where a site has fewer predictors.

    :param offsets: of all predictors.
    :param slopes: the same, with a last axis of latents.
    :param places: the indices of those that each site has.
    """
    most, dim = max(map(len, places)), slopes[0].shape[-1]
    all_offsets, all_slopes = [], []
    for indices in places:
        own = [offsets[k].reshape(-1) for k in indices]
        rows = [slopes[k].reshape(-1, dim) for k in indices]
        missing = most - len(indices)
        all_offsets.append(np.stack([*own, *[np.zeros_like(own[0])] * missing]))
        all_slopes.append(np.stack([*rows, *[np.zeros_like(rows[0])] * missing]))
    return np.concatenate(all_offsets, 1), np.concatenate(all_slopes, 1)


def moments_of(
    terms: Sequence[Term],
    at: Sequence[Any],
    derivatives: Callable[[Term, list[Any]], TermMoments],
    xp: Any,
) -> TermMoments:
    """Return values and derivatives of all elements of terms, of shape ``(B, M)`` each.

    :param at: predictors of all elements, ``P`` arrays of shape ``(B, M)``.
    :param derivatives: from a term and its own predictors, of shape ``(B, *shape)``.
    :param xp: the library of the arrays that this returns.
    """
    found, start, count = [], 0, len(at)
    for term in terms:
        shape = term.node.shape
        stop = start + math.prod(shape)
        own = [one[:, start:stop].reshape(-1, *shape) for one in at[: len(term.predictors)]]
        moments, start = derivatives(term, own), stop
        nothing = xp.zeros_like(moments.value)
        second = dict(zip(pairs(len(own)), moments.second, strict=True))
        parts = [moments.value, *moments.first, *[nothing] * (count - len(own))]
        parts += [second.get(pair, nothing) for pair in pairs(count)]
        found.append([part.reshape(len(own[0]), -1) for part in parts])
    value, *rest = (xp.concatenate(parts, 1) for parts in zip(*found, strict=True))
    return TermMoments(value, rest[:count], rest[count:])


def check_same(
    predictors: Predictors, prior: WeightedTerms | None, rows: ObservedRows, dim: int
) -> None:
    """Refuse terms that are not the model's elsewhere: a run shows one way through it.

    :raises NotAdditiveError: if they differ at one of a few draws.
    """
    theta = np.random.default_rng(0).standard_normal((DEFAULTS.num_compared, dim))
    pairs = [(predictors.values(predictors.at(theta)), rows.parts(theta)[0])]
    if prior is not None:
        nothing = np.zeros((len(theta), len(rows.weights)))
        pairs.append((prior.at(theta)[0], rows.weighted(theta, nothing)[0]))
    same = DEFAULTS.same
    for found, wanted in pairs:
        if not np.allclose(found, wanted, rtol=same, atol=same, equal_nan=True):
            raise NotAdditiveError("it takes another branch at other latents")
