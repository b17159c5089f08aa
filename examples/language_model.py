"""A small character-level GPT trained by ``PlainIVON``, beside AdamW at equal steps and equal time.

The text is the Python reference, ``pydoc_data.topics`` of the standard library, each paragraph
once; its last tenth is for validation. Pre-norm blocks, causal attention, tied embeddings, in plain
PyTorch. Both optimisers have the same batches, the same warm-up and the same cosine, and each the
best of three rates in seed 0, which is not counted afterwards. Then, over fresh seeds: nats a
character of the validation text, by the weights, by IVON's mean, and by predictions that are
averaged over draws from the posterior; their calibration; whether entropy tells the text from
shuffled text; and the loss after pruning by signal-to-noise ``|m| / sigma`` or by magnitude.

    pip install '.[examples]'
    python -m examples.language_model --runs runs.json --publish
    python -m examples.language_model --width 256 --layers 6 --context 256 --device cuda

What IVON wants in a run of some thousand steps, where its defaults are plain gradient descent: a
``hess_init`` of 0.1 or less instead of 1; ``beta2`` with ``1 / (1 - beta2)`` about a fifth of the
steps, since a shorter average is noise and a longer one is still ``hess_init`` at the end; and a
``clip_radius`` for weights of little curvature, such that ``lr hess_init clip_radius``, the most
that a weight moves in a step, is a rate of AdamW.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.benchmarks import pages
from examples.benchmarks.machine import describe
from pyro_ngvi import PlainIVON

RATES = {"AdamW": (3e-3, 1e-2, 3e-2), "IVON": (1.0, 3.0, 10.0)}
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


def start(method: str, rate: float, text: Text, seed: int, options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    sizes = options.context, options.width, options.layers, options.heads
    network = GPT(text.num_characters, *sizes).to(options.device)
    if method == "AdamW":
        return network, torch.optim.AdamW(network.parameters(), rate)
    own = {name: getattr(options, name) for name in ("hess_init", "beta2", "clip_radius")}
    ess = len(text.train) / options.temperature
    return network, PlainIVON(network.parameters(), rate, ess=ess, **own)


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


def train(
    method: str, rate: float, steps: int, seed: int, text: Text, options: Any
) -> tuple[nn.Module, Any, list[tuple[int, float, float]]]:
    """Returned besides: the curve, of steps, seconds of the processor, and validation loss."""
    network, optimizer = start(method, rate, text, seed, options)
    step, few = (
        stepper(network, optimizer),
        windows(text.validation, options.context, 64),
    )
    few = few.to(options.device)
    warm = max(1, steps // 20)
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min((t + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(t / steps, 1.0)))),
    )
    data, offsets = text.train.to(options.device), torch.arange(options.context + 1)
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    rng, seconds, curve = torch.Generator().manual_seed(seed), 0.0, []
    for t in range(1, steps + 1):
        begin = clock()
        starts = torch.randint(len(data) - options.context, (options.batch, 1), generator=rng)
        step(data[(starts + offsets).to(data.device)])
        shape.step()
        seconds += clock() - begin
        if t % max(1, steps // 20) == 0 or t == steps:
            with torch.no_grad():
                curve.append((t, seconds, float(loss_of(network, few))))
    return network, optimizer, curve


def time_ratio(text: Text, options: Any, rounds: int = 40) -> float:
    """Of a step by IVON to one by AdamW: the median over turns."""
    batch = windows(text.train, options.context, options.batch).to(options.device)
    steps = [stepper(*start(method, 1e-4, text, 0, options)) for method in RATES]
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
    """Of the validation text: nats a character, calibration, and what entropy tells."""
    found = windows(text.validation, options.context, options.windows).to(options.device)
    order = torch.rand(found.shape, generator=torch.Generator().manual_seed(0)).argsort(-1)
    shuffled = found.gather(-1, order.to(found.device))
    p = predict(network, optimizer, found[:, :-1], draws).flatten(0, 1)
    other = predict(network, optimizer, shuffled[:, :-1], draws).flatten(0, 1)
    labels = found[:, 1:].flatten()
    nll = -p.gather(-1, labels[:, None]).log().mean()
    entropies = [torch.special.entr(each).sum(-1).cpu().numpy() for each in (p, other)]
    return {
        "loss": float(nll),
        "ece": calibration_error(p.cpu().numpy(), labels.cpu().numpy()),
        "area": area(*entropies),
    }


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Expected, of the most probable character, over fifteen bins of its probability."""
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    bins = np.minimum((15 * confidence).astype(int), 14)
    gaps = np.bincount(bins, weights=confidence - right, minlength=15)
    return float(np.abs(gaps).sum() / len(labels))


def area(low: np.ndarray, high: np.ndarray) -> float:
    """How often one of ``high`` is above one of ``low``: the area under the ROC curve."""
    ranks = np.concatenate([low, high]).argsort().argsort()[len(low) :]
    return float((ranks.mean() - (len(high) - 1) / 2) / len(low))


