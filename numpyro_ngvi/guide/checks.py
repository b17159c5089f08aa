"""What can be wrong with a model before the first step, said in terms of its sites."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax import random
from numpyro import handlers
from numpyro.distributions.transforms import biject_to
from numpyro.primitives import _PYRO_STACK

from ngvi import errors as checks
from ngvi._door import SWAPPED, warn_of_optimiser
from ngvi._warn import warn
from ngvi.errors import DiscreteLatentError, shown
from ngvi.guide import latent_shapes
from ngvi.guide.layout import latent_sites, unconstrained_shapes
from ngvi.guide.sticking_the_landing import caller_of_type
from ngvi.latents.layout import Site
from ngvi.latents.subsampling import SubsampledLatent
from numpyro_ngvi.guide.sticking_the_landing import calling_elbo
from numpyro_ngvi.tracing.sites import is_enumerated


def check_key(rng_key: Any) -> jax.Array:
    """``rng_key``, if it is one JAX random key, typed or not.

    :raises TypeError: if it is not.
    """
    try:
        if random.key_data(rng_key).ndim == 1:
            return rng_key
    except (TypeError, ValueError):
        pass
    raise TypeError(f"rng_key must be one JAX random key, jax.random.key(0), got {shown(rng_key)}.")


class CheckedSites(handlers.block):
    """The model without its enumerated latents. It refuses other discrete ones as it meets them,
    and warns of data of an odd shape.

    A handler rather than a look at a trace: NumPyro's own set-up would try to enumerate
    them first, and one more run of the model is not free.

    :ivar hides_data: whether observed sites have no density.
    :ivar lacks_data: whether other discrete sites are data that are not there.
    :ivar enumerated: names of the latents that it has left out.
    :raises DiscreteLatentError: when run, naming the site and the ways out.
    """

    def __init__(self, fn: Callable) -> None:
        super().__init__(fn, hide_fn=self._is_hidden)
        self.hides_data, self.lacks_data, self.enumerated = False, False, set()

    def _is_hidden(self, site: dict[str, Any]) -> bool:
        return is_enumerated(site) or (self.lacks_data and _is_discrete(site))

    def process_message(self, site: dict[str, Any]) -> None:
        super().process_message(site)
        if is_enumerated(site):
            self.enumerated.add(site["name"])
        elif site["type"] == "sample" and site["is_observed"]:
            fn = site["fn"]
            if isinstance(site["value"], (list, tuple, dict, str)):
                raise TypeError(
                    f"Observed site '{site['name']}' has a {type(site['value']).__name__}, and "
                    "NumPyro takes arrays: jnp.asarray(...)."
                )
            if self.hides_data:
                site["fn"] = fn.mask(False)
            checks.warn_of_broadcast(
                site["name"], jnp.shape(site["value"]), fn.shape(), fn.event_dim
            )
        elif _is_discrete(site) and not self.lacks_data:
            raise DiscreteLatentError(
                f"Continuous inference cannot handle discrete sample site '{site['name']}'. "
                "Mark it with infer={'enumerate': 'parallel'} (or config_enumerate) and use "
                "TraceEnum_ELBO, or hide it from the guide, e.g. "
                f"NaturalGaussianGuide(handlers.block(model, hide=['{site['name']}'])). If it is "
                "data that this call leaves out, give some, of which zeros will do."
            )


#: Fields of optimisers' states that scale each coordinate by its own squares, in optax.
OF_SQUARES = {"nu", "sum_of_squares"}
#: Optimisers of NumPyro that do not.
LINEAR = ("SGD", "Momentum", "_NumPyroOptim")


def warn_of_prior(trace: dict[str, Any]) -> None:
    """Warn of an ``SVI`` whose model observes nothing."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    is_trained = caller_of_type(numpyro.infer.SVI) is not None
    if is_trained and not any(site["is_observed"] for site in sites.values()):
        warn(checks.prior_alone(sites))


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


def _is_discrete(site: dict[str, Any]) -> bool:
    """Whether it is no data and no number of the reals."""
    is_latent = site["type"] == "sample" and not site["is_observed"]
    return is_latent and site["fn"].support.is_discrete


def given_param(name: str) -> Any:
    """What a handler around gives to a parameter, or None."""
    around = (handler.data for handler in _PYRO_STACK if isinstance(handler, handlers.substitute))
    return next((data[name] for data in around if data and name in data), None)


def subsampled_latents(trace: dict[str, Any]) -> list[SubsampledLatent]:
    """The latents of a trace that have fewer elements than their plates, once for each plate."""
    found = []
    for name, site in _latent_sites(trace):
        for frame in site["cond_indep_stack"]:
            full_size = trace[frame.name]["args"][0] if frame.name in trace else frame.size
            if frame.size != full_size:
                axis = frame.dim - site["fn"].event_dim
                found.append(SubsampledLatent(name, frame.name, axis, frame.size, full_size))
    return found


