"""A small character-level GPT in plain PyTorch, trained by IVON beside AdamW.

The text is the Python reference, ``pydoc_data.topics`` of the standard library; its last tenth is
for validation. Pre-norm blocks, causal attention, tied embeddings. Both optimisers have the same
batches, the same warm-up and the same cosine; two lines of the loop differ (``stepper``). IVON's
weights are a Gaussian, so that predictions can be averaged over draws from it, at a temperature of
their own: what that does to the loss and to the calibration is printed at the end.

    pip install '.[examples]'
    python -m examples.language_model
    python -m examples.language_model --width 256 --layers 6 --context 256 --device cuda

What IVON wants in runs this short, where the curvature stays at ``hess_init`` by the default
``beta2``: one by weight, the size of its gradients, measured on the first batches, which count as
steps. With ``rescale_lr=False`` rates are of the order of AdamW's, and a ``clip_radius`` of 1
leaves out the few steps that are far longer than the others.

``python -m benchmarks language_model`` chooses settings of both and compares them over seeds.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ngvi.torch import IVON

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
    """Of an optimiser."""

    rate: float
    decay: float  #: of matrices by AdamW; of all weights by IVON
    temperature: float = 0.0  #: of the posterior, for IVON

    def __str__(self) -> str:
        return f"rate {self.rate:g}, decay {self.decay:g}, temperature {self.temperature:g}"


#: Those that did best in a run of the default size.
SETTINGS = {"AdamW": Setting(1.4e-3, 1.0), "IVON": Setting(2e-3, 1e-7, 5e-4)}
#: Of predictions by draws of IVON, chosen from three.
TEMPERATURE = 0.008


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
        own |= {"hess_init": gradient_sizes(weights, losses), "rescale_lr": False}
    elif options.hess_init:
        own["hess_init"] = options.hess_init
    return network, IVON(weights, setting.rate, **own)


def gradient_sizes(weights: list[nn.Parameter], losses: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """What ``initial_hess`` measures, in the gradients' own size: the posterior is much wider."""
    squares = [torch.zeros_like(weight) for weight in weights]
    for count, loss in enumerate(losses, start=1):
        for square, gradient in zip(squares, torch.autograd.grad(loss, weights), strict=True):
            square += (gradient.square() - square) / count
    return {w: (s + 0.01 * s.mean()).sqrt() for w, s in zip(weights, squares, strict=True)}


def stepper(network: nn.Module, optimizer: Any) -> Callable[[Tensor], None]:
    """A step of either optimiser; the lines of IVON are all that differs."""

    def step(batch: Tensor) -> None:
        if isinstance(optimizer, IVON):
            with optimizer.sampled_params(train=True):
                loss_of(network, batch).backward()
        else:
            optimizer.zero_grad()
            loss_of(network, batch).backward()
        optimizer.step()

    return step


def train(
    method: str,
    setting: Setting,
    steps: int,
    seed: int,
    text: Text,
    options: Any,
    look: Callable[[int, float, nn.Module], None],
) -> tuple[nn.Module, Any]:
    """The network, and its optimiser.

    :param steps: of which IVON's first batches are some.
    :param look: called each tenth of the steps, with their number and seconds of the processor.
    """
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
    warm, last = max(1, steps // 20), steps - measured
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min((t + 1) / warm, math.cos(0.5 * math.pi * min(t / last, 1.0))),
    )
    for t in range(measured + 1, steps + 1):
        begin = clock()
        step(batch())
        shape.step()
        seconds += clock() - begin
        if t % max(1, steps // 10) == 0 or t == steps:
            look(t, seconds, network)
    return network, optimizer


# -- predictions ------------------------------------------------------------------------------


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


def nats(p: Tensor, labels: Tensor) -> float:
    """A character, the mean."""
    return float(-p.gather(-1, labels[:, None]).log().mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Expected, of the most probable character, over fifteen bins of its probability."""
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    bins = np.minimum((15 * confidence).astype(int), 14)
    gaps = np.bincount(bins, weights=confidence - right, minlength=15)
    return float(np.abs(gaps).sum() / len(labels))


# -- both, and what comes of it ----------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default, text in (
        ("width", 208, "of the embeddings"),
        ("layers", 2, "blocks"),
        ("heads", 4, "of the attention"),
        ("context", 64, "characters"),
        ("batch", 8, "pieces of text a step"),
        ("steps", 600, "of a run"),
        ("draws", 8, "that predictions are averaged over"),
        ("windows", 256, "pieces of the validation text"),
        ("characters", 20_000, "of the training text, the first ones"),
        ("hess-batches", 5, "that hess_init is measured on if --hess-init is 0; they are steps"),
    ):
        found.add_argument(f"--{name}", type=int, default=default, help=text)
    for name, value, text in (
        ("hess-init", 0.0, "IVON's"),
        ("clip-radius", 1.0, "IVON's"),
        ("beta2", 0.99999, "IVON's"),
        ("adamw-beta2", 0.99, "AdamW's"),
    ):
        found.add_argument(f"--{name}", type=float, default=value, help=text)
    found.add_argument("--device", default="cpu")
    return found


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    text = python_reference()
    text = text._replace(train=text.train[: options.characters])
    found = windows(text.validation, options.context, options.windows).to(options.device)
    labels = found[:, 1:].flatten()

    def show(name: str, probabilities: Tensor) -> None:
        p = probabilities.flatten(0, 1)
        ece = calibration_error(p.cpu().numpy(), labels.cpu().numpy())
        print(f"{name:28} {nats(p, labels):.3f} nats a character, ECE {ece:.1%}", flush=True)

    def look(step: int, seconds: float, network: nn.Module) -> None:
        with torch.no_grad():
            loss = float(loss_of(network, found))
        print(f"step {step:6} {seconds:6.1f} s {loss:8.3f}", flush=True)

    for method, setting in SETTINGS.items():
        print(f"{method}, {setting}: validation loss")
        network, optimizer = train(method, setting, options.steps, 0, text, options, look)
        show(f"{method}'s weights", predict(network, optimizer, found[:, :-1], 0))
        if method == "IVON":
            with at_temperature(optimizer, TEMPERATURE, text):
                averaged = predict(network, optimizer, found[:, :-1], options.draws)
            show(f"average over {options.draws} draws", averaged)


if __name__ == "__main__":
    main()
