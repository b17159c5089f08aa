"""A small GPT by IVON beside AdamW, at equal steps and equal time: loss and calibration.

``examples/language_model.py`` has the text, the network and the loop. Each optimiser has as many
settings in seed 0, which is not counted afterwards: rates, and then at the best of them weight
decays of AdamW, and temperatures of IVON's posterior. Then, over fresh seeds: nats a character of
the validation text, at the end and at the best step along the way, by the weights, by IVON's mean,
and by predictions that are averaged over draws from the posterior, at temperatures of their own;
their calibration; whether entropy separates the text from shuffled text; and the loss after pruning
by signal-to-noise ``|m| / sigma`` or by magnitude.

    python -m benchmarks language_model --runs runs.json --publish
    python -m benchmarks language_model --steps 4000 --characters 100000 --shorter 4

writes ``language_model.csv``, ``language_model_pruning.csv`` and ``language_model.png`` with
``--publish``, which takes another name for them.

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

import numpy as np
import torch
from torch import Tensor, nn

from examples import language_model as example
from examples.bnn import area
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
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


# -- one run ----------------------------------------------------------------------------------


class Curve:
    """Losses of the validation text along a run, and the weights where that was lowest."""

    def __init__(self, text: Text, options: Any) -> None:
        found = windows(text.validation, options.context, options.windows)
        self.found = found.to(options.device)
        self.points: list[tuple[int, float, float]] = []  #: steps, seconds, loss
        self.best: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, step: int, seconds: float, network: nn.Module) -> None:
        loss = float(loss_of(network, self.found))
        if not self.best or loss < min(before for _, _, before in self.points):
            self.best = [weight.clone() for weight in network.parameters()]
        self.points.append((step, seconds, loss))


def run(method: str, setting: Setting, steps: int, seed: int, text: Text, options: Any) -> dict:
    """All of one run that is reported."""
    curve = Curve(text, options)
    network, optimizer = example.train(method, setting, steps, seed, text, options, curve)
    found = {"": scores(network, optimizer, 0, text, options)}
    for temperature in options.warm if method == "IVON" else ():
        with at_temperature(optimizer, temperature, text):
            warm = scores(network, optimizer, options.draws, text, options)
        found[f"{options.draws} draws at {temperature:g}"] = warm
    criteria = ("magnitude",) if method == "AdamW" else ("signal-to-noise", "magnitude")
    pruning = {
        criterion: pruned(network, ranking(network, optimizer, criterion), text, options)
        for criterion in criteria
    }
    last = exchange(network, curve.best)
    found["best"] = scores(network, optimizer, 0, text, options)
    exchange(network, last)
    return {
        "curve": curve.points,
        "seconds": curve.points[-1][1],
        "scores": found,
        "pruned": pruning,
    }


@torch.no_grad()
def exchange(network: nn.Module, others: list[Tensor]) -> list[Tensor]:
    """Set the weights; those there were are returned."""
    mine = [weight.clone() for weight in network.parameters()]
    for weight, other in zip(network.parameters(), others, strict=True):
        weight.copy_(other)
    return mine


def scores(network: nn.Module, optimizer: Any, draws: int, text: Text, options: Any) -> dict:
    """Of the validation text: nats a character, calibration, and what entropy says.

    Of the text that was learned, the nats.
    """
    found = windows(text.validation, options.context, options.windows).to(options.device)
    order = torch.rand(found.shape, generator=torch.Generator().manual_seed(0)).argsort(-1)
    shuffled = found.gather(-1, order.to(found.device))
    p = predict(network, optimizer, found[:, :-1], draws).flatten(0, 1)
    other = predict(network, optimizer, shuffled[:, :-1], draws).flatten(0, 1)
    labels = found[:, 1:].flatten()
    known = windows(text.train, options.context, options.windows // 4).to(options.device)
    q = predict(network, optimizer, known[:, :-1], draws)
    entropies = [torch.special.entr(each).sum(-1).cpu().numpy() for each in (p, other)]
    return {
        "loss": nats(p, labels),
        "training": nats(q.flatten(0, 1), known[:, 1:].flatten()),
        "ece": calibration_error(p.cpu().numpy(), labels.cpu().numpy()),
        "area": area(*entropies),
    }


def ranking(network: nn.Module, optimizer: Any, criterion: str) -> list[Tensor]:
    """Of each weight of each matrix: what is pruned last is highest."""
    found = []
    for weight in network.parameters():
        if weight.dim() < 2:
            continue
        rank = weight.detach().abs()
        if criterion == "signal-to-noise":
            group = optimizer.param_groups[0]  # sigma = (ess (h + delta))^(-1/2)
            hess = optimizer.state[weight]["hess"] + group["weight_decay"]
            rank = rank * (group["ess"] * hess) ** 0.5
        found.append(rank)
    return found


@torch.no_grad()
def pruned(network: nn.Module, ranks: list[Tensor], text: Text, options: Any) -> list[float]:
    """Validation losses without so many of the weights of matrices."""
    matrices = [weight for weight in network.parameters() if weight.dim() >= 2]
    kept = [weight.clone() for weight in matrices]
    found = windows(text.validation, options.context, options.windows // 4).to(options.device)
    ordered = torch.cat([rank.flatten() for rank in ranks]).sort().values
    losses = []
    for fraction in FRACTIONS:
        least = ordered[int(fraction * len(ordered))]
        for weight, rank, whole in zip(matrices, ranks, kept, strict=True):
            weight.copy_(torch.where(rank < least, 0.0, whole))
        losses.append(float(loss_of(network, found)))
    for weight, whole in zip(matrices, kept, strict=True):
        weight.copy_(whole)
    return losses


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
        chosen[method] = min(around(min(of_rates, key=loss)), key=loss)
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


def spread(values: list[float], places: int) -> str:
    """The mean, and the range."""
    least, most = min(values), max(values)
    return f"{statistics.mean(values):.{places}f} ({least:.{places}f}-{most:.{places}f})"


def tables(found: dict[str, Any], options: Any) -> dict[str, list[dict[str, str]]]:
    """Rows of the CSVs, by the ends of their names."""
    quality, pruning = [], []
    for name, runs in found["series"].items():
        method, steps = name.split(", ")
        for kind in runs[0]["scores"]:
            of = {name: [r["scores"][kind][name] for r in runs] for name in runs[0]["scores"][kind]}
            own = "weights" if method == "AdamW" else "mean"
            by = {"": own, "best": f"{own} of the best step"}
            quality.append(
                {
                    "optimiser": method,
                    "rate": f"{found['chosen'][method].rate:g}",
                    "decay": f"{found['chosen'][method].decay:g}",
                    "temperature": f"{found['chosen'][method].temperature:g}"
                    if method == "IVON"
                    else "",
                    "steps": steps.removesuffix(" steps"),
                    "predictions": by.get(kind, kind),
                    "processor [s]": spread([r["seconds"] for r in runs], 0),
                    "validation loss [nats/character]": spread(of["loss"], 3),
                    "training loss": spread(of["training"], 2),
                    "ECE [%]": spread([100 * e for e in of["ece"]], 2),
                    "shuffled text by entropy [area]": spread(of["area"], 3),
                }
            )
        if steps != f"{options.steps} steps":
            continue
        for criterion in runs[0]["pruned"]:
            losses = np.mean([r["pruned"][criterion] for r in runs], 0)
            cells = {f"{100 * f:.0f}%": f"{x:.2f}" for f, x in zip(FRACTIONS, losses, strict=True)}
            pruning.append({"optimiser": method, "pruned by": criterion, **cells})
    return {".csv": quality, "_pruning.csv": pruning}


def plot(found: dict[str, Any], path: str | Path) -> None:
    figure, (axes,) = pages.figure(1, 3)
    colours = {"AdamW": "C1", "IVON": "C0"}
    full = list(found["series"].items())[:2]
    for name, runs in full:
        method = name.split(",")[0]
        for index, each in enumerate(runs):
            steps, seconds, losses = zip(*each["curve"], strict=True)
            for axis, x in zip(axes, (steps, seconds), strict=False):
                axis.plot(x, losses, color=colours[method], lw=1, label=None if index else method)
        for criterion, style in (("signal-to-noise", "-"), ("magnitude", "--")):
            if criterion in runs[0]["pruned"]:
                losses = np.mean([each["pruned"][criterion] for each in runs], 0)
                label = f"{method}, by {criterion}"
                axes[2].plot(FRACTIONS, losses, style, color=colours[method], label=label)
    heights = [loss for _, runs in full for each in runs for _, _, loss in each["curve"]]
    lowest, highest = min(heights), max(heights)
    for axis, label in zip(axes, ("steps", "seconds of the processor"), strict=False):
        axis.set(xlabel=label, ylabel="validation loss [nats a character]")
        axis.set_ylim(lowest - 0.1, min(highest, lowest + 1.5) + 0.1)
    axes[2].set(xlabel="fraction of weights removed", ylabel="validation loss [nats a character]")
    axes[2].set_ylim(lowest - 0.1, lowest + 2)
    for axis in axes:
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")


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
    found.add_argument("--plot", help="where to save the picture")
    found.add_argument(
        "--publish", nargs="?", const="language_model", help="CSVs and picture by this name"
    )
    return found


def command(options: Any) -> str:
    """With the options that are not the default."""
    usual = vars(parser().parse_args([]))
    words = ["python -m benchmarks language_model"]
    for name, value in vars(options).items():
        if name not in ("runs", "plot", "publish") and value != usual[name]:
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
    for name, rows in tables(found, options).items():
        print("\n".join(pages.table(rows)))
        if options.publish:
            pages.write(f"{options.publish}{name}", rows, about)
    if options.plot or options.publish:
        plot(found, options.plot or pages.OUT / f"{options.publish}.png")


if __name__ == "__main__":
    main()
