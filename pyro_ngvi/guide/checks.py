"""Checks of a model before the first step, said in terms of its sites."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to

from ngvi._door import SWAPPED, warn_of_optimiser
from ngvi._warn import warn
from ngvi.errors import NoLatentsError, no_latents
from ngvi.guide import checks, latent_shapes, layout
from ngvi.guide.layout import latent_sites, unconstrained_shapes
from ngvi.guide.sticking_the_landing import caller_of_type
from ngvi.latents.layout import Site
from ngvi.latents.subsampling import SubsampledLatent
from pyro_ngvi.guide.sticking_the_landing import calling_elbo
from pyro_ngvi.tracing.arguments import signature
from pyro_ngvi.tracing.messengers import repeatable_noise
from pyro_ngvi.tracing.sites import is_enumerated


@contextlib.contextmanager
def frozen_parts(models: Iterable[Any] | None) -> Iterator[None]:
    """Keep what is frozen in a network as it is while the models run for the first time.

    Of a ``PyroModule`` all tensors become parameters of Pyro's store then, which makes them require
    gradients, and every optimiser would move them.
    """
    modules = [model for model in models or () if isinstance(model, torch.nn.Module)]
    tensors = [tensor for module in modules for tensor in module.parameters()]
    frozen = [tensor for tensor in tensors if not tensor.requires_grad]
    try:
        yield
    finally:
        for tensor in frozen:
            tensor.requires_grad_(False)


def check_sites(trace: poutine.Trace) -> None:
    """Refuse discrete latents, a model without latents and data that are no tensors.

    Discrete latents may be enumerated. Data of an odd shape are warned of.

    :raises DiscreteLatentError: naming the site and the ways out.
    :raises NoLatentsError: saying what the model has instead.
    :raises TypeError: naming the site, whose distribution may be none of Pyro's.
    """
    latents, sites = _latent_sites(trace), _sample_sites(trace)
    _check_distributions(sites)
    for name, site in latents:
        if site["fn"].support.is_discrete:
            checks.refuse_discrete(name, "poutine.block")
        if not isinstance(site["value"], Tensor):
            raise TypeError(f"init_loc_fn= gives site '{name}' no tensor: write torch.tensor(...).")
    if not any(site["value"].numel() for _, site in latents):
        prior = "to_pyro_module_(network), and a PyroSample for each of its weights"
        names = [name for name, _ in sites]
        raise NoLatentsError(no_latents(names, trace.param_nodes, prior))
    for name, site in sites:
        if site["is_observed"]:
            is_array = isinstance(site["value"], (Tensor, int, float))
            checks.check_observed(name, site, is_array, "Pyro takes tensors: torch.as_tensor(...)")


def _check_distributions(sites: list[tuple[str, dict[str, Any]]]) -> None:
    for name, site in sites:
        if not isinstance(site["fn"], dist.Distribution):  # torch's own, which has no event_dim
            kind = type(site["fn"]).__name__
            raise TypeError(
                f"Sample site '{name}' has a {kind} of torch, where one of pyro.distributions is "
                f"due: write pyro.distributions.{kind}."
            )


def check_svi(guide: Any) -> None:
    """Warn if an ``SVI`` runs the guide whose optimiser scales each coordinate by itself.

    :raises TypeError: if the guide is in the place of its model.
    """
    svi = caller_of_type(pyro.infer.SVI)
    if getattr(svi, "model", None) is guide:
        raise TypeError(SWAPPED)
    stock = getattr(getattr(svi, "optim", None), "pt_optim_constructor", None)
    is_torch = isinstance(stock, type) and issubclass(stock, torch.optim.Optimizer)
    if is_torch and stock is not torch.optim.SGD:
        warn_of_optimiser(stock.__name__)


def subsampled_latents(trace: poutine.Trace) -> list[SubsampledLatent]:
    """See :func:`ngvi.guide.layout.subsampled_latents`."""
    return layout.subsampled_latents(
        _latent_sites(trace), lambda frame: getattr(frame, "full_size", None) or frame.size
    )


def check_start(
    model: Callable, start: dict[str, Tensor], args: tuple, kwargs: dict, num_tries: int
) -> None:
    """Refuse a start where the log density of the model is not finite.

    :param start: constrained values of the latents.
    :param num_tries: how often it is evaluated.
    :raises InvalidStartError: naming the sites and the way out.
    """
    for _ in range(num_tries):
        sites = _sample_sites(_started(model, start, args, kwargs))
        invalid, is_possible = checks.without_density(sites, torch, _unconstrained)
        if not invalid:
            return
    # Enumerated latents, which are drawn now and summed out later, may make the data impossible.
    if not (is_possible and any(is_enumerated(site) for _, site in sites)):
        raise checks.invalid_start(invalid)


def log_density_at(model: Callable, start: dict[str, Tensor], args: tuple, kwargs: dict) -> float:
    """Return the log density at a start, without Jacobians of constraints; NaN if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Encountered ")
            return float(_started(model, start, args, kwargs).log_prob_sum())
    except Exception:  # noqa: BLE001  a model need not run everywhere
        return float("nan")


