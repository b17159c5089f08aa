"""Strategies of a robust start; see :mod:`ngvi.guide.robust_init`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import init_to_mean, init_to_median
from torch import Tensor
from torch.distributions import biject_to, constraints

from ngvi.guide.robust_init import ROBUST_INIT


class RobustStrategy:
    """A strategy; where it is ``init_to_median``, one of those that may replace it.

    :param given: the user's strategy, or the default.
    """

    def __init__(self, given: Callable) -> None:
        is_default = given is init_to_median
        self._given = given
        self.kinds = ("median", "median of many", "mean") if is_default else ("given",)
        self.kind = self.kinds[0]

    def __call__(self, site: dict[str, Any]) -> Tensor:
        if self.kind in ("given", "median"):
            return self._given(site)
        count = ROBUST_INIT.num_samples_for(site["fn"].shape().numel())
        median, support = init_to_median(site, num_samples=count), site["fn"].support
        is_real = getattr(support, "base_constraint", support) is constraints.real
        if self.kind == "median of many" or not is_real:
            return median
        mean = init_to_mean(site)
        return torch.where(torch.isfinite(mean), mean, median)


class ContinuousOnly:
    """The strategy, which leaves discrete sites to their priors.

    Where it would sample an improper prior, it takes a point of the support instead.
    """

    def __init__(self, init_loc_fn: Callable) -> None:
        self._init_loc_fn = init_loc_fn

    def __call__(self, site: dict[str, Any]) -> Tensor | None:
        try:
            support = getattr(site["fn"], "support", None)
        except NotImplementedError as error:
            name, kind = site["name"], type(site["fn"]).__name__
            raise ValueError(
                f"Site '{name}' has a {kind}, which has no support and so no unconstrained latents."
                " If it integrates latents out itself, as HiddenLayer of pyro.contrib.bnn does, "
                f"hide it: NaturalGaussianGuide(poutine.block(model, hide=['{name}']))."
            ) from error
        if getattr(support, "is_discrete", False):
            return None
        try:
            value = self._init_loc_fn(site)
        except NotImplementedError:
            transform = biject_to(support)
            value = transform(torch.zeros(transform.inverse_shape(site["fn"].shape())))
        # What a reparametrized site depends on will be started as well.
        return None if _lacks_plates(site, value) else value


def _lacks_plates(site: dict[str, Any], value: Tensor) -> bool:
    """Say whether a value lacks the shape that plates will give to the site.

    Inside of a plate, a reparametrization asks for its site's start before the plate expands it.
    """
    done = {frame.name for frame in site["cond_indep_stack"]}
    for frame in poutine.runtime._PYRO_STACK:
        if isinstance(frame, pyro.plate) and frame.dim is not None and frame.name not in done:
            axis = frame.dim - site["fn"].event_dim
            if value.dim() < -axis or value.shape[axis] != frame.subsample_size:
                return True
    return False
