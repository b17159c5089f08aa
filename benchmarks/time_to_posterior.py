"""The time to a posterior that can be trusted: ``fit``, NUTS, and the field's other samplers.

    python -m benchmarks time_to_posterior --data-dir DIR [--models german ...] [--methods fit ...]

Each method and model is a process of its own, in double precision with one thread. Seconds are of
the processor from data to draws: *cold* is the first data set, compilation included and imports
not; *warm* is the second, other data of the same shapes. *Right* is a method whose every mean is
within 0.1 standard deviations, and every standard deviation within a tenth, of those of a long run
of NumPyro's NUTS (of the non-centred model, where there is one). The draws of ``fit`` are those of
its result, as they come. Of ``time_to_posterior.csv``, which it writes with ``.png``, rows that are
asked for are replaced. What is not installed (``pip install 'ngvi[peers]'``) is left out, and of a
run that is not waited for (``--limit``) the table has the seconds that it had taken.

Time: two hours. Data: logistic/, misc/radon_minnesota.csv; the extra peers for all methods.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks import pages
from benchmarks.models.posteriors import MODELS, model_of
from benchmarks.time_to_posterior_peers import (
    CHAINS,
    DRAWS,
    blackjax,
    blackjax_auto,
    nutpie,
    pathfinder,
)
from examples.machine import describe

TABLE, PICTURE, REFERENCE = "time_to_posterior.csv", "time_to_posterior.png", "reference"
LONG, CAREFUL = 8000, 0.97  #: draws of a chain of the reference, and its acceptance
#: What a mean may be off, in standard deviations, and a standard deviation by its ratio.
NEAR_MEAN, NEAR_SD = 0.1, 0.1
#: Sites that stand for others, which are compared.
HELPERS = {"raw"}


# -- methods --------------------------------------------------------------------------


def fit(ppl: str, model: Callable, args: tuple, lap: Callable) -> None:
    """Draws as they come."""
    if ppl == "pyro":
        from pyro_ngvi import fit
    else:
        from numpyro_ngvi import fit
    result = fit(model, *args, progress_bar=False)
    found = f"{result.verdict}, {result.diagnostics.accuracy.verdict}"
    lap("fit", result.sample(4000), result.cost, found)


def nuts_numpyro(
    model: Callable, args: tuple, lap: Callable, draws: int = DRAWS, accepted: float = 0.8
) -> None:
    import jax
    from numpyro.infer import MCMC, NUTS

    options = {"num_warmup": draws, "num_samples": draws, "num_chains": CHAINS}
    kernel = NUTS(model, target_accept_prob=accepted)
    mcmc = MCMC(kernel, **options, chain_method="sequential", progress_bar=False)
    mcmc.run(jax.random.key(0), *args, extra_fields=("num_steps",))
    steps = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    lap("NUTS", mcmc.get_samples(), steps)


def standardised(site: dict) -> Any:
    """A standardised form of normal effects in plates."""
    from numpyro.distributions import Normal
    from numpyro.infer.reparam import LocScaleReparam

    is_free = site["cond_indep_stack"] and not site["is_observed"]
    is_own = is_free and not site["name"].endswith("_decentered")  # of the new form
    return LocScaleReparam(0.0) if is_own and isinstance(site["fn"], Normal) else None


def reference(model: Callable, args: tuple, lap: Callable) -> None:
    """Long chains, with normal effects in plates standardised."""
    import numpyro

    model = numpyro.handlers.reparam(model, standardised)
    nuts_numpyro(model, args, lap, LONG, CAREFUL)


def nuts_pyro(model: Callable, args: tuple, lap: Callable) -> None:
    from pyro.infer import MCMC, NUTS

    kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(kernel, num_samples=DRAWS, warmup_steps=DRAWS, disable_progbar=True)
    mcmc.run(*args)
    lap("NUTS, one chain", mcmc.get_samples())


METHODS: dict[str, tuple[str, Callable]] = {
    "fit, NumPyro": ("numpyro", partial(fit, "numpyro")),
    "fit, Pyro": ("pyro", partial(fit, "pyro")),
    "NUTS, NumPyro": ("numpyro", nuts_numpyro),
    "NUTS, Pyro": ("pyro", nuts_pyro),
    "nutpie": ("numpyro", nutpie),
    "BlackJAX": ("numpyro", blackjax),
    'BlackJAX, "auto"': ("numpyro", blackjax_auto),
    "Pathfinder": ("numpyro", pathfinder),
    REFERENCE: ("numpyro", reference),
}


# -- one process ----------------------------------------------------------------------


def measure(method: str, name: str, folder: Path, once: bool = False) -> list[dict[str, Any]]:
    """In this process: the first data set, and then the second.

    :param once: the first alone.
    """
    ppl, run = METHODS[method]
    if ppl == "numpyro":
        import numpyro

        numpyro.enable_x64()
    else:
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for kind in ("cold", "warm"):
        if kind == "warm" and (once or method == REFERENCE):
            break
        model, args = model_of(name, ppl, folder, second=kind == "warm")
        begin = time.process_time()

        def lap(
            label: str, draws: dict, cost: Any = None, verdict: str = "", kind: str = kind
        ) -> None:
            moments = {
                k: [np.mean(np.asarray(v), 0).tolist(), np.std(np.asarray(v), 0).tolist()]
                for k, v in draws.items()
            }
            row = found.setdefault(label, {"moments": moments, "verdict": verdict})
            row[kind] = time.process_time() - begin  # noqa: B023  called at once
            row.setdefault("gradients", cost if isinstance(cost, int) else _evaluations(cost))

        run(model, args, lap)
    return [{"method": label, **row} for label, row in found.items()]


def _evaluations(cost: Any) -> int | str:
    return "" if cost is None else cost.gradients + cost.products


# -- all of them ----------------------------------------------------------------------


def in_process(
    method: str, name: str, folder: Path, limit: float, once: bool = False
) -> list[dict[str, Any]]:
    """Of a process of its own; none if it fails, and only its seconds if it takes too long."""
    command = [sys.executable, "-m", "benchmarks.time_to_posterior", "--one", method, name]
    command += ["--data-dir", str(folder.resolve()), *(["--once"] if once else [])]
    before = _seconds_of_children()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    except subprocess.TimeoutExpired:
        label = method.rpartition(", ")[0] or method
        return [{"method": label, "longer": _seconds_of_children() - before}]
    except subprocess.CalledProcessError as error:
        print(f"{method} of {name}: {error.stderr.strip()[-300:]}", flush=True)
        return []
    return json.loads(done.stdout.splitlines()[-1])


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def accuracy(moments: dict, reference: dict) -> tuple[float, float]:
    """The worst error of a mean, in standard deviations, and of a standard deviation, relative."""
    names = moments.keys() & reference.keys() - HELPERS
    mean, sd, true_mean, true_sd = (
        np.concatenate([np.ravel(of[name][part]) for name in sorted(names)])
        for of in (moments, reference)
        for part in (0, 1)
    )
    return float(abs((mean - true_mean) / true_sd).max()), float(abs(sd / true_sd - 1.0).max())


def rows_of(name: str, method: str, references: dict, options: Any) -> list[dict[str, str]]:
    """Of the table."""
    ppl, rows = METHODS[method][0], []
    if (key := MODELS[name].reference or name) not in references and not options.no_reference:
        for found in in_process(REFERENCE, key, options.data_dir, options.limit):
            if "moments" in found:
                references[key] = found["moments"]
    for one in in_process(method, name, options.data_dir, options.limit, options.once):
        is_ours = one["method"].startswith(("fit", "NUTS"))
        label = f"{one['method']}, {'NumPyro' if ppl == 'numpyro' else 'Pyro'}"
        row = {
            "model": name,
            "method": label if is_ours else one["method"],
            "cold": f"{one['cold']:.2f}" if "cold" in one else f"> {one['longer']:.0f}",
            "warm": f"{one['warm']:.2f}" if "warm" in one else "",
            "gradients": str(one.get("gradients", "")),
            **_judged(one.get("moments"), references.get(key)),
            "verdict": one.get("verdict", ""),
        }
        print(" ".join(row.values()), flush=True)
        rows.append(row)
    return rows


def _judged(moments: dict | None, reference: dict | None) -> dict[str, str]:
    """Of a row that has ended, if its reference is known."""
    if moments is None or reference is None:
        return {"mean": "", "sd": "", "right": ""}
    mean, sd = accuracy(moments, reference)
    is_right = mean <= NEAR_MEAN and sd <= NEAR_SD
    mean_in_words, sd_in_words = (f"{off:.2f}" if off < 100 else "> 100" for off in (mean, sd))
    return {"mean": mean_in_words, "sd": sd_in_words, "right": "yes" if is_right else "no"}


def picture() -> None:
    """Seconds by method, a panel for each model: cold, and warm within; hollow if not right.

    A bar with an arrow is of a run that was not waited for; a dotted one has no reference.
    """
    rows = pages.read(TABLE)
    models = list(dict.fromkeys(row["model"] for row in rows))
    methods = sorted({row["method"] for row in rows}, key=_place, reverse=True)
    columns = math.ceil(len(models) / 2)
    size = (13.0 / columns, 0.6 + 0.22 * len(methods))
    figure, axes = pages.figure(2, columns, size=size, sharex=True, sharey=True)
    for axis, name in zip(axes.ravel(), models, strict=False):
        for row in (row for row in rows if row["model"] == name):
            _bar(axis, methods.index(row["method"]), row)
        axis.set_title(name, fontsize="medium")
        axis.set(xscale="log", xlim=(0.1, 1.5 * max(_seconds(row["cold"]) for row in rows)))
        axis.xaxis.set_major_formatter("{x:g}")
    axes[0, 0].set_yticks(range(len(methods)), methods)
    figure.supxlabel("seconds of the processor, from data to draws", fontsize="medium")
    grey = {"edgecolor": "0.5", "alpha": 0.6}
    legend = {
        "right": Patch(color="0.5", alpha=0.6),
        "not right": Patch(facecolor="none", **grey),
        "without a reference": Patch(facecolor="none", linestyle=":", **grey),
        "the second data set": Line2D([], [], color="black", marker="|", linestyle=""),
    }
    figure.legend(legend.values(), legend, loc="upper center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    pages.save(figure, PICTURE)


def _bar(axis: Any, place: int, row: dict[str, str]) -> None:
    """A method's seconds in the panel of a model."""
    color = "C0" if row["method"].startswith("fit") else "0.5"
    face = color if row["right"] == "yes" else "none"
    style = {"color": face, "edgecolor": color, "linestyle": "-" if row["right"] else ":"}
    axis.barh(place, _seconds(row["cold"]), 0.7, alpha=0.6, **style)
    if row["cold"].startswith(">"):
        axis.plot(_seconds(row["cold"]), place, ">", color=color, markersize=6)
    if row["warm"]:
        axis.plot(float(row["warm"]), place, "|", color="black", markersize=10)


def _seconds(text: str) -> float:
    """At least."""
    return float(text.removeprefix("> "))


def _place(method: str) -> tuple[bool, str]:
    """Order of the rows: ``fit`` first."""
    return not method.startswith("fit"), method.lower()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    methods = [name for name in METHODS if name != REFERENCE]
    parser.add_argument("--methods", nargs="*", choices=methods, default=methods)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds by the wall of a run")
    parser.add_argument("--references", type=Path, help="a file that keeps moments of long chains")
    parser.add_argument("--no-reference", action="store_true", help="seconds alone of new models")
    parser.add_argument("--once", action="store_true", help="the first data set alone")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "MODEL"), help="as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.data_dir, options.once)))
        return
    kept = options.references
    references = json.loads(kept.read_text("utf-8")) if kept and kept.exists() else {}
    for name in options.models:
        for method in options.methods:
            rows = rows_of(name, method, references, options)
            if kept:
                kept.write_text(json.dumps(references), "utf-8")
            about = f"`python -m benchmarks time_to_posterior`, one run; {describe()}"
            pages.replace(TABLE, rows, about, ("model", "method"))
    picture()


if __name__ == "__main__":
    main()