def _run(model: Callable, init_loc_fn: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """A trace from the start, which ends early if the model fails."""
    started = handlers.substitute(handlers.seed(model, rng_seed=0), substitute_fn=init_loc_fn)
    trace = handlers.trace(started)
    with handlers.block(), contextlib.suppress(Exception):
        trace(*args, **kwargs)
    return trace.trace


def next_site(model: Callable, init_loc_fn: Callable, args: tuple, kwargs: dict) -> str | None:
    """The site whose distribution the model does not get, if nobody validates."""
    found = _run(model, init_loc_fn, args, kwargs)
    with numpyro.validation_enabled(False):
        trace = _run(model, init_loc_fn, args, kwargs)
    sites = (name for name, site in trace.items() if site["type"] == "sample")
    return next((name for name in sites if name not in found), None)


def site_of(error: BaseException) -> str | None:
    """The site whose ``sample`` statement has failed, if it was one."""
    return checks.called(error, numpyro.sample).get("name")


def invalid_start(
    model: Callable, init_loc_fn: Callable, args: tuple, kwargs: dict
) -> tuple[str | None, bool]:
    """Which sites have no finite log density at the starting point, in words, and whether others
    than the present values of enumerated latents may give one.
    """
    bad, is_possible = [], True
    for name, site in _run(model, init_loc_fn, args, kwargs).items():
        if site["type"] != "sample":
            continue
        if not site["is_observed"] and not _is_inside(site):
            what = f"no value of its distribution, of shape {site['fn'].shape()}"
            bad.append(f"'{name}' starts at {site['value']}, {what}")
            is_possible = False
            continue
        try:
            log_prob = site["fn"].log_prob(site["value"])
        except Exception as error:
            shapes = jnp.shape(site["value"]), site["fn"].shape()
            text = checks.no_density(name, *shapes, site["is_observed"], error)
            raise ValueError(text) from error
        if jnp.iscomplexobj(log_prob):
            raise ValueError(checks.complex_density(name))
        kind = "observed site" if site["is_observed"] else "latent site"
        if not bool(jnp.all(jnp.isfinite(log_prob))):
            bad.append(f"{kind} '{name}' has log density {float(jnp.sum(log_prob))}")
            is_finite = bool(jnp.isfinite(site["value"]).all())
            is_possible &= is_finite and not bool(jnp.isnan(log_prob).any())
        elif not bool(jnp.isfinite(jnp.sum(log_prob))):
            bad.append(f"the log density of {kind} '{name}' overflows in {log_prob.dtype}")
    return "; ".join(bad) or None, is_possible


def of_half_precision(model: Callable, init_loc_fn: Callable, args: tuple, kwargs: dict) -> str:
    """What to say of a start that fails, if the model computes in float16."""

    def run() -> list:
        trace = _run(model, init_loc_fn, args, kwargs)
        sites = [site for site in trace.values() if site["type"] == "sample"]
        return [site["fn"].log_prob(site["value"]) for site in sites if site["is_observed"]]

    try:
        program = str(jax.make_jaxpr(run)())
    except Exception:  # noqa: BLE001  which is an explanation of another error
        return ""
    return checks.HALF_PRECISION if re.search(r"\bf16\[", program) else ""


def check_empty_plates(error: BaseException) -> None:
    """Say which plate has no elements, whose name NumPyro's error leaves out.

    :raises ValueError: if the error is of such a plate.
    """
    trace = error.__traceback__
    while trace is not None:
        seen = trace.tb_frame.f_locals
        if trace.tb_frame.f_globals.get("__name__") == numpyro.primitives.__name__:
            sizes = seen.get("size"), seen.get("subsample_size")
            if "name" in seen and any(isinstance(size, int) and size == 0 for size in sizes):
                raise ValueError(checks.empty_plate(seen["name"], "NumPyro")) from error
        trace = trace.tb_next


def _is_inside(site: dict[str, Any]) -> bool:
    if jnp.shape(site["value"]) != site["fn"].shape():
        return False
    return bool(jnp.all(jnp.isfinite(biject_to(site["fn"].support).inv(site["value"]))))


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
    """Of NumPyro."""

    signature, calling_elbo = staticmethod(_signature), staticmethod(calling_elbo)

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

        try:
            jax.eval_shape(run)
        except Exception as error:  # noqa: BLE001
            check_empty_plates(error)
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
    """The continuous latents of a trace, with all elements of subsampled plates."""
    return latent_sites(trace, LatentShapes.shapes_of(trace, True))
