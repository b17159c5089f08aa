"""Tan's Table 9, reduced: convolutional networks for MNIST and CIFAR-10 on a CPU, mean field.

The paper's LeNet-5 (ReLU and max-pooling, 61,706 and 83,126 weights) on all images takes ten
minutes of a GPU by 300 epochs a method. Here by default the network has its form and fewer weights
(4,158 and 7,018: images of half the side, the second kernel 3 x 3, dense layers of 32 and 24
units), 10,000 images, and a few epochs; ``--full`` is the paper's network. As there: the prior is
N(0, 10^2), the mean begins at Xavier's weights and ``C`` at ``I / sqrt(n)``, minibatches have 128
images, and the bound is a mean over draws. One draw a step; prior and entropy are exact. VOGN has
the squares of the rows' gradients, and the same minibatches as the others, where the paper has 8
and 16 images; IVON has the draw's own curvature.

    python -m benchmarks tan_table9 --data-dir DIR [--data MNIST] [--methods VOGN]

writes ``tan_table9.csv`` and ``tan_table9.png`` in ``docs/benchmarks``: rows that are asked for,
and keeps the others. ``DIR`` holds ``images/mnist.npz`` and ``images/cifar10_jpeg.npz``. The
paper's size: ``--full --rows 60000 --epochs 300``.

Time: 10 minutes. Data: images/{mnist,cifar10_jpeg}.npz.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from examples.machine import describe
from numpyro_ngvi.families import Diagonal

from . import pages
from .tan_methods import (
    COLOURS,
    CURVATURE,
    RATES_OF_NETWORKS,
    best_rate,
    marks_until,
    of_draw,
    path,
)

BATCH, PRIOR_SCALE, TEST_ROWS = 128, 10.0, 2000
METHODS = ("Adam", "PGA", "NAdam", "Snngm", "Nagm", "VOGN", "VOGN, auto", "Snngm()", "IVON")
PAPER_ROWS = {"MNIST": 60_000, "CIFAR-10": 50_000}
PAPER = {
    "MNIST": (-50535, -82010, -50786, -42936, -49113, -49247),
    "CIFAR-10": (-140971, -151733, -124035, -110607, -93280, -104754),
}


class Images(NamedTuple):
    """Pixels between -0.5 and 0.5, shape ``(n, side, side, channels)``, and labels."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(name: str, directory: Path, rows: int, is_full: bool, seed: int) -> Images:
    """Random rows of a data set, in half the resolution unless it is full."""
    rng, found = np.random.default_rng(seed), []
    for part, wanted in (("train", rows), ("test", TEST_ROWS)):
        if name == "MNIST":
            with np.load(directory / "images" / "mnist.npz") as arrays:
                images, labels = arrays[f"x_{part}"][..., None], arrays[f"y_{part}"]
            some = rng.permutation(len(labels))[:wanted]
            images = images[some]
        else:
            with np.load(directory / "images" / "cifar10_jpeg.npz") as arrays:
                labels = arrays[f"y_{part}"]
                some = rng.permutation(len(labels))[:wanted]
                images = decoded(arrays[f"jpeg_{part}"], arrays[f"offsets_{part}"], some)
        images = images.astype(np.float32) / 255 - 0.5
        if not is_full:
            num, side, _, channels = images.shape
            images = images.reshape(num, side // 2, 2, side // 2, 2, channels).mean((2, 4))
        found += [images, labels[some].astype(np.int32)]
    return Images(*found)


def decoded(data: np.ndarray, offsets: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Those images of a concatenation of JPEG files."""
    from PIL import Image

    files = (data[offsets[i] : offsets[i + 1]].tobytes() for i in some)
    return np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])


def patches(x: jax.Array, kernel: int) -> jax.Array:
    """What a kernel sees at each place: shape ``(n, places, kernel^2 channels)``."""
    side = x.shape[1] - kernel + 1
    shifts = [(i, j) for i in range(kernel) for j in range(kernel)]
    parts = [x[:, i : i + side, j : j + side] for i, j in shifts]
    return jnp.concatenate(parts, -1).reshape(len(x), side * side, -1)


class LeNet:
    """Two convolutions of 6 and 16 channels, three dense layers; weights as one vector.

    :param side: of the images.
    :param num_rows: ``n``.
    """

    def __init__(self, side: int, channels: int, num_rows: int, is_full: bool) -> None:
        self.num_rows, self.kernels = num_rows, (5, 5 if is_full else 3)
        units = (120, 84) if is_full else (32, 24)
        last = (side // 2 - self.kernels[1] + 1) // 2
        fans = [25 * channels, self.kernels[1] ** 2 * 6, 16 * last**2, *units]
        self.shapes = list(zip(fans, (6, 16, *units, 10), strict=True))
        self.dim = sum((fan_in + 1) * fan_out for fan_in, fan_out in self.shapes)

    def parts(self, theta: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        """Weights and biases of each layer."""
        found, begin = [], 0
        for fan_in, fan_out in self.shapes:
            middle = begin + fan_in * fan_out
            end = middle + fan_out
            found.append((theta[begin:middle].reshape(fan_in, fan_out), theta[middle:end]))
            begin = end
        return found

    def start(self, seed: int) -> Diagonal:
        """Xavier's weights, and a width of ``1 / sqrt(n)``."""
        rng, parts = np.random.default_rng(seed), []
        places = (25, self.kernels[1] ** 2, 1, 1, 1)  # a kernel feeds so many outputs
        for (fan_in, fan_out), each in zip(self.shapes, places, strict=True):
            limit = math.sqrt(6 / (fan_in + each * fan_out))
            parts += [rng.uniform(-limit, limit, fan_in * fan_out), np.zeros(fan_out)]
        return Diagonal().initial(jnp.asarray(np.concatenate(parts), float), self.num_rows**-0.5)

    def layers(self, theta: jax.Array, x: jax.Array, taps: Any = (0.0,) * 5) -> Any:
        """What enters each layer, and the logits.

        :param taps: are added to each layer's sums.
        """
        entering, parts = [], list(zip(self.parts(theta), taps, strict=True))
        x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
        for kernel, ((w, b), tap) in zip(self.kernels, parts[:2], strict=True):
            side = x.shape[1] - kernel + 1
            entering.append(patches(x, kernel))
            sums = jax.nn.relu(entering[-1] @ w + b + tap).reshape(len(x), side, side, -1)
            half = side // 2
            whole = sums[:, : 2 * half, : 2 * half].reshape(len(x), half, 2, half, 2, -1)
            x = whole.max((2, 4))
        x = x.reshape(len(x), -1)
        for (w, b), tap in parts[2:]:
            entering.append(x)
            sums = x @ w + b + tap
            x = jax.nn.relu(sums)
        return entering, sums

    def log_likelihood(self, theta: jax.Array, x: jax.Array, y: jax.Array, taps: Any) -> Any:
        """The sum over rows, and what enters each layer."""
        entering, logits = self.layers(theta, x, taps)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return chosen.sum(), entering

    def no_taps(self, theta: jax.Array, x: jax.Array) -> list[jax.Array]:
        """Zeros of the shapes of the layers' sums."""
        entering = jax.eval_shape(lambda theta: self.layers(theta, x)[0], theta)
        outs = [fan_out for _, fan_out in self.shapes]
        return [jnp.zeros((*e.shape[:-1], o)) for e, o in zip(entering, outs, strict=True)]

    def squares(self, entering: list[jax.Array], slopes: list[jax.Array]) -> jax.Array:
        """The sum over rows of the squares of their gradients, by those of the layers' sums."""
        parts = []
        for x, slope in zip(entering, slopes, strict=True):
            if x.ndim == 3:  # a row's gradient is a sum over places
                of_rows = jnp.einsum("npi,npo->nio", x, slope), slope.sum(1)
                parts += [(part**2).sum(0).ravel() for part in of_rows]
            else:
                parts += [((x**2).T @ slope**2).ravel(), (slope**2).sum(0)]
        return jnp.concatenate(parts)

    def estimator(self, kind: str) -> Any:
        """Of the bound's natural gradient, from one draw on a minibatch.

        :param kind: as in ``tan_table10.py``.
        """

        def estimate(
            q: Any, memory: Any, key: jax.Array, x: jax.Array, y: jax.Array
        ) -> tuple[Any, Any]:
            weight, z = self.num_rows / len(y), jax.random.normal(key, (self.dim,))
            taps = self.no_taps(q.loc, x) if kind == "squares" else [0.0] * 5
            by_both = jax.grad(self.log_likelihood, (0, 3), has_aux=True)
            (gradient, slopes), entering = by_both(q.sample(z), x, y, taps)
            curvature, gradient = None, weight * gradient
            if kind == "squares":
                curvature = weight * self.squares(entering, slopes)
            elif kind == "draw":
                curvature = -gradient * z / q.scale
            return of_draw(q, z, gradient, PRIOR_SCALE**-2, curvature), memory

        return estimate

    def forecasts(self, q: Any, x: np.ndarray, num_draws: int, seed: int) -> Iterator[np.ndarray]:
        """Log probabilities of the classes, draw by draw, in pieces of the rows."""

        @jax.jit
        def one(theta: jax.Array, x: jax.Array) -> jax.Array:
            return jax.nn.log_softmax(self.layers(theta, x)[1])

        rng = np.random.default_rng(seed)
        for _ in range(num_draws):
            theta = q.sample(jnp.asarray(rng.standard_normal(self.dim), q.loc.dtype))
            pieces = [one(theta, x[i : i + 1000]) for i in range(0, len(x), 1000)]
            yield np.concatenate(pieces)

    def bound(
        self, q: Any, x: np.ndarray, y: np.ndarray, num_draws: int = 5, seed: int = 0
    ) -> float:
        """In nats: the likelihood by draws, the divergence from the prior exactly."""
        each = [f[np.arange(len(y)), y].sum() for f in self.forecasts(q, x, num_draws, seed)]
        mean, ratio = (np.asarray(part, float) / PRIOR_SCALE for part in (q.loc, q.stddev))
        divergence = 0.5 * (mean**2 + ratio**2 - 1) - np.log(ratio)
        return float(np.mean(each) - divergence.sum())


def column(
    name: str, data: Images, methods: list[str], epochs: int, seed: int, is_full: bool
) -> Iterator[dict[str, str]]:
    """The rows of one data set."""
    num, side, _, channels = data.x.shape
    network = LeNet(side, channels, num, is_full)
    x, y = jnp.asarray(data.x), jnp.asarray(data.y)
    papers, marks = dict(zip(METHODS, PAPER[name], strict=False)), marks_until(epochs)
    for method in methods:
        estimate = network.estimator(CURVATURE.get(method, "first"))

        def make(optimiser: Any, estimate: Any = estimate) -> list[Any]:
            found = path(optimiser, network.start(seed), estimate, x, y, BATCH, marks, seed)
            return [q for q, _ in found]

        rate, curve, seconds = best_rate(
            method, make, lambda qs: network.bound(qs[-1], data.x, data.y), RATES_OF_NETWORKS
        )
        draws = np.exp(list(network.forecasts(curve[-1], data.x_test, 20, seed))).mean(0)
        bound, paper = network.bound(curve[-1], data.x, data.y, seed=1), papers.get(method)
        cells = {"data": name, "method": method, "rate": f"{rate}", "bound": f"{bound:.0f}"}
        cells |= {"a row": f"{bound / num:.3f}"}
        cells |= {"test accuracy": f"{(draws.argmax(1) == data.y_test).mean():.1%}"}
        cells |= {"paper": "" if paper is None else f"{paper}"}
        cells |= {"paper, a row": "" if paper is None else f"{paper / PAPER_ROWS[name]:.3f}"}
        cells |= {"weights": f"{network.dim:,}", "rows": f"{num:,}", "epochs": f"{epochs}"}
        bounds = [network.bound(q, data.x, data.y, 1) for q in curve[:-1]]
        for mark, value in zip(marks, [*bounds, bound], strict=True):
            cells[f"after {mark}"] = f"{value / num:.3f}"
        yield cells | {"CPU s": f"{seconds:.0f}"}


def draw(csv: str, picture: str) -> None:
    """Bounds a row by epoch: Figure 8."""
    rows = pages.read(csv)
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = pages.figure(1, len(names), (3.8, 3.4))
    for axis, name in zip(axes[0], names, strict=True):
        best = -math.inf
        for row in (row for row in rows if row["data"] == name):
            curve = {int(k.split()[1]): float(v) for k, v in row.items() if k[:6] == "after " and v}
            index, best = METHODS.index(row["method"]), max(best, *curve.values())
            style = "--" if index >= len(PAPER[name]) else "-"
            label, colour = row["method"], COLOURS[index]
            axis.plot(*zip(*curve.items(), strict=True), f".{style}", c=colour, lw=1.2, label=label)
        # What is far below is left out.
        axis.set(title=name, xscale="log", xlabel="epochs", ylim=(best - 4, best + 0.2))
        axis.set_xticks(list(curve), [str(mark) for mark in curve])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("bound, nats a row")
    lines = axes[0, 0].get_legend_handles_labels()
    axes[0, -1].legend(*lines, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    pages.save(figure, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="the paper's network and images")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    about = f"`python -m benchmarks tan_table9`, data and fits of seed {options.seed}"
    about = f"{about}, float32; CPU s of the rate shown, with compilation; {describe()}"
    for name in options.data:
        data = load(name, options.data_dir, options.rows, options.full, options.seed)
        for row in column(name, data, options.methods, options.epochs, options.seed, options.full):
            print(row, flush=True)
            pages.replace("tan_table9.csv", [row], about, ("data", "method"))
    draw("tan_table9.csv", "tan_table9.png")


if __name__ == "__main__":
    main()