def ranking(network: nn.Module, optimizer: Any, criterion: str) -> list[Tensor]:
    """Of each weight of each matrix: what is pruned last is highest."""
    found = []
    for weight in network.parameters():
        if weight.dim() < 2:
            continue
        rank = weight.detach().abs()
        if criterion == "signal-to-noise":
            (group,) = optimizer.param_groups  # sigma = (ess (h + delta))^(-1/2)
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


def run(method: str, rate: float, steps: int, seed: int, text: Text, options: Any) -> dict:
    """All of one run that is reported."""
    network, optimizer, curve = train(method, rate, steps, seed, text, options)
    found: dict[str, Any] = {"curve": curve, "seconds": curve[-1][1]}
    draws = {"": 0} if method == "AdamW" else {"": 0, "averaged": options.draws}
    found["scores"] = {k: scores(network, optimizer, n, text, options) for k, n in draws.items()}
    criteria = ("magnitude",) if method == "AdamW" else ("signal-to-noise", "magnitude")
    found["pruned"] = {
        criterion: pruned(network, ranking(network, optimizer, criterion), text, options)
        for criterion in criteria
    }
    return found


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
        return found[name]

    ratio = once("ratio", lambda: time_ratio(text, options))
    print(f"a step by IVON takes {ratio:.2f} times one by AdamW", flush=True)
    rates = {}
    for method, tried in RATES.items():
        losses = {
            rate: once(
                f"{method} {rate:g} seed 0",
                lambda m=method, r=rate: run(m, r, options.steps, 0, text, options),
            )["scores"][""]["loss"]
            for rate in tried
        }
        rates[method] = min(losses, key=lambda r, of=losses: of[r] if of[r] == of[r] else math.inf)
    found["rates"] = rates
    shorter = round(options.steps / ratio)
    legs = (("AdamW", options.steps), ("IVON", options.steps), ("IVON", shorter))
    for method, steps in legs:
        for seed in range(1, options.seeds + 1):
            once(
                f"{method} of {steps} steps, seed {seed}",
                lambda m=method, n=steps, s=seed: run(m, rates[m], n, s, text, options),
            )
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
    """Rows of the CSVs, by name."""
    quality, pruning = [], []
    for leg, runs in found["legs"].items():
        method, steps = leg.split(", ")
        for kind in runs[0]["scores"]:
            of = {name: [r["scores"][kind][name] for r in runs] for name in ("loss", "ece", "area")}
            averaged = f"{options.draws} draws" if kind else "mean"
            quality.append(
                {
                    "optimiser": method,
                    "rate": f"{found['rates'][method]:g}",
                    "steps": steps.removesuffix(" steps"),
                    "predictions": averaged if method == "IVON" else "weights",
                    "processor [s]": spread([r["seconds"] for r in runs], 0),
                    "validation loss [nats/character]": spread(of["loss"], 3),
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
    return {"language_model.csv": quality, "language_model_pruning.csv": pruning}


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
    lowest = min(loss for _, runs in full for each in runs for _, _, loss in each["curve"])
    for axis, label in zip(axes, ("steps", "seconds of the processor"), strict=False):
        axis.set(xlabel=label, ylabel="validation loss [nats a character]")
        axis.set_ylim(lowest - 0.1, lowest + 1.5)
    axes[2].set(xlabel="fraction of weights removed", ylabel="validation loss [nats a character]")
    axes[2].set_ylim(lowest - 0.1, lowest + 3)
    for axis in axes:
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default, text in (
        ("width", 32, "of the embeddings"),
        ("layers", 2, "blocks"),
        ("heads", 2, "of the attention"),
        ("context", 64, "characters"),
        ("batch", 16, "pieces of text a step"),
        ("steps", 1500, "of the longer runs"),
        ("draws", 8, "that predictions are averaged over"),
        ("seeds", 3, "besides the one that the rates are chosen by"),
        ("windows", 512, "pieces of the validation text"),
    ):
        found.add_argument(f"--{name}", type=int, default=default, help=text)
    found.add_argument("--hess-init", type=float, default=0.1, help="IVON's")
    found.add_argument("--clip-radius", type=float, default=0.03, help="IVON's")
    found.add_argument("--beta2", type=float, default=0.997, help="IVON's")
    found.add_argument("--temperature", type=float, default=1.0, help="of IVON's posterior")
    found.add_argument("--characters", type=int, help="of the training text, the first ones")
    found.add_argument("--device", default="cpu")
    found.add_argument("--runs", help="a file that keeps finished runs, which are not repeated")
    found.add_argument("--plot", help="where to save the picture")
    found.add_argument("--publish", action="store_true", help="the page in docs/benchmarks")
    return found


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    text = python_reference()
    text = text._replace(train=text.train[: options.characters])
    network, _ = start("AdamW", 1e-3, text, 0, options)
    num_weights = sum(weight.numel() for weight in network.parameters())
    print(f"{len(text.train)} + {len(text.validation)} characters, {num_weights} weights")
    found = all_runs(text, options)
    about = f"`python -m examples.language_model`, seeds 1 to {options.seeds}; {describe()}"
    for name, rows in tables(found, options).items():
        print("\n".join(pages.table(rows)))
        if options.publish:
            pages.write(name, rows, about)
    if options.plot or options.publish:
        plot(found, options.plot or pages.FOLDER / "language_model.png")


if __name__ == "__main__":
    main()
