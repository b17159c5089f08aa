"""The libraries' own functions, which :class:`~.capture.Capture` replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STOCK: dict[Any, Callable] = {}


def keep_stock(ppl: str) -> None:
    infer = __import__(f"{ppl}.infer", fromlist=["MCMC"])
    STOCK["run"] = infer.MCMC.run
    if ppl == "pyro":
        for elbo in (infer.Trace_ELBO, infer.TraceEnum_ELBO):
            STOCK[elbo] = elbo.loss_and_grads
    else:
        STOCK["init"] = infer.SVI.init


def restore(ppl: str) -> None:
    """Give the library its functions back, which fit and the stock guides may use."""
    infer = __import__(f"{ppl}.infer", fromlist=["MCMC"])
    infer.MCMC.run = STOCK["run"]
    if ppl == "numpyro":
        infer.SVI.init = STOCK["init"]
