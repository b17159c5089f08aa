"""Globals of hierarchical models by ``fit``, by ``result.with_draws("corrected")``, and by NUTS.

Each model is centred, as in a textbook. ``fit(reparametrize=True)`` tries locals by their modes,
which its default leaves out where they would gain less than half a nat; NumPyro's NUTS has the
effects standardised, which mixes better. Of all globals, as the model has them, the farthest mean
is shown in NUTS's standard deviations, and the ratios of standard deviations; the Gaussian's by
20,000 draws, the corrected ones are as many.

    python -m benchmarks corrected --data-dir DIR [--models radon] [--ppl pyro]

writes ``corrected.csv``: rows that are asked for, and keeps the others.

Time: 15 minutes. Data: misc/radon_minnesota.csv.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import pages
from benchmarks.models import PPLS, Ppl
from benchmarks.models.posteriors import HIERARCHICAL as MODELS
from examples.machine import describe

TABLE = "corrected.csv"
NUM_DRAWS, WARM_UP, CHAINS = 20_000, 1000, 4


def by_name(draws: dict[str, Any], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Draws of each number."""
    found = {}
    for name in names:
        values = np.asarray(draws[name], float).reshape(len(draws[name]), -1)
        size = values.shape[1]
        found |= {f"{name}[{i}]" if size > 1 else name: values[:, i] for i in range(size)}
    return found


def nuts(name: str, folder: Path) -> tuple[dict[str, np.ndarray], float, str]:
    """Draws, seconds of the processor, and what they are worth."""
    import arviz
    from numpyro import handlers
    from numpyro.infer import MCMC, NUTS
    from numpyro.infer.reparam import LocScaleReparam

    model, data, local, names = MODELS[name]
    ppl = Ppl("numpyro")
    model = handlers.reparam(_bound(model, ppl), {site: LocScaleReparam(0.0) for site in local})
    sampler = MCMC(
        NUTS(model, target_accept_prob=0.95),
        num_warmup=WARM_UP,
        num_samples=NUM_DRAWS // CHAINS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    begin = time.process_time()
    sampler.run(jax.random.key(1), *map(ppl.array, data(folder)))
    seconds = time.process_time() - begin
    draws = by_name(sampler.get_samples(), names)
    chains = [values.reshape(CHAINS, -1) for values in draws.values()]
    worth = min(float(arviz.ess(values)) for values in chains)
    return draws, seconds, f"{worth:,.0f} effective draws"


def _bound(model: Callable, ppl: Ppl) -> Callable:
    def bound(*args: Any) -> None:
        model(ppl, *args)

    return bound


def fitted(name: str, ppl_name: str, folder: Path) -> list[tuple[str, dict, float, str]]:
    """By what: draws, seconds, and a remark."""
    model, data, _, names = MODELS[name]
    ppl = Ppl(ppl_name)
    args = tuple(map(ppl.array, data(folder)))
    options: dict[str, Any] = {"progress_bar": False, "reparametrize": True}
    if ppl.is_numpyro:
        from numpyro_ngvi import fit

        options["rng_key"] = jax.random.key(0)
    else:
        import pyro

        from pyro_ngvi import fit

        pyro.clear_param_store()
        pyro.set_rng_seed(0)
    begin = time.process_time()
    result = fit(_bound(model, ppl), *args, **options)
    middle = time.process_time()
    guide = "locals by modes" if hasattr(result.guide, "for_groups") else "one Gaussian"
    rows = [("fit", by_name(result.sample(NUM_DRAWS), names), middle - begin, guide)]
    middle = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draws = by_name(result.with_draws("corrected").sample(NUM_DRAWS), names)
    warned = [w for w in caught if "doubtful" in str(w.message)]
    remark = "doubtful" if warned else "accurate"
    rows.append(("corrected", draws, time.process_time() - middle, remark))
    return rows


def _row(key: dict[str, str], draws: dict, exact: dict, seconds: float, remark: str) -> dict:
    shifts = {k: (v.mean() - exact[k].mean()) / exact[k].std() for k, v in draws.items()}
    ratios = {k: v.std() / exact[k].std() for k, v in draws.items()}
    far = max(shifts, key=lambda k: abs(shifts[k]))
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return key | {
        "farthest mean": f"{shifts[far]:+.2f} ({far})",
        "smallest sd": f"{ratios[least]:.2f} ({least})",
        "largest sd": f"{ratios[most]:.2f} ({most})",
        "CPU s": f"{seconds:.1f}",
        "remark": remark,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ppl", nargs="*", default=list(PPLS), choices=PPLS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    import torch

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    about = f"`python -m benchmarks corrected --data-dir DIR`, seed 0, {describe()}"
    for name in options.models:
        exact, seconds, worth = nuts(name, options.data_dir)
        rows = [_row({"model": name, "by": "NUTS, NumPyro"}, exact, exact, seconds, worth)]
        for ppl in options.ppl:
            label = {"numpyro": "NumPyro", "pyro": "Pyro"}[ppl]
            for by, draws, spent, remark in fitted(name, ppl, options.data_dir):
                key = {"model": name, "by": f"{by}, {label}"}
                rows.append(_row(key, draws, exact, spent, remark))
        for row in rows:
            print(row, flush=True)
        pages.replace(TABLE, rows, about, ("model", "by"))


if __name__ == "__main__":
    main()
