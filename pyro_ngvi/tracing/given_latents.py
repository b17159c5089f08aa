"""The guide's draws: its families, values in their place, and latents that come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyro.distributions as dist
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ngvi.errors import scaled_guide
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing.sites import conjugate_site_of, family_of

#: What to do where the values of latents decide which others there are.
SAME_LATENTS = (
    "Every run of the model must sample the guide's latents, and no others: choose between them "
    "with torch.where, leave one out with poutine.mask, or make the guide of this model."
)


class Posteriors(Messenger):
    """Collects the families that the guide draws from, which draw their mean.

    :ivar found: Gaussians with live coordinates, by the name of the sample site.
    :ivar conjugate_sites: conjugate sites with live natural parameters, by name.
    :ivar visited: how often a minibatch counts each coordinate, by the site, where it visits a
        part of them (:mod:`ngvi.guide.subsampled_latents`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.visited: dict[str, Tensor] = {}
        self.found: dict[str, Family] = {}
        self.conjugate_sites: dict[str, Any] = {}

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.found:
            scale = msg["scale"]
            if not (isinstance(scale, (int, float)) and scale == 1.0):
                raise ValueError(scaled_guide(scale, "poutine.scale"))

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        conjugate = conjugate_site_of(msg)
        if conjugate is not None:
            self.conjugate_sites[msg["name"]] = conjugate
            msg["value"], msg["done"] = conjugate.detach().mean.expand(msg["fn"].shape()), True
        family = family_of(msg)
        if family is None:
            return
        if msg["infer"].get("is_minibatch"):
            self.visited[msg["name"]] = msg["fn"].family.weights
        if msg["fn"].batch_shape.numel() != 1:
            raise NotImplementedError(
                f"NaturalELBO draws site '{msg['name']}' once, but it is inside a plate, where "
                f"its batch shape is {tuple(msg['fn'].batch_shape)}: take the guide out of it."
            )
        self.found[msg["name"]] = family
        msg["value"] = family.mean.detach().expand(msg["fn"].shape())
        msg["done"] = True


class Drawn(dist.Delta):
    """A point mass at a value that is its own: the two are not compared, entry by entry."""

    def log_prob(self, value: Tensor) -> Tensor:
        return self.log_density


class GivenLatents(Messenger):
    """Gives the guides their latent vectors, and hides the ``log q`` of these.

    :param latents: unconstrained vectors by the name of the guide's sample site, and values of
        conjugate sites.
    """

    def __init__(self, latents: dict[str, Tensor]) -> None:
        super().__init__()
        self.latents = latents

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        value = self.latents.get(msg["name"])
        if value is not None:
            if conjugate_site_of(msg) is None:
                msg["fn"] = Drawn(value, log_density=0.0, event_dim=1)
            msg["value"] = value
            msg["done"] = True
        elif type(msg["fn"]) is dist.Delta and msg["value"] is None:
            msg["fn"] = Drawn(msg["fn"].v, msg["fn"].log_density, msg["fn"].event_dim)


class NoNewLatents(Messenger):
    """Refuses latents that only some runs of the model have, as soon as one is met.

    :raises ValueError: when run, naming the site.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        is_given = msg["done"] or msg["is_observed"] or msg["value"] is not None
        if not (is_given or site_is_subsample(msg) or isinstance(msg["fn"], dist.Delta)):
            check_no_new_latent([msg["name"]])


def check_no_new_latent(names: Iterable[str]) -> None:
    """Refuse latents that a run of the model has and the guide has not.

    :raises ValueError: naming the first one.
    """
    for name in names:
        raise ValueError(
            f"Latent site '{name}' was missing when the guide was set up. {SAME_LATENTS}"
        )


def check_no_latent_is_gone(model_trace: poutine.Trace, guide_trace: poutine.Trace) -> None:
    """Refuse a run of the model without a latent that the guide draws, or with a larger one.

    By broadcasting the guide's would stand for it.

    :raises ValueError: naming the site.
    """
    for name, site in guide_trace.nodes.items():
        is_drawn = site["type"] == "sample" and isinstance(site["fn"], dist.Delta)
        if not is_drawn or site["infer"].get("is_auxiliary"):
            continue
        if name not in model_trace.nodes:
            raise ValueError(
                f"Latent site '{name}' is missing in a run of the model. {SAME_LATENTS}"
            )
        event, value = model_trace.nodes[name]["fn"].event_shape, site["value"].shape
        if event and value[-len(event) :] != event:
            raise ValueError(
                f"Latent site '{name}' has events of shape {tuple(event)} in a run of the model, "
                f"and its value in the guide is of shape {tuple(value)}. {SAME_LATENTS}"
            )
