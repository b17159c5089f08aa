"""A small character-level GPT trained by ``PlainIVON``, beside AdamW at equal steps and equal time.

The text is the Python reference, ``pydoc_data.topics`` of the standard library, each paragraph
once; its last tenth is for validation. Pre-norm blocks, causal attention, tied embeddings, in plain
PyTorch. Both optimisers have the same batches, the same warm-up and the same cosine, and each as
many settings in seed 0, which is not counted afterwards: three rates, and then at the best of them
two more weight decays of AdamW, and two more temperatures of IVON's posterior. Then, over fresh
seeds: nats a character of the validation text, at the end and at the best step along the way, by
the weights, by IVON's mean, and by predictions that are averaged over draws from the posterior, at
temperatures of their own;
their calibration; whether entropy tells the text from shuffled text; and the loss after pruning by
signal-to-noise ``|m| / sigma`` or by magnitude.

    pip install '.[examples]'
    python -m examples.language_model --runs runs.json --publish
    python -m examples.language_model --steps 4000 --characters 100000 --shorter 4
    python -m examples.language_model --width 256 --layers 6 --context 256 --device cuda

What IVON wants in runs this short, where the curvature stays at ``hess_init`` by the default
``beta2``: one by weight, ``initial_hess``, measured on the first batches, which count as steps.
With ``rescale_lr=False`` rates are of the order of AdamW's, and a ``clip_radius`` of 1 leaves out
the few steps that are far longer than the others.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import pages
from benchmarks.machine import describe
from examples.bnn import area
from pyro_ngvi import PlainIVON, initial_hess

METHODS = ("AdamW", "IVON")
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


# -- text -------------------------------------------------------------------------------------


class Text(NamedTuple):
    """Characters as numbers."""

    train: Tensor
    validation: Tensor
    num_characters: int


def python_reference() -> Text:
    """No paragraph is in it twice, so that none of the validation's is in the training's."""
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    text = "\n\n".join(dict.fromkeys(paragraphs))
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])
    split = len(text) * 9 // 10
    return Text(numbers[:split], numbers[split:], len(alphabet))


def windows(text: Tensor, context: int, most: int) -> Tensor:
    """At most so many pieces of equal distance, shape ``(n, context + 1)``."""
    starts = torch.arange(0, len(text) - context, context)
    starts = starts[torch.linspace(0, len(starts) - 1, min(most, len(starts))).long()]
    return text[starts[:, None] + torch.arange(context + 1)]


# -- network ----------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and two layers, each after a normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.join = nn.Linear(width, width, bias=False)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of shape ``(batch, context, width)``, as is the result."""
        split = self.attend(self.before(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(found.transpose(1, 2).flatten(-2))
        return x + self.layers(self.between(x))


class GPT(nn.Module):
    """From characters to the logits of the next ones."""

    def __init__(self, size: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.character, self.position = nn.Embedding(size, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        for embedding in (self.character, self.position):
            nn.init.normal_(embedding.weight, std=0.5 * width**-0.5)

    def forward(self, characters: Tensor) -> Tensor:
        """Of shape ``(batch, context)``, to ``(batch, context, size)``."""
        x = self.character(characters) + self.position.weight[: characters.shape[-1]]
        return self.last(self.blocks(x)) @ self.character.weight.T


def loss_of(network: nn.Module, batch: Tensor) -> Tensor:
    """Nats a character, the mean."""
    return functional.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


# -- training ---------------------------------------------------------------------------------


class Setting(NamedTuple):
    """What is chosen in seed 0."""

    rate: float
    decay: float  #: of matrices by AdamW; of all weights by IVON
    temperature: float = 0.0  #: of the posterior, for IVON

    def __str__(self) -> str:
        return f"rate {self.rate:g}, decay {self.decay:g}, temperature {self.temperature:g}"


def settings(method: str, options: Any) -> tuple[list[Setting], Callable[[Setting], list[Setting]]]:
    """Those of different rates, and those that are tried around the best of them."""
    if method == "AdamW":
        rates = [Setting(rate, options.adamw_decays[0]) for rate in options.adamw_rates]
        return rates, lambda best: [best._replace(decay=d) for d in options.adamw_decays]
    decay, first = options.ivon_decay, options.temperatures[0]
    rates = [Setting(rate, decay, first) for rate in options.ivon_rates]
    return rates, lambda best: [best._replace(temperature=t) for t in options.temperatures]


def start(
    method: str, setting: Setting, text: Text, seed: int, options: Any, batches: Any = None
) -> tuple[nn.Module, Any]:
    """The network, and an optimiser of it.

    :param batches: those that IVON's ``hess_init`` is measured on; without any it is a number.
    """
    torch.manual_seed(seed)
    sizes = options.context, options.width, options.layers, options.heads
    network = GPT(text.num_characters, *sizes).to(options.device)
    weights = list(network.parameters())
    if method == "AdamW":
        groups: list[dict[str, Any]] = [
            {"params": [w for w in weights if w.dim() >= 2], "weight_decay": setting.decay},
            {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
        ]
        return network, torch.optim.AdamW(groups, setting.rate, betas=(0.9, options.adamw_beta2))
    own: dict[str, Any] = {name: getattr(options, name) for name in ("beta2", "clip_radius")}
    own |= {"ess": len(text.train) / setting.temperature, "weight_decay": setting.decay}
    if batches is not None:
        losses = (loss_of(network, batch) for batch in batches)
        own |= {"hess_init": initial_hess(weights, losses), "rescale_lr": False}
    elif options.hess_init:
        own["hess_init"] = options.hess_init
    return network, PlainIVON(weights, setting.rate, **own)


def stepper(network: nn.Module, optimizer: Any) -> Callable[[Tensor], None]:
    """A step of either optimiser; the lines of IVON are all that differs."""

    def step(batch: Tensor) -> None:
        if isinstance(optimizer, PlainIVON):
            with optimizer.sampled_params(train=True):
                loss_of(network, batch).backward()
        else:
            optimizer.zero_grad()
            loss_of(network, batch).backward()
        optimizer.step()

    return step


class Trained(NamedTuple):
    """A network, and how it came to be."""

    network: nn.Module
    optimizer: Any
    curve: list[tuple[int, float, float]]  #: steps, seconds of the processor, validation loss
    best: list[Tensor]  #: the weights where that was lowest


def train(
    method: str, setting: Setting, steps: int, seed: int, text: Text, options: Any
) -> Trained:
    """The curve has a point each tenth of the steps, of which IVON's first batches are some."""
    data, offsets = text.train.to(options.device), torch.arange(options.context + 1)
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    rng = torch.Generator().manual_seed(seed)

    def batch() -> Tensor:
        starts = torch.randint(len(data) - options.context, (options.batch, 1), generator=rng)
        return data[(starts + offsets).to(data.device)]

    measured = options.hess_batches if method == "IVON" and not options.hess_init else 0
    begin, first = clock(), (batch() for _ in range(measured)) if measured else None
    network, optimizer = start(method, setting, text, seed, options, first)
    step, seconds = stepper(network, optimizer), clock() - begin
    found = windows(text.validation, options.context, options.windows).to(options.device)
    warm, last = max(1, steps // 20), steps - measured
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min((t + 1) / warm, math.cos(0.5 * math.pi * min(t / last, 1.0))),
    )
    curve: list[tuple[int, float, float]] = []
    best: list[Tensor] = []
    for t in range(measured + 1, steps + 1):
        begin = clock()
        step(batch())
        shape.step()
        seconds += clock() - begin
        if t % max(1, steps // 10) == 0 or t == steps:
            with torch.no_grad():
                loss = float(loss_of(network, found))
            if not best or loss < min(before for _, _, before in curve):
                best = [weight.detach().clone() for weight in network.parameters()]
            curve.append((t, seconds, loss))
    return Trained(network, optimizer, curve, best)


@torch.no_grad()
def exchange(network: nn.Module, others: list[Tensor]) -> list[Tensor]:
    """Set the weights; those there were are returned."""
    mine = [weight.clone() for weight in network.parameters()]
    for weight, other in zip(network.parameters(), others, strict=True):
        weight.copy_(other)
    return mine


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


# -- what comes of it -------------------------------------------------------------------------


@contextmanager
def at_temperature(optimizer: Any, temperature: float, text: Text) -> Iterator[None]:
    """Inside, draws of IVON are from the posterior of another temperature."""
    before = [group["ess"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["ess"] = len(text.train) / temperature
    yield
    for group, ess in zip(optimizer.param_groups, before, strict=True):
        group["ess"] = ess


@torch.no_grad()
def predict(network: nn.Module, optimizer: Any, inputs: Tensor, draws: int) -> Tensor:
    """Probabilities of the next characters, averaged over draws; of no draws, the mean's."""
    if not draws:
        return network(inputs).softmax(-1)
    total = torch.zeros(())
    for _ in range(draws):
        with optimizer.sampled_params():
            total = total.to(inputs.device) + network(inputs).softmax(-1)
    return total / draws


def scores(network: nn.Module, optimizer: Any, draws: int, text: Text, options: Any) -> dict:
    """Of the validation text: nats a character, calibration, and what entropy tells.

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


def nats(p: Tensor, labels: Tensor) -> float:
    """A character, the mean."""
    return float(-p.gather(-1, labels[:, None]).log().mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Expected, of the most probable character, over fifteen bins of its probability."""
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    bins = np.minimum((15 * confidence).astype(int), 14)
    gaps = np.bincount(bins, weights=confidence - right, minlength=15)
    return float(np.abs(gaps).sum() / len(labels))


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


def run(method: str, setting: Setting, steps: int, seed: int, text: Text, options: Any) -> dict:
    """All of one run that is reported."""
    network, optimizer, curve, best = train(method, setting, steps, seed, text, options)
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
    last = exchange(network, best)
    found["best"] = scores(network, optimizer, 0, text, options)
    exchange(network, last)
    return {"curve": curve, "seconds": curve[-1][1], "scores": found, "pruned": pruning}


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
        steps = options.steps // options.shorter
        curve = once(
            f"{method}, {setting}, seed 0",
            lambda: train(method, setting, steps, 0, part, options).curve,
        )
        return curve[-1][2] if math.isfinite(curve[-1][2]) else math.inf

    chosen = {}
    for method in METHODS:
        loss, (of_rates, around) = partial(loss_of_first, method), settings(method, options)
        chosen[method] = min(around(min(of_rates, key=loss)), key=loss)
        print(f"{method}: {chosen[method]}", flush=True)
    found["chosen"] = chosen
    legs = [(method, options.steps) for method in METHODS]
    legs.append(("IVON", round(options.steps / ratio)))
    for method, steps in legs:
        for seed in range(1, options.seeds + 1):
            make = partial(run, method, chosen[method], steps, seed, text, options)
            once(f"{method} of {steps} steps, seed {seed}", make)
    found["legs"] = {
        f"{method}, {steps} steps": [
            found[f"{method} of {steps} steps, seed {seed}"] for seed in range(1, options.seeds + 1)
        ]
        for method, steps in legs
    }
    return found


def spread(values: list[float], places: int) -> str:
    """The mean, and the range."""
    least, most = min(values), max(values)
    return f"{statistics.mean(values):.{places}f} ({least:.{places}f}-{most:.{places}f})"


def tables(found: dict[str, Any], options: Any) -> dict[str, list[dict[str, str]]]:
    """Rows of the CSVs, by the ends of their names."""
    quality, pruning = [], []
    for leg, runs in found["legs"].items():
        method, steps = leg.split(", ")
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
    full = list(found["legs"].items())[:2]
    for leg, runs in full:
        method = leg.split(",")[0]
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
    found = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default, text in (
        ("width", 208, "of the embeddings"),
        ("layers", 2, "blocks"),
        ("heads", 4, "of the attention"),
        ("context", 64, "characters"),
        ("batch", 8, "pieces of text a step"),
        ("steps", 600, "of the longer runs"),
        ("draws", 8, "that predictions are averaged over"),
        ("seeds", 3, "besides the one that settings are chosen by"),
        ("windows", 256, "pieces of the validation text"),
        (
            "hess-batches",
            5,
            "that hess_init is measured on where --hess-init is 0, and as many steps fewer",
        ),
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
    for name, value in (
        ("hess-init", 0.0),
        ("clip-radius", 1.0),
        ("beta2", 0.99999),
        ("ivon-decay", 1e-7),
    ):
        found.add_argument(f"--{name}", type=float, default=value, help="IVON's")
    found.add_argument("--adamw-beta2", type=float, default=0.99, help="AdamW's")
    found.add_argument(
        "--characters", type=int, default=20_000, help="of the training text, the first ones"
    )
    found.add_argument("--device", default="cpu")
    found.add_argument("--runs", help="a file that keeps finished runs, which are not repeated")
    found.add_argument("--plot", help="where to save the picture")
    found.add_argument(
        "--publish", nargs="?", const="language_model", help="CSVs and picture in docs/benchmarks"
    )
    return found


def command(options: Any) -> str:
    """With the options that are not the default."""
    usual = vars(parser().parse_args([]))
    words = ["python -m examples.language_model"]
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
        plot(found, options.plot or pages.FOLDER / f"{options.publish}.png")


if __name__ == "__main__":
    main()
