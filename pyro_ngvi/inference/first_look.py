"""A first run of a Pyro model; see :mod:`ngvi.inference.first_look`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_feasible, init_to_uniform
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions.constraints import Constraint

from ngvi.inference.first_look import (
    Seen,
    check_handlers,
    constant_support,
    known_data,
    unknown_sites,
)
from ngvi.inference.prices import warn_of_slow
from pyro_ngvi.guide.checks import frozen_parts, quiet_trace
from pyro_ngvi.tracing.messengers import OperationMode, repeatable_noise

#: Operations of a run beyond which there is a loop of Python's in the model: ten times those of
#: most.
OF_LOOPS = 500


class _Operations(OperationMode):
    """Counts torch's operations."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def look(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Seen | None:
    """Return what a run shows, which leaves no parameters; None if the model does not run."""
    check_handlers(_handlers(model))
    try:
        seen = Seen(as_numpy((args, kwargs)))
        with _leaving_nothing(model):
            start = time.perf_counter()
            with _Operations() as operations:
                trace = quiet_trace(InitMessenger(_start)(model), args, kwargs)
            warn_of_slow(time.perf_counter() - start)
            seen.has_loops = operations.count > OF_LOOPS
            seen.unrepeatable = _unrepeatable(model, args, kwargs)
        seen.unknown = unknown_sites(
            _handlers(model), trace.nodes, lambda inner: _trace(inner, args, kwargs)
        )
        for name, site in _samples(trace).items():
            if site["infer"].get("_deterministic"):
                seen.others.append(name)
            elif site["is_observed"]:
                support = constant_support(site["fn"], Constraint)
                seen.observe(name, known_data(site, as_numpy), support, partial(_are_in, support))
            else:
                seen.latents.append(name)
    except Exception:  # noqa: BLE001  the set-up fails as well, and says why
        return None
    return seen


def as_numpy(tree: Any) -> Any:
    """Return the same with numpy's arrays in place of tensors."""
    if isinstance(tree, dict):
        return {name: as_numpy(one) for name, one in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(as_numpy, tree))
    if not isinstance(tree, Tensor) or tree.layout is not torch.strided:
        return tree
    # Numpy does not know bfloat16.
    return (tree.float() if tree.dtype is torch.bfloat16 else tree).numpy(force=True)


def _start(site: dict[str, Any]) -> Tensor | None:
    return None if site["fn"].support.is_discrete else init_to_feasible(site)


def _anywhere(site: dict[str, Any]) -> Tensor | None:
    return None if site["fn"].support.is_discrete else init_to_uniform(site)


def _trace(
    model: Callable, args: tuple, kwargs: dict[str, Any], start: Callable = _start
) -> dict[str, Any]:
    """Return the sample sites of a run."""
    with _leaving_nothing(model):
        return _samples(quiet_trace(InitMessenger(start)(model), args, kwargs))


@contextlib.contextmanager
def _leaving_nothing(model: Callable) -> Iterator[None]:
    """Run the model in a parameter store that is as it was afterwards."""
    store = pyro.get_param_store()
    with frozen_parts([model]), store.scope(store.get_state()), pyro.validation_enabled(False):
        yield


def _samples(trace: poutine.Trace) -> dict[str, Any]:
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site)
    }


def _unrepeatable(model: Callable, args: tuple, kwargs: dict[str, Any]) -> str:
    """Say which site differs between two runs with the same draws, if any does."""
    try:
        # Not at zero, where noise that a latent multiplies is not seen.
        trace = quiet_trace(InitMessenger(_anywhere)(model), args, kwargs)
        with repeatable_noise():
            torch.manual_seed(int.from_bytes(b"ngvi", "big"))  # which no user takes
            again = quiet_trace(poutine.replay(model, trace=trace), args, kwargs)
        first, second = _samples(trace), _samples(again)
        differ = [k for k in first if k not in second or not _is_same(first[k], second[k])]
    except Exception:  # noqa: BLE001  a density that cannot be computed is told by the set-up
        return ""
    names = differ or [name for name in second if name not in first]
    return f"as at site '{names[0]}'" if names else ""


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two runs have the same density at a site, but for rounding."""
    a, b = (
        torch.as_tensor(value)
        for value in (one["fn"].log_prob(one["value"]), other["fn"].log_prob(other["value"]))
    )
    if a.shape != b.shape or not a.is_floating_point():
        return a.shape == b.shape
    scale = a.nan_to_num(0.0, 0.0, 0.0).abs().max() if a.numel() else 0.0
    tolerance = float((1.0 + scale) * torch.finfo(a.dtype).eps ** 0.5)
    return torch.allclose(a, b, rtol=0.0, atol=tolerance, equal_nan=True)


def _handlers(model: Any) -> Iterator[tuple[Any, Callable]]:
    """Yield the handlers around a model, each with what it is around."""
    while isinstance(model, partial) or hasattr(model, "msngr"):
        if hasattr(model, "msngr"):
            yield model.msngr, model.fn
            model = model.fn
        elif model.args and isinstance(model.args[0], Messenger):
            handler, model = model.args[:2]
            yield handler, model
        elif model.args or model.keywords:
            return
        else:
            model = model.func


def _are_in(support: Constraint, values: np.ndarray) -> np.ndarray:
    return support.check(torch.as_tensor(values)).numpy(force=True)


def log_densities(model: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return log densities of each element of the observed sites, at a run somewhere."""
    with poutine.seed(rng_seed=0):
        sites = _trace(model, args, kwargs, _anywhere).items()
    observed = [(name, site) for name, site in sites if site["is_observed"]]
    with pyro.validation_enabled(False):
        return {
            name: as_numpy(torch.as_tensor(site["fn"].log_prob(site["value"])))
            for name, site in observed
        }
