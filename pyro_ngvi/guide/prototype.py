"""Pyro's set-up of a guide, at a start where the density is finite, and robust.

See :mod:`ngvi.guide.robust_init`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from torch import Tensor

from ngvi.errors import InvalidStartError
from ngvi.guide.robust_init import ROBUST_INIT
from pyro_ngvi.guide.checks import check_start, explained_trace, log_density_at


def first_trace(guide: Any, args: tuple, kwargs: dict) -> poutine.Trace:
    """Trace the model at the first start where it runs."""
    errors = []
    for kind in guide._strategy.kinds:
        guide._strategy.kind = kind
        try:
            return explained_trace(guide.model, args, kwargs)
        except Exception as error:  # noqa: BLE001  the model's own, which is raised again
            errors.append(error)
    raise errors[0]


def find_start(guide: Any, args: tuple, kwargs: dict) -> None:
    """Set up the prototype where the density is finite, and not low if the choice is the guide's.

    :raises InvalidStartError: if no start has a finite density.
    """
    errors, strategy = [], guide._strategy

    def start(kind: str) -> tuple[float, Any]:
        strategy.kind = kind
        try:
            _find_finite(guide, args, kwargs)
        except InvalidStartError as error:
            errors.append(error)
            return math.nan, None
        level = log_density_at(guide._model_as_given[0], _start(guide), args, kwargs)
        return level, guide.prototype_trace

    kinds = strategy.kinds[strategy.kinds.index(strategy.kind) :]
    _, guide.prototype_trace = ROBUST_INIT.best(kinds, start)
    if guide.prototype_trace is None:
        raise errors[0]


def _find_finite(guide: Any, args: tuple, kwargs: dict, max_starts: int = 50) -> None:
    """Find a finite start in as many tries as a random strategy takes."""
    before: dict[str, Tensor] = {}
    for left in reversed(range(max_starts)):
        start: dict[str, Tensor] = {}
        try:
            try:
                AutoContinuous._setup_prototype(guide, *args, **kwargs)
            except ValueError as error:  # the first trace had none: it comes with the start
                raise InvalidStartError(str(error)) from error
            start = _start(guide)
            # Latents that the guide does not see are drawn anew, and may be impossible once.
            num_tries = 1 if before else 10
            check_start(guide._model_as_given[0], start, args, kwargs, num_tries)
            return
        except InvalidStartError:
            is_same = before and all(torch.equal(start[n], before[n]) for n in start)
            if not left or (start and is_same):
                raise
        before = start or before


def _start(guide: Any) -> dict[str, Tensor]:
    """Return the constrained values of the prototype's latents."""
    latents = dict(guide.prototype_trace.iter_stochastic_nodes())
    return {name: site["value"].detach() for name, site in latents.items()}


def robust_scale(guide: Any, loc: Tensor, args: tuple, kwargs: dict) -> float:
    """Return the usual scale, or a narrower one where the density explodes at draws so wide.

    :param loc: the start, in the model's coordinates.
    """
    directions = torch.as_tensor(ROBUST_INIT.directions(len(loc))).to(loc)
    model = guide._model_as_given[0]

    def around(scale: float) -> list[float]:
        draws = (guide._in_supports(loc + scale * one[None]) for one in directions)
        starts = ({name: value[0] for name, value in draw.items()} for draw in draws)
        return [log_density_at(model, start, args, kwargs) for start in starts]

    level = log_density_at(model, _start(guide), args, kwargs)
    if not ROBUST_INIT.explodes(around(ROBUST_INIT.scale), level):
        return ROBUST_INIT.scale
    levels = [around(scale) for scale in ROBUST_INIT.narrower]
    return ROBUST_INIT.narrow_scale(levels, level, len(loc))
