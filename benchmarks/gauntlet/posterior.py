"""Draws of a default fit beside a long run of NumPyro's NUTS: means, and standard deviations."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import summary
from numpyro.infer import MCMC, NUTS, init_to_value

from numpyro_ngvi.tracing.compilation import enable_x64

from .models import chosen
from .models.ppl import Ppl
from .rows import in_words
from .runs import DEFAULTS, result_of_numpyro

NUM_DRAWS, WARM_UP, CHAINS = 3000, 1500, 2
#: Chains beyond this R-hat are no reference.
LARGEST_R_HAT = 1.02


def posterior(args: argparse.Namespace) -> None:
    """The command: a line for each model."""
    for entry in chosen(args.models, args.which):
        with enable_x64(True):
            try:
                print(compared(entry, args.seed, args.nuts), flush=True)
            except Exception as error:  # noqa: BLE001  it is printed
                print(f"{entry.name}: {in_words(error)}", flush=True)
        jax.clear_caches()


def compared(entry: Any, seed: int, with_nuts: bool) -> str:
    """Farthest mean in sds of NUTS, and ratios of sds, of `sample()` and of the Gaussian.

    :param with_nuts: whether of chains that go on from the fit as well.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = result_of_numpyro(entry, seed, **DEFAULTS)
        draws = result.sample(4000, rng_key=jax.random.key(seed + 1))
    is_warned = any("NUTS" in str(one.message) for one in caught)
    gaussian = result.sample(4000, corrected=False, rng_key=jax.random.key(seed + 2))
    last = {name: value[-1] for name, value in draws.items()}
    kernel = NUTS(
        entry.model(Ppl("numpyro")),
        target_accept_prob=0.95,
        init_strategy=init_to_value(values=last),
    )
    sizes = {"num_warmup": WARM_UP, "num_samples": NUM_DRAWS, "num_chains": CHAINS}
    mcmc = MCMC(kernel, **sizes, progress_bar=False, chain_method="sequential")
    mcmc.run(jax.random.key(seed + 3), *entry.args(Ppl("numpyro")))
    chains = {k: v for k, v in mcmc.get_samples(group_by_chain=True).items() if k in draws}
    r_hat = max(float(np.nanmax(one["r_hat"])) for one in summary(chains).values())
    exact = {name: value for name, value in mcmc.get_samples().items() if name in draws}
    words = f"sample {off(draws, exact)}, Gaussian {off(gaussian, exact)}, R-hat {r_hat:.3f}"
    if with_nuts:
        chains_of_fit = result.nuts(progress_bar=False)
        own = {k: v for k, v in chains_of_fit.mcmc.get_samples().items() if k in exact}
        words += f", nuts() {off(own, exact)}, {chains_of_fit.verdict}"
    words += ", warned" * is_warned + ", no reference" * (r_hat > LARGEST_R_HAT)
    return f"{entry.name}: {result.verdict}, {words}"


def off(draws: dict[str, Any], exact: dict[str, Any]) -> str:
    """In words; constant elements, such as those of a Cholesky factor, are left out."""
    shifts, ratios = [], []
    for name, value in exact.items():
        reference, own = (np.reshape(x, (len(x), -1)) for x in (value, draws[name]))
        sd = reference.std(0)
        varies = sd > 0
        shifts.append((np.abs(own.mean(0) - reference.mean(0)) / sd)[varies])
        ratios.append((own.std(0) / sd)[varies])
    every = np.concatenate(ratios)
    return f"{np.concatenate(shifts).max():.2f} sd, sds x {every.min():.2f} to {every.max():.2f}"
