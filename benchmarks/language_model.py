"""A small GPT by IVON beside AdamW, at equal steps and equal time: loss and calibration.

``examples/language_model.py`` has the text, the network and the loop. Each optimiser has as many
settings in seed 0, which is not counted afterwards: rates, and then at the best of them weight
decays of AdamW, and temperatures of IVON's posterior. Then, over fresh seeds: nats a character of
the validation text by the weights, by IVON's mean, and by predictions that are averaged over draws
from the posterior, at temperatures of their own; and their calibration.

    python -m benchmarks --publish language_model --runs runs.json
    python -m benchmarks language_model --steps 4000 --characters 100000 --shorter 4

writes ``language_model.csv``.

Time: 10 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples import language_model as example
from examples.language_model import (
    Setting,
    Text,
    at_temperature,
    calibration_error,
    loss_of,
    nats,
    predict,
    python_reference,
    start,
    stepper,
    windows,
)
from examples.machine import describe

from . import pages

METHODS = ("AdamW", "IVON")


# -- one run ----------------------------------------------------------------------------------


class Curve:
    """Steps, seconds and losses of the validation text along a run."""

    def __init__(self, text: Text, options: Any) -> None:
        found = windows(text.validation, options.context, options.windows)
        self.found = found.to(options.device)
        self.points: list[tuple[int, float, float]] = []

    @torch.no_grad()
    def __call__(self, step: int, seconds: float, network: nn.Module) -> None:
        self.points.append((step, seconds, float(loss_of(network, self.found))))


def run(method: str, setting: Setting, steps: int, seed: int, text: Text, options: Any) -> dict:
    """All of one run that is reported."""
    curve = Curve(text, options)
    network, optimizer = example.train(method, setting, steps, seed, text, options, curve)
    own = "weights" if method == "AdamW" else "mean"
    found = {own: scores(network, optimizer, 0, text, options)}
    for temperature in options.warm if method == "IVON" else ():
        with at_temperature(optimizer, temperature, text):
            warm = scores(network, optimizer, options.draws, text, options)
        found[f"{options.draws} draws at {temperature:g}"] = warm
    return {"seconds": curve.points[-1][1], "scores": found}


def scores(network: nn.Module, optimizer: Any, draws: int, text: Text, options: Any) -> dict:
    """Of the validation text: nats a character, and calibration; of what was learned, the nats."""
    found = windows(text.validation, options.context, options.windows).to(options.device)
    known = windows(text.train, options.context, options.windows // 4).to(options.device)
    p = predict(network, optimizer, found[:, :-1], draws).flatten(0, 1)
    q = predict(network, optimizer, known[:, :-1], draws).flatten(0, 1)
    labels = found[:, 1:].flatten()
    return {
        "loss": nats(p, labels),
        "training": nats(q, known[:, 1:].flatten()),
        "ece": calibration_error(p.cpu().numpy(), labels.cpu().numpy()),
    }


# -- settings, and the time of a step ----------------------------------------------------------


def settings(method: str, options: Any) -> tuple[list[Setting], Callable[[Setting], list[Setting]]]:
    """Those of different rates, and those that are tried around the best of them."""
    if method == "AdamW":
        rates = [Setting(rate, options.adamw_decays[0]) for rate in options.adamw_rates]
        return rates, lambda best: [best._replace(decay=d) for d in options.adamw_decays]
    decay, first = options.ivon_decay, options.temperatures[0]
    rates = [Setting(rate, decay, first) for rate in options.ivon_rates]
    return rates, lambda best: [best._replace(temperature=t) for t in options.temperatures]


def time_ratio(text: Text, options: Any, rounds: int = 40) -> float:
    """Of a step by IVON to one by AdamW: the median over turns."""
    batch = windows(text.train, options.context, options.batch).to(options.device)
    steps = [stepper(*start(m, Setting(1e-4, 1e-4, 1.0), text, 0, options)) for m in METHODS]
    ratios = []
    for turn in range(rounds + 3):
        times = []
        for step in steps:
            begin = time.process_time() if options.device == "cpu" else time.perf_counter()
            step(batch)
            if options.device != "cpu":
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
            else:
                times.append(time.process_time() - begin)
        if turn >= 3:
            ratios.append(times[1] / times[0])
    return statistics.median(ratios)


# -- runs, tables and the picture -------------------------------------------------------------


def all_runs(text: Text, options: Any) -> dict[str, Any]:
    """Runs by their names; those of the file are not done again."""
    path = Path(options.runs) if options.runs else None
    found = json.loads(path.read_text()) if path and path.exists() else {}

    def once(name: str, make: Callable[[], Any]) -> Any:
        if name not in found:
            found[name] = make()
            if path:
                path.write_text(json.dumps(found))
            if isinstance(found[name], dict):
                print(name, f"{found[name]['seconds']:.1f} s", found[name]["scores"], flush=True)
            elif isinstance(found[name], list):
                (_, seconds, loss), lowest = found[name][-1], min(c[2] for c in found[name])
                print(f"{name}: {seconds:.1f} s, {loss:.3f}, lowest {lowest:.3f}", flush=True)
        return found[name]

    ratio = once("ratio", lambda: time_ratio(text, options))
    print(f"a step by IVON takes {ratio:.2f} times one by AdamW", flush=True)
    part = text._replace(train=text.train[: len(text.train) // options.shorter])

    def loss_of_first(method: str, setting: Setting) -> float:
        def make() -> list[tuple[int, float, float]]:
            curve = Curve(part, options)
            steps = options.steps // options.shorter
            example.train(method, setting, steps, 0, part, options, curve)
            return curve.points

        loss = once(f"{method}, {setting}, seed 0", make)[-1][2]
        return loss if math.isfinite(loss) else math.inf

    chosen = {}
    for method in METHODS:
        loss, (of_rates, around) = partial(loss_of_first, method), settings(method, options)
        chosen[method] = best(around(best(of_rates, loss)), loss)
        print(f"{method}: {chosen[method]}", flush=True)
    found["chosen"] = chosen
    series = [(method, options.steps) for method in METHODS]
    series.append(("IVON", round(options.steps / ratio)))
    for method, steps in series:
        for seed in range(1, options.seeds + 1):
            make = partial(run, method, chosen[method], steps, seed, text, options)
            once(f"{method} of {steps} steps, seed {seed}", make)
    found["series"] = {
        f"{method}, {steps} steps": [
            found[f"{method} of {steps} steps, seed {seed}"] for seed in range(1, options.seeds + 1)
        ]
        for method, steps in series
    }
    return found


def best(of: list[Setting], loss: Callable[[Setting], float]) -> Setting:
    """The one with the least loss, which is not asked for if there is no other."""
    return min(of, key=loss) if len(of) > 1 else of[0]


def spread(values: list[float], places: int) -> str:
    """The mean, and the range."""
    least, most = min(values), max(values)
    return f"{statistics.mean(values):.{places}f} ({least:.{places}f}-{most:.{places}f})"


def table(found: dict[str, Any]) -> list[dict[str, str]]:
    """Rows of the CSV."""
    rows = []
    for name, runs in found["series"].items():
        method, steps = name.removesuffix(" steps").split(", ")
        setting = found["chosen"][method]
        for kind in runs[0]["scores"]:
            of = {name: [r["scores"][kind][name] for r in runs] for name in runs[0]["scores"][kind]}
            row = {"optimiser": method, "rate": f"{setting.rate:g}", "steps": steps}
            row |= {"predictions": kind, "CPU s": spread([r["seconds"] for r in runs], 0)}
            row["validation loss [nats/character]"] = spread(of["loss"], 3)
            row["training loss"] = spread(of["training"], 2)
            rows.append(row | {"ECE [%]": spread([100 * e for e in of["ece"]], 2)})
    return rows


def parser() -> argparse.ArgumentParser:
    found = example.parser()
    found.description = __doc__.split("\n")[0]
    for name, default, text in (
        ("seeds", 3, "besides the one that settings are chosen by"),
        ("shorter", 1, "as much shorter are text and runs in seed 0"),
    ):
        found.add_argument(f"--{name}", type=int, default=default, help=text)
    for name, settings, text in (
        ("adamw-rates", (1e-3, 1.4e-3), "tried in seed 0"),
        ("adamw-decays", (1.0,), "tried in seed 0, the first one with each rate"),
        ("ivon-rates", (2e-3, 2.6e-3), "tried in seed 0"),
        ("temperatures", (5e-4,), "of IVON's posterior, tried in the same way"),
        ("warm", (0.008,), "temperatures of predictions by IVON, all shown"),
    ):
        found.add_argument(f"--{name}", type=float, nargs="+", default=settings, help=text)
    found.add_argument("--ivon-decay", type=float, default=1e-7, help="IVON's")
    found.add_argument("--runs", help="a file that keeps finished runs, which are not repeated")
    return found


def command(options: Any) -> str:
    """With the options that are not the default."""
    usual = vars(parser().parse_args([]))
    words = ["python -m benchmarks language_model"]
    for name, value in vars(options).items():
        if name != "runs" and value != usual[name]:
            listed = value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}", *(f"{each}" for each in listed)]
    return " ".join(words)


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    text = python_reference()
    text = text._replace(train=text.train[: options.characters])
    network, _ = start("AdamW", Setting(1e-3, 0.0), text, 0, options)
    num_weights = sum(weight.numel() for weight in network.parameters())
    print(f"{len(text.train)} + {len(text.validation)} characters, {num_weights} weights")
    found = all_runs(text, options)
    about = f"`{command(options)}`, seeds 1 to {options.seeds}; {describe()}"
    rows = table(found)
    print("\n".join(pages.table(rows)))
    pages.write("language_model.csv", rows, about)


if __name__ == "__main__":
    main()
