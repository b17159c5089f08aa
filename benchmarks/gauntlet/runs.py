"""Fits of the gauntlet's models, and what each was worth by a density that is not ours."""

from __future__ import annotations

import argparse
import csv
import json
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import pages
from benchmarks.models import Entry, Ppl, chosen
from numpyro_ngvi.tracing.compilation import enable_x64

from .target import Bound, Gaussian, Target

#: ``gradients`` counts Hessian products too, ``seconds`` are those of the processor.
FIELDS = ("class", "model", "ppl", "dtype", "seed", "dim", "verdict", "reason",
          "claimed_bound", "claimed_error", "gradients", "values", "steps", "seconds",
          "true_bound", "true_error", "gap", "exception", "commit")  # fmt: skip
#: What a row is a fit of.
KEYS = ("model", "ppl", "dtype", "seed")

#: The best bounds that are known, of Gaussians over all latents as they are.
BEST = Path(__file__).with_name("best.json")

#: What the best bounds known are of: Gaussians over all latents as they are.
OPTIONS: dict[str, Any] = {
    "progress_bar": False, "reparametrize": False, "allow_prior": True, "draws": "gaussian"
}  # fmt: skip

#: As users call it; what such a fit claims is not looked at by another density.
DEFAULTS: dict[str, Any] = {"progress_bar": False}


def run(options: argparse.Namespace) -> None:
    """Do the fits that the file does not have yet."""
    done = set(map(key_of, read([options.out])))
    with appended(options.out) as append:
        for entry in chosen(options.only, options.part)[:: options.every]:
            target = None
            for seed in options.seed:
                wanted = {"class": entry.group, "model": entry.name, "ppl": options.ppl}
                wanted |= {"dtype": options.precision, "seed": seed}
                if key_of(wanted) in done:
                    continue
                if options.by_default:
                    row = default_row(entry, wanted, options.time_limit)
                else:
                    with enable_x64(True):
                        target = target or Target(entry)
                    row = fit_row(entry, target, wanted, options.time_limit)
                append(row | {"commit": pages.commit()})
                print(in_a_line(row), flush=True)
            jax.clear_caches()


def fit_row(
    entry: Entry, target: Target, wanted: dict[str, Any], time_limit: float
) -> dict[str, Any]:
    """Return the row of one fit, and what it was worth.

    :param wanted: the first fields of the row: the PPL, the precision and the seed.
    :param time_limit: seconds after which the fit is given up, which counts as an exception.
    """
    row: dict[str, Any] = {**dict.fromkeys(FIELDS, ""), **wanted}
    begin = time.process_time()
    try:
        with warnings.catch_warnings(), precision(row["ppl"], row["dtype"]):
            warnings.simplefilter("ignore")  # that it has not converged is in the table
            with alarm(time_limit):
                result = RESULTS[row["ppl"]](entry, row["seed"], **OPTIONS)
                gaussian = GAUSSIANS[row["ppl"]](result)
            row |= claims(result) | {"seconds": round(time.process_time() - begin, 2)}
        with enable_x64(True):
            gaussian = target.in_order(gaussian, [site.name for site in result.guide.sites])
            row["true_bound"], row["true_error"] = target.bound(gaussian)
    except Exception as error:  # noqa: BLE001  it goes into the table
        row["exception"] = in_words(error)
        row["seconds"] = row["seconds"] or round(time.process_time() - begin, 2)
        return row
    row["dim"] = len(gaussian.mean)
    if (best := read_best().get(entry.name)) is not None:
        row["gap"] = best.value - row["true_bound"]
    return row


def default_row(entry: Entry, wanted: dict[str, Any], time_limit: float) -> dict[str, Any]:
    """One fit as users call it. Its bound may be of locals by their modes."""
    row: dict[str, Any] = {**dict.fromkeys(FIELDS, ""), **wanted}
    begin = time.process_time()
    try:
        with warnings.catch_warnings(), precision(row["ppl"], row["dtype"]), alarm(time_limit):
            warnings.simplefilter("ignore")
            result = RESULTS[row["ppl"]](entry, row["seed"], **DEFAULTS)
            row |= {"seconds": round(time.process_time() - begin, 2)}
            return row | claims(result) | {"dim": sum(s.size for s in result.guide.sites)}
    except Exception as error:  # noqa: BLE001  it goes into the table
        seconds = round(time.process_time() - begin, 2)
        return row | {"exception": in_words(error), "seconds": seconds}


def result_of_numpyro(entry: Entry, seed: int, **options: Any) -> Any:
    """The fit of a model with a seed."""
    from numpyro_ngvi import fit

    ppl = Ppl("numpyro")
    return fit(entry.model(ppl), *entry.args(ppl), rng_key=jax.random.key(seed), **options)


def result_of_pyro(entry: Entry, seed: int, **options: Any) -> Any:
    """The fit of a model with a seed."""
    import pyro

    from pyro_ngvi import fit

    ppl = Ppl("pyro")
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    return fit(entry.model(ppl), *entry.args(ppl), **options)


RESULTS: dict[str, Callable[..., Any]] = {"numpyro": result_of_numpyro, "pyro": result_of_pyro}