@torch.enable_grad()
def check_graph(model: Callable, guide: Callable, args: tuple, kwargs: dict) -> None:
    """Warn of observed sites that change with the latents, and have no gradient.

    It is no error: ``fit`` says at its end whether the log density jumps there.
    """
    runs = []
    for _ in range(2):
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        try:
            trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(
                *args, **kwargs
            )
            trace.compute_log_prob(lambda name, site: site["is_observed"])
        except (ValueError, RuntimeError):
            return  # a draw without a density, which a fit has to expect
        sites = [(name, site) for name, site in _sample_sites(trace) if site["is_observed"]]
        runs.append({name: site["log_prob_sum"] for name, site in sites})
    first, second = runs
    varying = [name for name in first if not torch.equal(first[name], second[name])]
    if cut_off := [name for name in varying if not first[name].requires_grad]:
        warn(
            "fit cannot see how the latents change the log density of observed "
            f"{', '.join(map(repr, cut_off))}: .item(), .detach(), numpy or a comparison cuts the "
            "gradient off. Compute it with torch's operations, and choose by torch.sigmoid, "
            "or go on with result.nuts()."
        )


class LatentShapes(latent_shapes.LatentShapes):
    """The latents of a guide of Pyro's and of a later run."""

    signature, calling_elbo = staticmethod(signature), staticmethod(calling_elbo)

    @staticmethod
    def plate_sizes(trace: poutine.Trace) -> dict[str, tuple[int, int]]:
        frames = [frame for _, site in _sample_sites(trace) for frame in site["cond_indep_stack"]]
        return {frame.name: (frame.full_size or frame.size, frame.size) for frame in frames}

    @staticmethod
    def shapes_of(trace: poutine.Trace, subsampled: bool) -> dict[str, tuple]:
        local = subsampled_latents(trace) if subsampled else ()
        return unconstrained_shapes(_latent_sites(trace), local, biject_to)

    def check(self, model: Callable, args: tuple, kwargs: dict) -> None:
        # Of torch.jit shapes are values of the graph, and what runs becomes a part of it.
        if not torch.jit.is_tracing():
            super().check(model, args, kwargs)

    def found(self, model: Callable, args: tuple, kwargs: dict) -> dict[str, tuple]:
        try:
            trace = quiet_trace(model, args, kwargs)
            self._found_plates = self.plate_sizes(trace)
            return self.shapes_of(trace, self._subsampled)
        except Exception:  # noqa: BLE001
            # The guide may be called with arguments that the model cannot run with (none
            # at all, say); the check exists to explain a failure, not to cause one.
            return {}


def explained_trace(model: Callable, args: tuple, kwargs: dict) -> poutine.Trace:
    """:func:`quiet_trace` from the start, whose values are to blame if it fails.

    :raises InvalidStartError: naming the site that starts at no valid value.
    """
    tracer = poutine.trace(model)
    try:
        return quiet_trace(tracer, args, kwargs)
    except Exception as error:
        sites = _sample_sites(tracer.trace)
        _check_distributions(sites)
        if invalid := checks.without_density(sites, torch, _unconstrained)[0]:
            raise checks.invalid_start(invalid) from error
        raise


def _unconstrained(site: dict[str, Any]) -> Tensor:
    return biject_to(site["fn"].support).inv(site["value"])


def quiet_trace(model: Callable, args: tuple, kwargs: dict) -> poutine.Trace:
    """Trace the model without a handler around it and without new random numbers."""
    with repeatable_noise(), torch.no_grad():
        return poutine.block(poutine.trace(model).get_trace)(*args, **kwargs)


def _started(model: Callable, start: dict, args: tuple, kwargs: dict) -> poutine.Trace:
    # Sites that a reparametrization replaces are asked for as well.
    started = InitMessenger(lambda site: start.get(site["name"]))(model)
    return quiet_trace(started, args, kwargs)


def _sample_sites(trace: poutine.Trace) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, site)
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site)
    ]


def _latent_sites(trace: poutine.Trace) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, site)
        for name, site in _sample_sites(trace)
        if not site["is_observed"] and not is_enumerated(site)
    ]


def sites_of_run(trace: poutine.Trace) -> list[Site]:
    """Return the continuous latents of a trace, with all elements of subsampled plates."""
    return latent_sites(trace.nodes, LatentShapes.shapes_of(trace, True))
