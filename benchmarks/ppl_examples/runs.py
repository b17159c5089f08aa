"""What is done to a model: ``fit``, stock guides, NUTS."""

from __future__ import annotations

import contextlib
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.results import cost, is_certified

STOCK_GUIDES = ("AutoNormal", "AutoMultivariateNormal")

#: Of Adam with them.
RATES = (1e-3, 1e-2, 1e-1)

#: The most steps of it.
MAX_STEPS = 20_000

#: The least seconds for all rates of a stock guide.
LEAST_SECONDS = 4.0

#: Steps in one compiled program.
CHUNK = 25

#: The most latents for a stock guide with a full covariance.
MAX_DENSE = 2000

#: Draws of a bound, and how many of them at once.
DRAWS, AT_ONCE = 1000, 20


class Runs(ABC):
    """What is done to a model, in one PPL; each returns figures, or raises.

    :param full: whether bounds are compared, by runs of some length.
    :param seconds: of CPU time, for ``fit``.
    """

    #: The PPL.
    ppl: str

    def __init__(self, full: bool, seconds: float) -> None:
        self.full, self.seconds = full, seconds
        self.num_steps, self.stock_seconds = 3, LEAST_SECONDS
        self.num_latents = 0
        self.create_plates: Callable | None = None
        self.give_back: Callable[[], None] = lambda: None

    def remember(self, model: Callable, args: tuple, kwargs: dict) -> None:
        """What parameters the model has, so that :attr:`give_back` can restore them."""
        self.give_back = lambda: None

    @abstractmethod
    def bound(
        self, model: Callable, guide: Any, params: Any, args: tuple, kwargs: dict, nesting: Any
    ) -> list[float]:
        """Values of the bound at fresh draws."""

    @abstractmethod
    def adam(
        self, name: str, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[list[float]], int]:
        """Such values of a stock guide at each of the rates, and the number of steps."""

    @abstractmethod
    def nuts(self, model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
        """Three transitions."""

    def fit(self, model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
        package = importlib.import_module(f"{self.ppl}_ngvi")
        is_compiled = self.ppl == "numpyro"  # before its first step
        began = [] if is_compiled else [time.process_time()]

        def watch(*_: Any) -> None:
            began.append(time.process_time())
            if began[-1] - began[0] > self.seconds:
                raise KeyboardInterrupt  # as by a user: fit returns what it has

        options = {"progress_bar": False, "allow_prior": True, "callback": watch} | kwargs
        options |= {} if self.full else {"max_steps": 3}
        self.create_plates = None
        try:
            result = package.fit(model, *args, **options)
        except ValueError as error:
            if "Pass create_plates=" not in str(error):
                raise
            self.create_plates = options["create_plates"] = plates_of(self.ppl, model, args, kwargs)
            result = package.fit(model, *args, family="diagonal", **options)
        self.num_latents = result.dim
        if self.full:
            since = began[0] if began else time.process_time()
            self.num_steps = MAX_STEPS
            self.stock_seconds = max(LEAST_SECONDS, time.process_time() - since)
        draws = []
        if self.full and np.isfinite(result.bound):
            with contextlib.suppress(Exception):  # an ELBO that cannot run this model
                draws = self.bound(result.model, result.guide, result.params, args, kwargs, nesting)
        return {
            **(figures([draws]) if draws else {"bound_error": float(result.bound_error)}),
            **({} if draws else {"bound": float(result.bound)}),
            "claimed": float(result.bound),
            "converged": is_certified(result),
            "reason": str(result.reason),
            "steps": len(result.trace),
            "gradients": int(cost(result).gradients),
            "latents": int(result.dim),
        }

    def stock(self, name: str) -> Callable:
        def run(model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
            if name == "AutoMultivariateNormal" and self.num_latents > MAX_DENSE:
                return {"error": f"left out: more than {MAX_DENSE} latents"}
            draws, steps = self.adam(name, model, args, kwargs, nesting)
            return {**figures(draws), "steps": steps}

        return run

    def guide(self, infer: Any, name: str, model: Callable) -> Callable:
        """A stock guide."""
        options = {"create_plates": self.create_plates} if name == "AutoNormal" else {}
        return getattr(infer.autoguide, name)(model, **options)

    def is_over(self, began: float, part: float = 1.0) -> bool:
        """Whether a part of the seconds of a stock guide has passed."""
        return time.process_time() - began > part * self.stock_seconds


def figures(draws: list[list[float]]) -> dict[str, float]:
    """The best of some bounds and its standard error, from independent values of each."""
    bounds = np.array([np.mean(rate) for rate in draws])
    best = int(np.argmax(np.where(np.isfinite(bounds), bounds, -np.inf)))
    error = np.std(draws[best]) / np.sqrt(len(draws[best]))
    return {"bound": float(bounds[best]), "bound_error": float(error)}


def plates_of(ppl: str, model: Callable, args: tuple, kwargs: dict) -> Callable:
    """``create_plates=`` for a model with local latents in plates that are subsampled."""
    dims: dict[str, int] = {}
    library = __import__(ppl)
    if ppl == "numpyro":
        seeded = library.handlers.seed(model, 0)
        trace = library.handlers.trace(seeded).get_trace(*args, **kwargs)
        sizes = {s["name"]: s["args"] for s in trace.values() if s["type"] == "plate"}
        sites = trace.values()
    else:
        trace = library.poutine.trace(model).get_trace(*args, **kwargs)
        sizes = {
            name: (site["fn"].size, len(site["value"]))
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and library.poutine.util.site_is_subsample(site)
        }
        sites = trace.nodes.values()
    for site in sites:
        dims |= {frame.name: frame.dim for frame in site.get("cond_indep_stack", ())}
    found = {
        n: (*size, dims[n])
        for n, size in sizes.items()
        if n in dims and (size[1] or size[0]) < size[0]
    }

    def create_plates(*args: Any, **kwargs: Any) -> list:
        return [
            library.plate(name, size, subsample_size=part, dim=dim)
            for name, (size, part, dim) in found.items()
        ]

    return create_plates
