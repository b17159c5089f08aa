"""The process of one file of a checkout."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from .capture import models_of
from .page import is_bound
from .runs import STOCK_GUIDES, Runs
from .stock import keep_stock, restore


class Late(BaseException):
    """Too much CPU time for one fit, or one stock guide."""


def late(*_: Any) -> None:
    raise Late("more CPU time than it was given")


def message(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def child(
    path: Path,
    ppl: str,
    options: str,
    full: bool,
    seconds: float,
    outputs: list[Path],
    limit: int,
) -> None:
    """Print a line of JSON for every model of a file.

    :param outputs: files for what is printed, and for errors.
    :param limit: in seconds of CPU time.
    """
    for stream, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
    multiprocessing.set_start_method(None, force=True)  # an example may want one
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    warnings.simplefilter("ignore")
    keep_stock(ppl)
    runs: Runs
    if ppl == "pyro":
        import pyro
        import torch

        from .in_pyro import PyroRuns

        torch.manual_seed(0)
        runs = PyroRuns(full, seconds)
    else:
        from .in_numpyro import NumPyroRuns

        runs = NumPyroRuns(full, seconds)
    signal.signal(signal.SIGPROF, late)
    for number, (name, model, args, kwargs, nesting) in enumerate(models_of(path, ppl, options)):
        row: dict[str, Any] = {"number": number, "model": name}
        restore(ppl)
        runs.remember(model, args, kwargs)
        todo = [
            ("fit", runs.fit),
            *((n, runs.stock(n)) for n in STOCK_GUIDES),
        ]
        for what, run in [*todo, ("NUTS", runs.nuts)]:
            if what != "fit" and not full and "error" not in row["fit"]:
                continue
            if what == "NUTS" and is_bound(row["fit"]):
                continue
            began = time.process_time()
            if ppl == "pyro":
                pyro.clear_param_store()
                runs.give_back()
                pyro.set_rng_seed(0)
            try:
                signal.setitimer(signal.ITIMER_PROF, 3 * seconds + 60)
                row[what] = run(model, args, kwargs, nesting)
            except BaseException as error:  # noqa: BLE001
                row[what] = {"error": message(error)}
                if what == "fit" and "TRACEBACK" in os.environ:
                    traceback.print_exc()
            signal.setitimer(signal.ITIMER_PROF, 0)
            row[what]["seconds"] = round(time.process_time() - began, 1)
            print("ROW " + json.dumps(row), flush=True)
