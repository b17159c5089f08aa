"""Checks of a model before the first step, said in terms of its sites."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.distributions.transforms import biject_to

from ngvi._door import SWAPPED, warn_of_optimiser
from ngvi.guide import checks, latent_shapes, layout
from ngvi.guide.layout import latent_sites, unconstrained_shapes
from ngvi.guide.sticking_the_landing import caller_of_type
from ngvi.latents.layout import Site
from ngvi.latents.subsampling import SubsampledLatent
from numpyro_ngvi.guide.sticking_the_landing import calling_elbo
from numpyro_ngvi.tracing.sites import is_enumerated


class CheckedSites(handlers.block):
    """The model without its enumerated latents.

    It refuses other discrete latents as it meets them, and warns of data of an odd shape.

    A handler rather than a look at a trace: NumPyro's own set-up would try to enumerate
    them first, and one more run of the model is not free.

    :ivar hides_data: whether observed sites have no density.
    :ivar enumerated: names of the latents that it has left out.
    :raises DiscreteLatentError: when run, naming the site and the ways out.
    """

    def __init__(self, fn: Callable) -> None:
        super().__init__(fn, hide_fn=is_enumerated)
        self.hides_data, self.enumerated = False, set()

    def process_message(self, site: dict[str, Any]) -> None:
        super().process_message(site)
        if is_enumerated(site):
            self.enumerated.add(site["name"])
        elif site["type"] == "sample" and site["is_observed"]:
            is_array = not isinstance(site["value"], (list, tuple, dict, str))
            way_out = "NumPyro takes arrays: jnp.asarray(...)"
            checks.check_observed(site["name"], site, is_array, way_out)
            if self.hides_data:
                site["fn"] = site["fn"].mask(False)
        elif site["type"] == "sample" and site["fn"].support.is_discrete:
            checks.refuse_discrete(site["name"], "handlers.block")


#: Fields of optimisers' states that scale each coordinate by its own squares, in optax.
OF_SQUARES = {"nu", "sum_of_squares"}
#: Optimisers of NumPyro that do not.
LINEAR = ("SGD", "Momentum", "_NumPyroOptim")


def check_svi(guide: Any, posterior: dict[str, Any]) -> None:
    """Warn if an ``SVI`` runs the guide whose optimiser scales each coordinate by itself.

    :param posterior: the guide's parameter, by its name.
    :raises TypeError: if the guide is in the place of its model.
    """
    svi = caller_of_type(numpyro.infer.SVI)
    if svi is None:
        return
    if svi.model is guide:
        raise TypeError(SWAPPED)
    nodes = []

    def look(node: Any) -> bool:
        nodes.append(set(getattr(node, "_fields", ())))
        return False

    with contextlib.suppress(Exception):  # not of these parameters alone, say
        jax.tree.leaves(jax.eval_shape(svi.optim.init, posterior), is_leaf=look)
    is_ours = any("num_skipped" in fields for fields in nodes)
    name = type(svi.optim).__name__
    scales = name not in LINEAR or any(fields & OF_SQUARES for fields in nodes)
    if nodes and scales and not is_ours:
        warn_of_optimiser("The optimiser" if name == "_NumPyroOptim" else name)


def subsampled_latents(trace: dict[str, Any]) -> list[SubsampledLatent]:
    """See :func:`ngvi.guide.layout.subsampled_latents`."""
    return layout.subsampled_latents(
        _latent_sites(trace),
        lambda frame: trace[frame.name]["args"][0] if frame.name in trace else frame.size,
    )


def without_density(
    model: Callable, init_loc_fn: Callable, args: tuple, kwargs: dict
) -> tuple[list[str], bool]:
    """See :func:`ngvi.guide.checks.without_density`, at the starting point."""
    started = handlers.substitute(handlers.seed(model, rng_seed=0), substitute_fn=init_loc_fn)
    run = handlers.trace(started)
    with handlers.block(), contextlib.suppress(Exception):  # it ends early if the model fails
        run(*args, **kwargs)
    sites = [(name, site) for name, site in run.trace.items() if site["type"] == "sample"]
    return checks.without_density(sites, jnp, _unconstrained)


def _unconstrained(site: dict[str, Any]) -> jax.Array:
    return biject_to(site["fn"].support).inv(site["value"])


def _signature(tree: Any) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    kinds: list[Any] = []
    for leaf in leaves:
        if hasattr(leaf, "shape") or isinstance(leaf, float):  # which is no number of latents
            kinds.append(jnp.shape(leaf))
        else:
            kinds.append((type(leaf), repr(leaf)))
    return structure, tuple(kinds)


class LatentShapes(latent_shapes.LatentShapes):
    """The latents of a guide of NumPyro's and of a later run."""

    signature, calling_elbo = staticmethod(_signature), staticmethod(calling_elbo)

    @staticmethod
    def plate_sizes(trace: dict[str, Any]) -> dict[str, tuple[int, int]]:
        plates = {name: site["args"] for name, site in trace.items() if site["type"] == "plate"}
        return {name: (size, visited or size) for name, (size, visited) in plates.items()}

    @staticmethod
    def shapes_of(trace: dict[str, Any], subsampled: bool) -> dict[str, tuple]:
        local = subsampled_latents(trace) if subsampled else ()
        return unconstrained_shapes(_latent_sites(trace), local, biject_to)

    def found(self, model: Callable, args: tuple, kwargs: dict) -> dict[str, tuple]:
        shapes: dict[str, tuple] = {}

        def run() -> None:
            with handlers.block():
                trace = handlers.trace(handlers.seed(model, rng_seed=0)).get_trace(*args, **kwargs)
            shapes.update(self.shapes_of(trace, self._subsampled))
            self._found_plates = self.plate_sizes(trace)

        try:
            jax.eval_shape(run)
        except Exception:  # noqa: BLE001
            # The guide may be called with arguments that the model cannot run with (none
            # at all, say); the check exists to explain a failure, not to cause one.
            return {}
        return shapes


def _latent_sites(trace: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, site)
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    ]


def sites_of_run(trace: dict[str, Any]) -> list[Site]:
    """Return the continuous latents of a trace, with all elements of subsampled plates."""
    return latent_sites(trace, LatentShapes.shapes_of(trace, True))