def gaussian_of_numpyro(result: Any) -> Gaussian:
    """The Gaussian in the order of the guide's sites."""
    params = {k: np.asarray(v, float) for k, v in result.params.items() if not hasattr(v, "dim")}
    return Gaussian(*moments(result.posterior, np.asarray), params)


def gaussian_of_pyro(result: Any) -> Gaussian:
    """The Gaussian in the order of the guide's sites."""
    sites = {site.name for site in result.guide.sites}
    params = {
        name: value.numpy(force=True).astype(float)
        for name, value in result.params.items()
        if "." not in name and name not in sites
    }
    return Gaussian(*moments(result.posterior, lambda x: x.numpy(force=True)), params)


GAUSSIANS: dict[str, Callable[[Any], Gaussian]] = {
    "numpyro": gaussian_of_numpyro,
    "pyro": gaussian_of_pyro,
}


def moments(posterior: Any, numpy: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Mean and factor of a PPL's Gaussian, in double precision."""
    if hasattr(posterior, "scale_tril"):
        return numpy(posterior.loc).astype(float), numpy(posterior.scale_tril).astype(float)
    mean = numpy(posterior.mean).astype(float)
    if hasattr(posterior, "covariance_matrix"):
        return mean, np.linalg.cholesky(numpy(posterior.covariance_matrix).astype(float))
    return mean, np.diag(numpy(posterior.variance).astype(float) ** 0.5)  # independent


def claims(result: Any) -> dict[str, Any]:
    """What a result says of itself."""
    return {
        "verdict": str(result.verdict),
        "reason": str(result.reason),
        "claimed_bound": float(result.bound),
        "claimed_error": float(result.bound_error),
        "gradients": result.cost.gradients + result.cost.products,
        "values": result.cost.values,
        "steps": len(result.trace),
    }


def of_draws(result: Any) -> dict[str, str]:
    """What a result says of its draws."""
    result.sample(1000)
    return {"draws": str(result.diagnostics.accuracy.verdict)}


class _TimeIsUp(BaseException):
    """Which no ``except Exception`` on the way takes for something else."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` if what is inside takes more CPU seconds."""

    def give_up(*_: Any) -> None:
        raise _TimeIsUp

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except _TimeIsUp:
        raise TimeoutError(f"more than {seconds:g} CPU s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def precision(ppl: str, dtype: str) -> Iterator[None]:
    """Floats are of this type in here."""
    if ppl == "numpyro":
        with enable_x64(dtype == "float64"):
            yield
        return
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with enable_x64(True):
            yield
    finally:
        torch.set_default_dtype(before)


def in_a_line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    head = f"{row['model']:34s} {row['ppl']:8s}{row['dtype']:8s}{row['seed']:>2}"
    if row["exception"]:
        return f"{head}  {row['seconds']}s EXCEPTION {row['exception'][:200]}"
    gap = f"{row['gap']:.3f}" if row["gap"] != "" else "?"
    true = f"{row['true_bound']:.3f}±{row['true_error']:.3f}" if row["true_bound"] != "" else "?"
    return (
        f"{head} d={row['dim']:<3} {row['verdict']} "
        f"claimed {row['claimed_bound']:.3f} true {true} "
        f"gap {gap} grads {row['gradients']} values {row['values']} steps {row['steps']} "
        f"{row['seconds']}s | {row['reason'][:110]}"
    )


# -- files ---------------------------------------------------------------------------


def read(files: Iterable[Path]) -> Iterator[dict[str, str]]:
    """Rows of files, of which some may not be there."""
    for file in files:
        if file.exists():
            with file.open(newline="") as opened:
                yield from csv.DictReader(opened)


@contextmanager
def appended(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that appends a row to a file, and flushes it.

    :raises SystemExit: if the file has other columns.
    """
    is_new = not path.exists()
    if not is_new and path.read_text().split("\n", 1)[0].strip() != ",".join(FIELDS):
        raise SystemExit(f"{path} has other columns; take a new file for --out")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()

        def append(row: dict[str, Any]) -> None:
            writer.writerow(row)
            file.flush()

        yield append


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row is a fit of."""
    return tuple(str(row[name]) for name in KEYS)


def in_words(error: Exception) -> str:
    """An exception as a cell."""
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:400]


def read_best() -> dict[str, Bound]:
    """Return the best bounds that are known, by model."""
    known = json.loads(BEST.read_text())
    return {name: Bound(v["bound"], v["error"]) for name, v in known.items()}


def best(options: argparse.Namespace) -> None:
    """Search for best bounds, and write down what is better than what was known."""
    from . import search

    for entry in chosen(options.only, options.part):
        with enable_x64(True):
            try:
                bound, by, _ = search.best(Target(entry), (), options.seed[0])
            except Exception as error:  # noqa: BLE001  the next one may be found
                print(f"{entry.name:34s} {in_words(error)}")
                continue
        print(f"{entry.name:34s} {bound.value:.3f}±{bound.error:.3f} by {by}", flush=True)
        known = json.loads(BEST.read_text())  # which another process may have changed
        if entry.name not in known or known[entry.name]["bound"] < bound.value:
            row = {"bound": round(bound.value, 4), "error": round(bound.error, 4), "by": by}
            known[entry.name] = row
            lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(known.items())]
            BEST.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        jax.clear_caches()
