"""The baseline: AutoMultivariateNormal and Adam with a constant rate, one draw a step."""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.handlers import block
from numpyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.optim import optax_to_numpyro

from numpyro_ngvi.tracing.compilation import enable_x64

from .models import Entry, chosen
from .models.ppl import Ppl
from .rows import FIELDS, appended, in_words, read
from .target import Gaussian, Target

RATES = (1e-1, 1e-2, 1e-3)
#: More would take hours: a fit with more gradients is compared with the runs of so many.
MOST_STEPS = 20_000


def stock(args: argparse.Namespace) -> None:
    """The command: a run for each row of `run` that is not in the file yet."""
    entries = {entry.name: entry for entry in chosen(args.models, args.which)}
    done = {(row["model"], row["seed"]) for row in read([args.out])}
    with appended(args.out) as append:
        for fitted in read([args.file]):
            entry = entries.get(fitted["model"])
            key = fitted["model"], fitted["seed"]
            if entry is None or key in done or not fitted["gradients"]:
                continue
            done.add(key)
            row = stock_row(entry, fitted)
            append(row)
            print(
                f"{entry.name:34s}{row['seed']:>2} fit {float(fitted['true_bound'] or 'nan'):.3f} "
                f"stock {row['true_bound']} {row['reason']}{row['exception']}",
                flush=True,
            )
            jax.clear_caches()


def stock_row(entry: Entry, fitted: dict[str, str]) -> dict[str, Any]:
    """The best of the rates, after as many steps as a fit has taken gradients."""
    row: dict[str, Any] = dict.fromkeys(FIELDS, "")
    row |= {"class": entry.group, "model": entry.name, "ppl": "stock", "dtype": "float64"}
    row["seed"] = fitted["seed"]
    begin = time.perf_counter()
    with enable_x64(True):
        try:
            ends = stock_runs(entry, int(fitted["gradients"]), int(fitted["seed"]))
            target = Target(entry)
            bounds = [(target.bound(gaussian), rate) for rate, gaussian in ends]
            bound, rate = max(bounds, key=lambda b: b[0].value)
            row |= {"true_bound": bound.value, "true_error": bound.error}
            row |= {"gradients": fitted["gradients"], "reason": f"Adam {rate:g}"}
        except Exception as error:  # noqa: BLE001  it goes into the table
            row["exception"] = in_words(error)
    row["seconds"] = round(time.perf_counter() - begin, 2)
    return row


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
