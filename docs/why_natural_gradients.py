"""Draws the pictures of ``why_natural_gradients.md``: ``python docs/why_natural_gradients.py``.

A Gaussian on its way to a posterior that is one: its mean and the Cholesky factor of its covariance
move along exact gradients of the bound, by Adam; or by natural gradients, cut to a length in KL.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from matplotlib import patheffects, pyplot
from matplotlib.axes import Axes

#: The posterior: two latents that are strongly correlated, on scales that differ.
TARGET = np.array([1.6, 0.3]), np.array([[1.0, 0.19], [0.19, 0.04]])
#: Where both begin: mean, and standard deviation of each latent.
BEGIN = np.array([-2.4, 1.5]), 0.4
#: Of a step of natural gradients, in nats.
RADIUS = 1.0
NATURAL, ADAM, POSTERIOR = "#08519c", "#d95f0e", "0.55"

Gaussian = tuple[np.ndarray, np.ndarray]


def bound_gap(mean: np.ndarray, factor: np.ndarray) -> float:
    """``KL(q || p)``: what the bound is below its optimum, in nats."""
    return _kl(mean, factor @ factor.T, *TARGET)


def adam(rate: float) -> Iterator[Gaussian]:
    """Adam on mean and Cholesky factor, of which each number has a step size of its own."""
    parameters = np.concatenate([BEGIN[0], (BEGIN[1] * np.eye(2))[np.tril_indices(2)]])
    first, second = np.zeros(5), np.zeros(5)
    precision = np.linalg.inv(TARGET[1])
    step = 0
    while True:
        factor = np.zeros((2, 2))
        mean, factor[np.tril_indices(2)] = parameters[:2], parameters[2:]
        yield mean.copy(), factor
        of_factor = precision @ factor - np.diag(1 / np.diag(factor))
        gradient = np.concatenate(
            [precision @ (mean - TARGET[0]), np.tril(of_factor)[np.tril_indices(2)]]
        )
        step += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        parameters = parameters - rate * first / (1 - 0.9**step) / scale


def natural() -> Iterator[Gaussian]:
    """The Bayesian learning rule: a share of the way to the optimum, at most ``RADIUS`` long."""
    mean, covariance = BEGIN[0], BEGIN[1] ** 2 * np.eye(2)
    target = np.linalg.inv(TARGET[1])
    while True:
        yield mean, np.linalg.cholesky(covariance)
        for share in 0.8 ** np.arange(60):
            new = np.linalg.inv((1 - share) * np.linalg.inv(covariance) + share * target)
            moved = mean - share * new @ target @ (mean - TARGET[0])
            if _kl(moved, new, mean, covariance) <= RADIUS:
                break
        mean, covariance = moved, new


def _kl(mean: np.ndarray, covariance: np.ndarray, of: np.ndarray, spread: np.ndarray) -> float:
    inverse, away = np.linalg.inv(spread), of - mean
    ratio = np.linalg.slogdet(spread)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * float(np.trace(inverse @ covariance) + away @ inverse @ away - 2 + ratio)


def _ellipse(axes: Axes, mean: np.ndarray, factor: np.ndarray, **style: object) -> None:
    """Where the density has fallen to that of two standard deviations."""
    angle = np.linspace(0, 2 * np.pi, 100)
    x, y = mean[:, None] + 2 * factor @ np.array([np.cos(angle), np.sin(angle)])
    axes.plot(x, y, **style)  # type: ignore[arg-type]


def _walk(axes: Axes, walk: list[Gaussian], shown: list[int], color: str, title: str) -> None:
    _ellipse(axes, TARGET[0], np.linalg.cholesky(TARGET[1]), color=POSTERIOR, lw=6, alpha=0.5)
    for index, number in enumerate(shown):
        mean, factor = walk[number]
        _ellipse(axes, mean, factor, color=color, lw=1.3, alpha=0.35 + 0.65 * index / len(shown))
        halo = [patheffects.withStroke(linewidth=3, foreground="white")]
        place = {"ha": "center", "va": "center", "path_effects": halo, "zorder": 5}
        axes.annotate(f"{number}", mean, fontsize=9, fontweight="bold", color=color, **place)
    axes.plot(*np.array([mean for mean, _ in walk[: shown[-1] + 1]]).T, color=color, lw=0.6)
    axes.set(title=title, xlabel="first latent", ylabel="second latent")
    axes.set(xlim=(-4.2, 4.2), ylim=(-1.3, 2.7))


def main() -> None:
    """Write the three pictures."""
    count = 400
    walks = {rate: list(islice(adam(rate), count)) for rate in (0.01, 0.05, 0.3)}
    ours = list(islice(natural(), count))
    folder = Path(__file__).parent
    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})

    figure, axes = pyplot.subplots(figsize=(5.6, 3.1), layout="constrained")
    title = "Adam, step size 0.05: the number is the step"
    _walk(axes, walks[0.05], [0, 10, 30, 60, 200, 399], ADAM, title)
    figure.savefig(folder / "why_adam.png", dpi=110)

    figure, axes = pyplot.subplots(figsize=(5.6, 3.1), layout="constrained")
    _walk(axes, ours, [0, 2, 4, 6, 8, 10], NATURAL, "Natural gradients: the number is the step")
    figure.savefig(folder / "why_natural.png", dpi=110)

    figure, axes = pyplot.subplots(figsize=(5.6, 3.1), layout="constrained")
    steps = np.arange(1, count + 1)
    for (rate, walk), style in zip(walks.items(), (":", "-", "--"), strict=True):
        gaps = [bound_gap(*one) for one in walk]
        axes.plot(steps, gaps, style, color=ADAM, label=f"Adam, step size {rate:g}")
    gaps = [max(bound_gap(*one), 1e-12) for one in ours]
    axes.plot(steps, gaps, color=NATURAL, label="natural gradients")
    axes.set(xscale="log", yscale="log", ylim=(1e-4, 4e2), xlim=(1, count))
    axes.set(xlabel="steps", ylabel="nats below the optimum")
    axes.legend(frameon=False)
    figure.savefig(folder / "why_steps.png", dpi=110)


if __name__ == "__main__":
    main()
