"""What is done to a model in Pyro."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from .runs import DRAWS, RATES, Runs
from .stock import STOCK


class PyroRuns(Runs):
    """All begin with the same weights of the model's torch modules."""

    ppl = "pyro"

    def remember(self, model: Callable, args: tuple, kwargs: dict) -> None:
        self.give_back = weights_of(model, args, kwargs)

    def adam(
        self, name: str, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[list[float]], int]:
        import pyro
        from pyro import infer, optim, poutine
        from pyro.infer import config_enumerate

        discrete, loss_of = self._loss(model, args, kwargs, nesting)
        model = config_enumerate(model) if discrete else model
        bounds, fewest = [], self.num_steps
        for rate in RATES:
            pyro.clear_param_store()
            self.give_back()
            guide = self.guide(infer, name, poutine.block(model, hide_fn=is_discrete))
            guide(*args, **kwargs)
            adam, steps, began = optim.Adam({"lr": rate}), 0, time.process_time()
            while steps < self.num_steps and not self.is_over(began, 1 / len(RATES)):
                with poutine.trace(param_only=True) as capture:
                    STOCK[type(loss_of)](loss_of, model, guide, *args, **kwargs)
                values = [site["value"] for site in capture.trace.nodes.values()]
                params = {getattr(v, "unconstrained", lambda v=v: v)() for v in values}
                adam(params)
                pyro.infer.util.zero_grads(params)
                steps += 1
            bounds.append(self.bound(model, guide, {}, args, kwargs, nesting))
            fewest = min(fewest, steps)
        return bounds, fewest

    def _loss(
        self, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[str], Any]:
        """Discrete latents, and the ELBO."""
        from pyro import infer, poutine
        from pyro.poutine.util import site_is_subsample

        with poutine.block():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        latents = [
            n
            for n, s in trace.nodes.items()
            if s["type"] == "sample" and not s["is_observed"] and not site_is_subsample(s)
        ]
        discrete = [n for n in latents if trace.nodes[n]["fn"].has_enumerate_support]
        frames = [
            f.dim
            for s in trace.nodes.values()
            if s["type"] == "sample"
            for f in s["cond_indep_stack"]
            if f.vectorized
        ]
        if not discrete:
            return discrete, infer.Trace_ELBO()
        nesting = -min(frames, default=0) if nesting is None else nesting
        return discrete, infer.TraceEnum_ELBO(max_plate_nesting=nesting)

    def bound(
        self, model: Callable, guide: Any, params: Any, args: tuple, kwargs: dict, nesting: Any
    ) -> list[float]:
        """At fresh draws, with the parameters that are in the store."""
        import torch
        from pyro.infer import config_enumerate

        discrete, loss_of = self._loss(model, args, kwargs, nesting)
        model = config_enumerate(model) if discrete else model
        began, bounds = time.process_time(), []
        with torch.no_grad():
            while len(bounds) < DRAWS and (
                len(bounds) < 5 or not self.is_over(began, 0.5 / len(RATES))
            ):
                bounds.append(-float(loss_of.loss(model, guide, *args, **kwargs)))
        return bounds

    def nuts(self, model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
        from pyro import infer

        kernel = infer.NUTS(model, max_tree_depth=3, max_plate_nesting=nesting)
        sampler = infer.MCMC(kernel, num_samples=1, warmup_steps=2, disable_progbar=True)
        STOCK["run"](sampler, *args, **kwargs)
        return {}


def weights_of(model: Callable, args: tuple, kwargs: dict) -> Callable[[], None]:
    """What gives modules their parameters back: the model's own, and those it registers."""
    import pyro
    import torch
    from pyro import poutine

    module = getattr(model, "__self__", model)
    own = deepcopy(module.state_dict()) if isinstance(module, torch.nn.Module) else None
    values: dict[str, Any] = {}
    with contextlib.suppress(Exception), poutine.block(), torch.no_grad():
        pyro.set_rng_seed(0)
        nodes = poutine.trace(model).get_trace(*args, **kwargs).nodes
        values = {n: s["value"] for n, s in nodes.items() if s["type"] == "param"}
    leaves = {n: v for n, v in values.items() if isinstance(v, torch.nn.Parameter)}
    kept = [(leaf, leaf.detach().clone()) for leaf in leaves.values()]

    def give_back() -> None:
        with torch.no_grad():
            for leaf, value in kept:
                leaf.copy_(value)
        if own is not None:
            module.load_state_dict(own)

    return give_back


def is_discrete(site: dict[str, Any]) -> bool:
    """Whether Pyro enumerates a site, which other minibatches may not have."""
    return site["type"] == "sample" and getattr(site["fn"], "has_enumerate_support", False)
