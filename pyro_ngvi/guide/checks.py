"""What can be wrong with a model before the first step, said in terms of its sites."""

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
from pyro.poutine.subsample_messenger import SubsampleMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to

from ngvi import errors as checks
from ngvi._door import SWAPPED, warn_of_optimiser
from ngvi._warn import warn
from ngvi.errors import DiscreteLatentError, InvalidStartError, NoLatentsError
from ngvi.guide import latent_shapes
from ngvi.guide.layout import latent_sites, unconstrained_shapes
from ngvi.guide.sticking_the_landing import caller_of_type
from ngvi.latents.layout import Site
from ngvi.latents.subsampling import SubsampledLatent
from pyro_ngvi.guide.sticking_the_landing import calling_elbo
from pyro_ngvi.tracing.arguments import signature
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
    """Refuse discrete latents that nobody enumerates, a model without latents, and data that are no
    tensors; warn of data of an odd shape.

    :raises DiscreteLatentError: naming the site and the ways out.
    :raises NoLatentsError: saying what the model has instead.
    :raises TypeError: naming the site, whose distribution may be none of Pyro's.
    """
    latents, sites = _latent_sites(trace), _sample_sites(trace)
    for name, site in latents:
        if site["fn"].support.is_discrete:
            raise DiscreteLatentError(
                f"Continuous inference cannot handle discrete sample site '{name}'. Mark it "
                "with infer={'enumerate': 'parallel'} (or config_enumerate) and use "
                "TraceEnum_ELBO (https://pyro.ai/examples/enumeration.html), or hide it from "
                "the guide, e.g. "
                f"NaturalGaussianGuide(poutine.block(model, hide=['{name}'])). If it is data that "
                "this call leaves out, give some, of which zeros will do."
            )
    if not any(site["value"].numel() for _, site in latents):
        prior = "to_pyro_module_(network), and a PyroSample for each of its weights"
        names = [name for name, _ in sites]
        raise NoLatentsError(checks.no_latents(names, trace.param_nodes, prior))
    for name, site in sites:
        value, fn = site["value"], site["fn"]
        if not isinstance(fn, dist.Distribution):  # torch's own, which has no event_dim
            raise TypeError(checks.no_statement(name, fn))
        if site["is_observed"] and isinstance(value, Tensor):
            checks.warn_of_broadcast(name, tuple(value.shape), tuple(fn.shape()), fn.event_dim)
        elif site["is_observed"] and not isinstance(value, (int, float)):
            raise TypeError(
                f"Observed site '{name}' has a {type(value).__name__}, and Pyro takes tensors: "
                "torch.as_tensor(...)."
            )


def lacking_data(trace: poutine.Trace) -> list[str]:
    """Discrete sites of a guide that is made anew for predictions: data, which are not there.

    So are those of a call by hand in which nothing is observed.
    """
    is_observed = any(site["is_observed"] for _, site in _sample_sites(trace))
    by_hand = not (is_observed or poutine.runtime.am_i_wrapped())
    if not by_hand and caller_of_type(pyro.infer.Predictive) is None:
        return []
    return [name for name, site in _latent_sites(trace) if site["fn"].support.is_discrete]


def check_precision(trace: poutine.Trace, loc: Tensor) -> None:
    """Refuse half precision, in which torch factorises and solves nothing.

    :param loc: the initial mean of the latents of ``trace``.
    :raises ValueError: naming a site.
    """
    if torch.finfo(loc.dtype).bits < 32:
        name = next(name for name, site in _latent_sites(trace) if site["value"].dtype == loc.dtype)
        raise ValueError(
            f"Latent site '{name}' is {loc.dtype}, in which torch has no factorisations. Give its "
            "prior float32 or float64 parameters; only SVI with family='diagonal' does without."
        )


def warn_of_prior(trace: poutine.Trace) -> None:
    """Warn of an ``SVI`` whose model observes nothing."""
    found = dict(_sample_sites(trace))
    sites = {k: one for k, one in found.items() if not one["infer"].get("_deterministic")}
    is_trained = caller_of_type(pyro.infer.SVI) is not None
    if is_trained and not any(site["is_observed"] for site in sites.values()):
        warn(checks.prior_alone(sites))


def check_svi(guide: Any) -> None:
    """Warn if an ``SVI`` runs the guide whose optimiser scales each coordinate by itself.

    :raises TypeError: if the guide is in the place of its model.
    """
    svi = caller_of_type(pyro.infer.SVI)
    if getattr(svi, "model", None) is guide:
        raise TypeError(SWAPPED)
    stock = getattr(getattr(svi, "optim", None), "pt_optim_constructor", None)
    is_ours = hasattr(getattr(svi, "optim", None), "num_skipped")
    is_torch = isinstance(stock, type) and issubclass(stock, torch.optim.Optimizer)
    if is_torch and not is_ours and stock is not torch.optim.SGD:
        warn_of_optimiser(stock.__name__)


