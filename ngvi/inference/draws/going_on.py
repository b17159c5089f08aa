"""The way from doubtful draws to better ones, and its price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ngvi.inference.arguments import CORRECTED, NUTS
from ngvi.inference.draws.accuracy import is_by_modes
from ngvi.inference.draws.nuts import MOST_DRAWS
from ngvi.inference.draws.others import TOO_LITTLE
from ngvi.inference.draws.proposals import MAX_FEW
from ngvi.inference.draws.sampler import NutsRequest, are_modes_dear, seconds_of_step
from ngvi.inference.options import LEVELS
from ngvi.inference.tables import two_digits

#: Usual and largest numbers of gradients of NUTS, the latter those of four chains of 1,000 draws
#: and as much warm-up, of 60 steps each.
USUAL_GRADIENTS, MOST_GRADIENTS = 20_000, 500_000


def way_on(result: Any, found: Any) -> str:
    """Say how to go on from doubtful draws, and the price; nothing if there is no way.

    Chains that were not accurate tell the number of gradients: noise falls with its root.
    """
    accuracy, chains = found.accuracy, found.chains
    is_lost = accuracy.is_accurate or TOO_LITTLE in accuracy.fault or not found.log_weights.size
    if is_lost or result.change is not None:
        return ""
    before, words = "", "result.with_draws('nuts') runs NUTS"
    counts: Sequence[float] = (USUAL_GRADIENTS, MOST_GRADIENTS)
    if found.method == CORRECTED and result.dim <= MAX_FEW:
        words += ", whose chains may miss such a tail"
    if chains is not None:
        own, done = chains.accuracy, chains.num_gradients
        times = math.inf if own.fault else (own.worst_limit / LEVELS.negligible) ** 2
        is_over = done >= MOST_GRADIENTS or chains.latents.shape[1] >= MOST_DRAWS
        if is_over or MOST_GRADIENTS < done * times < math.inf:
            words = "result.nuts(num_samples=...) takes longer chains"
        if is_over and not math.isfinite(times):
            words, times = f"{words}, twice as long for a start", 2.0
        if math.isfinite(times):
            counts = [done * times]
        if found.method != NUTS:
            before = f"Chains of {done:,} gradients were no better. "
    return f"{before}{words}: about {price_of_chains(result, counts)}."


def price_of_chains(result: Any, counts: Sequence[float]) -> str:
    """Say the price of chains: numbers of gradients, and seconds if these are known."""
    seconds = [seconds_of_chains(result, count) for count in counts]
    price = f", {' to '.join(map(two_digits, seconds))} s" if math.isfinite(seconds[0]) else ""
    return f"{' to '.join(map(two_digits, counts))} gradients{price}"


def seconds_of_chains(result: Any, gradients: float = USUAL_GRADIENTS) -> float:
    """Return the seconds of chains in the latents in which chains begin; infinite if not known."""
    prices, chains = result.cost.prices, NutsRequest().num_chains
    if math.isnan(prices.gradient):
        return math.inf
    is_left_out = is_by_modes(result) and are_modes_dear(prices, chains)
    return gradients / chains * seconds_of_step(prices, chains, is_left_out)
