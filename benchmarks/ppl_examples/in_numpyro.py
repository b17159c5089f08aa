"""What is done to a model in NumPyro."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .runs import AT_ONCE, CHUNK, DRAWS, RATES, Runs
from .stock import STOCK


class NumPyroRuns(Runs):
    """With stock guides whose rates are compiled together."""

    ppl = "numpyro"

    def adam(
        self, name: str, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[list[float]], int]:
        import jax
        from numpyro import handlers, infer, optim

        latents = self._sites(model, args, kwargs)[0]
        elbo: Any = infer.TraceEnum_ELBO() if latents else infer.Trace_ELBO()
        model = enumerated(model) if latents else model
        seen = handlers.block(handlers.seed(model, 0), hide=latents) if latents else model
        guide = self.guide(infer, name, seen)
        svi = infer.SVI(model, guide, optim.Adam(1.0), elbo)
        state = svi.init(jax.random.key(0), *args, **kwargs)

        @jax.jit
        @jax.vmap
        def updated(rate: Any, state: Any) -> Any:
            svi.optim = optim.Adam(rate)
            steps = jax.lax.scan(
                lambda state, _: svi.stable_update(state, *args, **kwargs), state, None, CHUNK
            )
            return steps[0]

        rates = jax.numpy.asarray(RATES)
        states = jax.vmap(lambda rate: state)(rates)
        states, steps, began = updated(rates, states), CHUNK, time.process_time()
        while steps < self.num_steps and not self.is_over(began):
            states, steps = jax.block_until_ready(updated(rates, states)), steps + CHUNK
        params = [svi.get_params(jax.tree.map(lambda leaf, i=i: leaf[i], states)) for i in range(3)]
        return self._bounds(model, guide, params, args, kwargs), steps

    def _sites(self, model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], int]:
        """Discrete latents, and how many plates there are around a site at most."""
        from numpyro import handlers

        trace = handlers.trace(handlers.seed(model, 0)).get_trace(*args, **kwargs)
        latents = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
        dims = [f.dim for s in trace.values() for f in s.get("cond_indep_stack", ())]
        return [s["name"] for s in latents if s["fn"].support.is_discrete], -min(dims, default=0)

    def bound(
        self, model: Callable, guide: Any, params: dict, args: tuple, kwargs: dict, nesting: Any
    ) -> list[float]:
        return self._bounds(model, guide, [params], args, kwargs)[0]

    def _bounds(
        self, model: Callable, guide: Any, params: list[dict], args: tuple, kwargs: dict
    ) -> list[list[float]]:
        """Means over fresh draws, some at once, for each of several parameters."""
        import jax
        from numpyro import handlers, infer
        from numpyro.contrib.funsor import enum, log_density
        from numpyro.infer.util import compute_log_probs

        discrete, nesting = self._sites(model, args, kwargs)
        many = infer.Trace_ELBO(num_particles=AT_ONCE)

        @jax.jit
        def bound(params: Any, key: Any) -> Any:
            if not discrete:
                return -many.loss(key, params, model, guide, *args, **kwargs)
            draw = jax.vmap(lambda key: summed_out(key, params))
            return jax.numpy.mean(draw(jax.random.split(key, AT_ONCE)))

        def summed_out(key: Any, params: dict[str, Any]) -> Any:
            # TraceEnum_ELBO of an HMM in scan, with plates, is off by more than a constant; this
            # is the density that NUTS has.
            log_q, sites = compute_log_probs(handlers.seed(guide, key), args, kwargs, params)
            values = params | {n: s["value"] for n, s in sites.items() if s["type"] == "sample"}
            given = handlers.substitute(handlers.seed(model, 0), data=values)
            summed = enum(given, -1 - nesting)
            return log_density(summed, args, kwargs, {})[0] - sum(log_q.values())

        bounds: list[list[float]] = [[] for _ in params]
        began = time.process_time()
        for seed in range(DRAWS // AT_ONCE):
            for own, at in zip(bounds, params, strict=True):
                own.append(float(bound(at, jax.random.key(seed))))
            if seed == 0:
                began = time.process_time()  # without compilation
            elif seed > 3 and self.is_over(began, 0.5):
                break
        return bounds

    def nuts(self, model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
        import jax
        from numpyro import infer

        sampler = infer.MCMC(
            infer.NUTS(model, max_tree_depth=3), num_warmup=2, num_samples=1, progress_bar=False
        )
        STOCK["run"](sampler, jax.random.key(0), *args, **kwargs)
        return {}


def enumerated(model: Callable) -> Callable:
    from numpyro.contrib.funsor import config_enumerate

    return config_enumerate(model)