def subsampled_latents(trace: poutine.Trace) -> list[SubsampledLatent]:
    """The latents of a trace that have fewer elements than their plates, once for each plate."""
    found = []
    for name, site in _latent_sites(trace):
        for frame in site["cond_indep_stack"]:
            full_size = getattr(frame, "full_size", None) or frame.size
            if frame.vectorized and frame.size != full_size:
                axis = frame.dim - site["fn"].event_dim
                sizes = int(frame.size), int(full_size)
                found.append(SubsampledLatent(name, frame.name, axis, *sizes))
    return found


def check_start(
    model: Callable, start: dict[str, Tensor], args: tuple, kwargs: dict, num_tries: int
) -> None:
    """Refuse a start where the log density of the model is not finite.

    :param start: constrained values of the latents.
    :param num_tries: how often it is evaluated.
    :raises ValueError: naming the sites and the way out.
    """
    for _ in range(num_tries):
        trace = _started(model, start, args, kwargs)
        invalid = _invalid_sites(trace)
        if not invalid:
            return
    # Enumerated latents, which are drawn now and summed out later, may make the data impossible.
    is_drawn = any(is_enumerated(site) for _, site in _sample_sites(trace))
    if is_drawn and all(is_possible for _, is_possible in invalid):
        return
    raise InvalidStartError(
        "The bound is not finite at the guide's starting point: "
        f"{'; '.join(reason for reason, _ in invalid)}. Check the data and the priors, or start "
        "elsewhere with init_loc_fn=init_to_value(values={...})."
    )


def log_density_at(model: Callable, start: dict[str, Tensor], args: tuple, kwargs: dict) -> float:
    """Of a model at a start, without the Jacobians of constraints; NaN if it has none."""
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
        replayed = poutine.trace(poutine.replay(model, trace=guide_trace))
        try:
            trace = replayed.get_trace(*args, **kwargs)
            trace.compute_log_prob(lambda name, site: site["is_observed"])
        except (ValueError, RuntimeError):
            return  # a draw without a density, which a fit has to expect
        sites = [(name, site) for name, site in _sample_sites(trace) if site["is_observed"]]
        runs.append({name: site["log_prob_sum"] for name, site in sites})
    first, second = runs
    varying = [name for name in first if not torch.equal(first[name], second[name])]
    cut_off = [name for name in varying if not first[name].requires_grad]
    if cut_off:
        reason = (
            "fit cannot see how the latents change the log density of observed "
            f"{', '.join(map(repr, cut_off))}: .item(), .detach(), numpy or a comparison cuts the "
            "gradient off. Compute it with torch's operations, and choose by torch.sigmoid, "
            "or go on with result.nuts()."
        )
        warn(reason)


class LatentShapes(latent_shapes.LatentShapes):
    """Of Pyro."""

    signature, calling_elbo = staticmethod(signature), staticmethod(calling_elbo)

    @staticmethod
    def shapes_of(trace: poutine.Trace, subsampled: bool) -> dict[str, tuple]:
        local = subsampled_latents(trace) if subsampled else ()
        return unconstrained_shapes(_latent_sites(trace), local, biject_to)

    def check(self, model: Callable, args: tuple, kwargs: dict) -> None:
        # Of torch.jit shapes are values of the graph, and what runs becomes a part of it.
        if not torch.jit.is_tracing():
            super().check(model, args, kwargs)

    def found(self, model: Callable, args: tuple, kwargs: dict) -> dict[str, tuple]:
        tracer = poutine.trace(model)
        try:
            return self.shapes_of(quiet_trace(tracer, args, kwargs), self._subsampled)
        except Exception as error:  # noqa: BLE001
            _check_empty_plates(tracer.trace, error)
            # The guide may be called with arguments that the model cannot run with (none
            # at all, say); the check exists to explain a failure, not to cause one.
            return {}


