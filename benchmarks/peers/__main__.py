"""Gaussians by the field's own tools beside ours, on the same models in one run.

    python -m benchmarks peers --data-dir DIR [--models german ...] [--methods gsmvi ...]

writes ``peers.csv``, ``peers_paths.json`` and ``peers.png`` in ``docs/benchmarks``: rows that are
asked for, and keeps the others. Needs ``pip install 'ngvi[peers]'``. Each run is a process of its
own, from :mod:`benchmarks.peers.runs`; where several rates are tried, the one that is
first within 0.1 nats of the optimum, or else ends highest, is shown. The optimum is the highest
bound that any of the methods has come to.

Time: an hour. Data: glmm/, logistic/, misc/radon_minnesota.csv; the extra peers.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullFormatter

from benchmarks import pages
from examples.machine import describe

from .models import MODELS
from .runs import METHODS

RATES: dict[str, tuple[float, ...]] = {
    "NumPyro AutoMultivariateNormal": (0.1, 0.01, 0.001),
    "NumPyro AutoLowRank": (0.01,),
    "NumPyro AutoLaplace": (0.01,),
    "Pyro AutoMultivariateNormal": (0.01,),
    "Pyro AutoLowRank": (0.01,),
    "Pyro AutoLaplace": (0.01,),
    "Pyro AutoGaussian": (0.01,),
    "BlackJAX full-rank VI": (0.01, 0.001),
}
#: Nats below the optimum that count as there.
THERE = 0.1
PATHS, TABLE, PICTURE = "peers_paths.json", "peers.csv", "peers.png"
FLOOR, CEILING = 3e-3, 1e4  #: of the picture, in nats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of the processor a run")
    options = parser.parse_args()
    for model in options.models:
        for method in options.methods:
            for rate in RATES.get(method, (math.nan,)):
                _keep(model, method, rate, _path(model, method, rate, options))
    about = f"`python -m benchmarks peers`, {options.limit:g} s a run, seed 0; {describe()}"
    publish(about)


def _path(model: str, method: str, rate: float, options: Any) -> list[dict[str, float]]:
    """What one process says of its Gaussians."""
    command = [sys.executable, "-m", "benchmarks.peers.runs", model, method]
    command += [str(rate), str(options.limit), str(options.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:  # it has raised an error
        print(done.stderr, flush=True)
        found = [{"seconds": 0.0, "evaluations": 0, "bound": -math.inf}]
    print(f"{model}, {method}, {rate:g}: {found[-1]}", flush=True)
    return found


def _keep(model: str, method: str, rate: float, path: list[dict[str, float]]) -> None:
    """Put the rows of a run in the place of its old ones."""
    key = {"model": model, "method": method, "rate": "" if math.isnan(rate) else f"{rate:g}"}
    rows: list[dict[str, Any]] = [r for r in _paths() if any(r[k] != key[k] for k in key)]
    rows += [
        key
        | {"seconds": f"{seen['seconds']:.2f}", "evaluations": str(seen["evaluations"])}
        | {"bound": f"{seen['bound']:.4f}"}
        for seen in path
    ]
    text = ",\n".join(json.dumps(row) for row in rows)
    (pages.FOLDER / PATHS).write_text(f"[\n{text}\n]\n", "utf-8")


def _paths() -> list[dict[str, str]]:
    """Each Gaussian that was looked at."""
    file = pages.FOLDER / PATHS
    return json.loads(file.read_text("utf-8")) if file.exists() else []


def publish(about: str) -> None:
    """The table and the picture, from the paths."""
    paths: dict[tuple[str, str, str], list[tuple[float, int, float]]] = {}
    for row in _paths():
        key = row["model"], row["method"], row["rate"]
        seen = float(row["seconds"]), int(row["evaluations"]), float(row["bound"])
        paths.setdefault(key, []).append(seen)
    table, shown = [], {}
    for model in MODELS:
        own = {key[1:]: path for key, path in paths.items() if key[0] == model}
        best = max((bound for path in own.values() for *_, bound in path), default=math.nan)
        for method in METHODS:
            some = {rate: path for (name, rate), path in own.items() if name == method}
            if not some:
                continue
            rate = min(some, key=lambda rate: _merit(some[rate], best))
            path = some[rate]
            shown[model, method] = [(s, best - bound) for s, _, bound in path]
            arrived = _arrival(path, best)
            seconds, count, bound = path[-1]
            table.append(
                {
                    "model": model,
                    "method": method,
                    "rate": rate,
                    f"evaluations to {THERE} nats": f"{arrived[1]:,}" if arrived else "",
                    f"seconds to {THERE} nats": f"{arrived[0]:.1f}" if arrived else "",
                    "nats below the optimum at the end": f"{best - bound:.3g}",
                    "evaluations": f"{count:,}",
                    "seconds": f"{seconds:.1f}",
                }
            )
    pages.write(TABLE, table, about)
    _draw(shown)


def _arrival(path: list[tuple[float, int, float]], best: float) -> tuple[float, int] | None:
    """Seconds and evaluations from which on a run is within 0.1 nats."""
    arrived = None
    for seconds, count, bound in path:
        is_there = best - bound <= THERE
        arrived = (arrived or (seconds, count)) if is_there else None
    return arrived


def _merit(path: list[tuple[float, int, float]], best: float) -> tuple[float, float]:
    arrived = _arrival(path, best)
    return (arrived[0] if arrived else math.inf), best - path[-1][2]


def _draw(shown: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    models = list(dict.fromkeys(model for model, _ in shown))
    methods = [name for name in METHODS if any(name == method for _, method in shown)]
    figure, axes = pages.figure(1, len(models), (3.4, 3.8))
    for axis, model in zip(axes[0], models, strict=True):
        for index, method in enumerate(methods):
            path = [(s, max(gap, FLOOR)) for s, gap in shown.get((model, method), ())]
            path = [(s, gap) for s, gap in path if gap < CEILING]
            if path:
                style = "-" if method.startswith("ngvi") else "--"
                options = {"lw": 2.2 if style == "-" else 1.2, "color": f"C{index % 10}"}
                marker = "os^vDP*Xd<>ph"[index % 13]
                axis.plot(
                    *zip(*path, strict=True), style, ms=4, marker=marker, label=method, **options
                )
        axis.axhline(THERE, color="0.7", lw=0.8)
        axis.set(xscale="log", yscale="log", title=model, xlabel="seconds of the processor")
        axis.set(ylim=(FLOOR / 1.5, CEILING))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0][0].set_ylabel("nats below the optimum")
    found = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    lines = {method: found[method] for method in methods if method in found}
    options = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 3, "fontsize": 7}
    figure.legend(lines.values(), lines, **options)
    pages.save(figure, PICTURE)


if __name__ == "__main__":
    main()
