"""Facts that one run of model and guide shows about all runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from pyro import poutine
from pyro.distributions.util import is_identically_zero
from pyro.poutine.util import site_is_subsample

from pyro_ngvi.tracing.messengers import NanCholesky, quiet
from pyro_ngvi.tracing.partly_observed import idle_latents
from pyro_ngvi.tracing.sites import conjugate_site_of, family_of, is_enumerated, is_subsampled

#: Distributions that draw nothing: of fixed values, and of :func:`pyro.factor`.
NO_DRAWS = ("Delta", "Drawn", "Unit")


@dataclasses.dataclass
class ModelFacts:
    """Facts about a model and its guide that a log density needs, as long as they are static.

    :ivar max_plate_nesting: how many dimensions on the right belong to plates.
    :ivar is_enumerated: whether the model has latents to be summed out.
    :ivar guide_is_enumerated: whether the guide has.
    :ivar is_reparameterized: whether all of the guide's draws are differentiable.
    :ivar unguided: latents of the model that the guide has not, and no sum takes.
    :ivar is_stochastic: whether anything is drawn besides the latent vectors.
    :ivar idle: latents with masked elements that nobody uses; see
        :mod:`~pyro_ngvi.tracing.partly_observed`.
    :ivar is_subsampled: whether a plate takes a part of its data.
    :ivar drawn_from: the signature of arguments, and what the plates' indices are drawn from with
        such; None if it is not known.
    :ivar is_indefinite: whether a matrix that the model factorises is not always positive definite.
    :ivar particles: how draws share a run: ``"vmap"`` (``torch.vmap`` over the run),
        ``"writing vmap"`` (which takes models that write into tensors, and copies these) or
        ``"loop"`` (not at all).
    :ivar rewrites: whether some operations are replaced by faster ones; see
        :mod:`~pyro_ngvi.tracing.batching`.
    """

    max_plate_nesting: int
    is_enumerated: bool = False
    guide_is_enumerated: bool = False
    is_reparameterized: bool = True
    unguided: frozenset[str] = frozenset()
    is_stochastic: bool = False
    idle: frozenset[str] = frozenset()
    is_subsampled: bool = False
    drawn_from: tuple[Any, dict[str, Any]] | None = None
    is_indefinite: bool = False
    particles: str = "loop"
    rewrites: bool = True


def inspect(
    model: Callable, guide: Callable, args: tuple, kwargs: dict, max_plate_nesting: float = math.inf
) -> ModelFacts:
    """Run guide and model once, unseen by other handlers.

    :param max_plate_nesting: as in ``pyro.infer.ELBO``; guessed if infinite.
    """
    with poutine.block():
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replayed = poutine.replay(model, trace=guide_trace)
        with quiet(), NanCholesky():  # at a draw, where the model may be invalid
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
    facts = ModelFacts(0)
    latents, dims = [], [0]
    for trace, of_guide in ((guide_trace, True), (model_trace, False)):
        for name, site in trace.nodes.items():
            if site["type"] != "sample":
                continue
            dims += [frame.dim for frame in site["cond_indep_stack"] if frame.vectorized]
            if site_is_subsample(site):
                facts.is_subsampled |= is_subsampled(site)
            elif of_guide and conjugate_site_of(site) is not None:
                continue
            elif of_guide and family_of(site) is None:
                facts.guide_is_enumerated |= bool(site["infer"].get("enumerate"))
                parts = site["fn"].score_parts(site["value"])
                facts.is_reparameterized &= is_identically_zero(parts.score_function)
                facts.is_stochastic |= type(site["fn"]).__name__ not in NO_DRAWS
            elif not of_guide and name in guide_trace.nodes:
                latents.append(name)
            elif not of_guide and not site["is_observed"]:
                facts.is_enumerated |= is_enumerated(site)
                facts.unguided |= set() if is_enumerated(site) else {name}
    facts.is_stochastic |= bool(facts.unguided)
    facts.idle = idle_latents(model, model_trace, latents, args, kwargs)
    facts.max_plate_nesting = (
        -min(dims) if math.isinf(max_plate_nesting) else int(max_plate_nesting)
    )
    return facts