def explained_trace(model: Callable, args: tuple, kwargs: dict) -> poutine.Trace:
    """:func:`quiet_trace` from the start, whose values are to blame if it fails.

    :raises InvalidStartError: naming the site that starts at no valid value.
    :raises ValueError: naming the site whose distribution has invalid parameters.
    :raises TypeError: naming the site that has no distribution.
    """
    tracer = poutine.trace(model)
    try:
        return quiet_trace(tracer, args, kwargs)
    except Exception as error:
        _check_empty_plates(tracer.trace, error)
        _check_statement(error)
        for name, site in _sample_sites(tracer.trace):
            if not site["is_observed"] and not _is_inside(site):
                shape = tuple(site["fn"].shape())
                raise InvalidStartError(
                    f"Latent site '{name}' starts at {site['value']}, no value of its "
                    f"distribution, of shape {shape}: check init_loc_fn=. The model fails: {error}"
                ) from error
        # torch refuses a distribution's parameters before the site is known.
        is_refused = isinstance(error, ValueError) and "to satisfy the constraint" in str(error)
        name = _next_site(model, tracer.trace, args, kwargs) if is_refused else None
        if name is not None:
            raise ValueError(checks.no_distribution(name, error)) from error
        raise


def _check_empty_plates(trace: poutine.Trace, error: Exception) -> None:
    """Say of a model that has failed which plate of it has no elements."""
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and site_is_subsample(site):
            if 0 in (site["fn"].size, site["fn"].subsample_size):
                raise ValueError(checks.empty_plate(name, "Pyro")) from error


def _check_statement(error: Exception) -> None:
    """Say of a statement that has failed whether it has no distribution, or no size."""
    found = checks.called(error, pyro.sample)
    if found and not isinstance(found["fn"], dist.Distribution):
        raise TypeError(checks.no_statement(found["name"], found["fn"])) from error
    checks.check_plate(error, SubsampleMessenger)


def _next_site(model: Callable, trace: poutine.Trace, args: tuple, kwargs: dict) -> str | None:
    """The site that comes after a trace whose model has failed, if nobody validates."""
    tracer = poutine.trace(model)
    try:
        with pyro.validation_enabled(False):
            quiet_trace(tracer, args, kwargs)
    except Exception as error:  # noqa: BLE001  a draw that cannot be made, say
        if name := checks.called(error, pyro.sample).get("name"):
            return name
    return next((name for name, _ in _sample_sites(tracer.trace) if name not in trace), None)


def _is_inside(site: dict[str, Any]) -> bool:
    if site["fn"].support.is_discrete:
        return True
    if site["value"].shape != site["fn"].shape():
        return False
    return bool(torch.isfinite(biject_to(site["fn"].support).inv(site["value"])).all())


def quiet_trace(model: Callable, args: tuple, kwargs: dict) -> poutine.Trace:
    """A trace of the model that no handler sees and that costs no random numbers."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
        return poutine.block(poutine.trace(model).get_trace)(*args, **kwargs)


def _started(model: Callable, start: dict, args: tuple, kwargs: dict) -> poutine.Trace:
    # Sites that a reparametrization replaces are asked for as well.
    started = InitMessenger(lambda site: start.get(site["name"]))(model)
    return quiet_trace(started, args, kwargs)


def _invalid_sites(trace: poutine.Trace) -> list[tuple[str, bool]]:
    """The sites without a finite log density, in words, and whether other latents may give one."""
    invalid = []
    for name, site in _sample_sites(trace):
        is_finite = bool(torch.isfinite(torch.as_tensor(site["value"])).all())
        if not site["is_observed"] and not is_finite:
            invalid.append((f"'{name}' starts at a value that is not finite", False))
            continue
        kind = "observed site" if site["is_observed"] else "latent site"
        try:
            log_prob = site["fn"].log_prob(site["value"])
        except Exception as error:
            if "within the support" in str(error):  # Pyro's own validation
                invalid.append((f"{kind} '{name}': {error}", False))
                continue
            shapes = tuple(site["value"].shape), tuple(site["fn"].shape())
            kept = f"{error} (The value is of {site['value'].dtype}.)"
            text = checks.no_density(name, *shapes, site["is_observed"], kept)
            raise ValueError(text) from error
        if torch.is_complex(log_prob):
            raise ValueError(checks.complex_density(name))
        if not torch.isfinite(log_prob).all():
            if isinstance(site["fn"], dist.Delta) and not site["is_observed"]:
                raise ValueError(
                    f"Sample site '{name}' has a delta distribution, and no density: use "
                    "pyro.deterministic for a value that follows from others."
                )
            is_possible = is_finite and not bool(torch.isnan(log_prob).any())
            reason = f"{kind} '{name}' has log density {float(log_prob.sum())}"
            invalid.append((reason, is_possible))
        elif not torch.isfinite(torch.as_tensor(log_prob.sum() * site["scale"])).all():
            reason = f"the log density of {kind} '{name}' overflows in {log_prob.dtype}"
            invalid.append((reason, True))
    return invalid


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
    """The continuous latents of a trace, with all elements of subsampled plates."""
    return latent_sites(trace.nodes, LatentShapes.shapes_of(trace, True))
