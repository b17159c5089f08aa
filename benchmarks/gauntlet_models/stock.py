"""The baseline: AutoMultivariateNormal and Adam with a constant rate, one draw a step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.handlers import block
from numpyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.optim import optax_to_numpyro

from .ppl import Ppl
from .registry import Entry
from .target import Gaussian

RATES = (1e-1, 1e-2, 1e-3)
#: More would take hours: a fit with more gradients is compared with the runs of so many.
MOST_STEPS = 20_000


def stock_runs(entry: Entry, num_steps: int, seed: int) -> list[tuple[float, Gaussian]]:
    """Rates and ends of runs of so many steps, side by side.

    :raises RuntimeError: where the stock guide finds no start.
    """
    ppl = Ppl("numpyro")
    model, args = entry.model(ppl), entry.args(ppl)
    if entry.enumerated:
        guide = AutoMultivariateNormal(block(model, hide_fn=_is_enumerated))
        loss: Any = TraceEnum_ELBO()
    else:
        guide, loss = AutoMultivariateNormal(model), Trace_ELBO()
    states = []
    for rate in RATES:
        # The state has the rate: one compiled step for all.
        adam = optax_to_numpyro(optax.inject_hyperparams(optax.adam)(learning_rate=rate))
        svi = SVI(model, guide, adam, loss)
        states.append(svi.init(jax.random.key(seed), *args))

    @jax.jit
    def together(states: Any, count: int) -> Any:
        step = jax.vmap(lambda state: svi.update(state, *args)[0])
        return jax.lax.fori_loop(0, count, lambda _, s: step(s), states)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    ends = together(stacked, min(num_steps, MOST_STEPS))
    params = jax.tree.map(np.asarray, jax.vmap(svi.get_params)(ends))
    found = []
    for k, rate in enumerate(RATES):
        own = {n: v[k] for n, v in params.items() if not n.startswith("auto_")}
        found.append((rate, Gaussian(params["auto_loc"][k], params["auto_scale_tril"][k], own)))
    return found


def _is_enumerated(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and bool(site["infer"].get("enumerate"))
