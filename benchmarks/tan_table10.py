"""Tan's Table 10: deep GLMs with a shrinkage prior on each input's weights, by every method.

The network, priors and factors are those of section 8.4 and supplement S8 (``examples/deep_glm.py``
has the same model in both PPLs): two hidden layers of 20 units, a mean field of the weights from
Xavier's mean and ``C = I / sqrt(n)``. The likelihood's gradient is that of one draw on a minibatch,
prior and entropy are exact; VOGN has the squares of the rows' gradients, IVON the draw's own
estimate. The scales ``tau``, the variance ``v`` and ``gamma`` take the paper's exact step of every
iteration, with ``v``'s sum of squares from the minibatch. Data: ``Binary`` and ``Real`` by the
paper's recipe with fewer rows; ``Protein`` is the paper's (45,730 x 9). Inputs are standardised
there, responses are not. The prior of ``v`` is IG(1, 0.1), which the paper does not print. That of
the biases is flat in the paper, so that the bound has no maximum (the bias of a unit that is zero
on all rows may become as wide as it likes), and here ``exp(-b^2 / 200)``, not normalised.

A bound is that of the last Gaussian, by 100 draws on all rows, with factors and gamma at their
optimum (closed form). The last rows are the PPLs' own: ``ConjugateGuide`` with ``IVON``.

    python -m benchmarks tan_table10 --data-dir DIR [--data Binary] [--methods VOGN]

writes ``tan_table10.csv`` and ``tan_table10.png`` in ``docs/benchmarks``: rows that are asked for,
and keeps the others. ``DIR`` holds ``regression/uci_protein.npz``. The paper's size:
``--rows 100000 --batch 5000 --epochs 1000`` (2000 where the response is real).

Time: 15 minutes. Data: regression/uci_protein.npz.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from examples import deep_glm
from examples.machine import describe
from numpyro_ngvi.families import Diagonal

from . import pages
from .tan_methods import CURVATURE, RATES_OF_NETWORKS, best_rate, of_draw, path

UNITS = deep_glm.UNITS
A0, B0, OF_BIASES = 1.0, 0.1, 0.01
#: Rows of the paper, its minibatch, and its bounds.
PAPER_ROWS = {"Binary": 100_000, "Real": 100_000, "Protein": 45_730}
BATCHES_OF_AN_EPOCH = {"Binary": 20, "Real": 20, "Protein": 10}
PAPER = {
    "Binary": (-4545, -3393, -4887, -4474, -2784, -4836),
    "Real": (-191259, -181452, -224623, -188845, -193727, -215894),
    "Protein": (-135074, -134869, -137283, -136333, -134483, -136811),
}
#: The paper's first.
METHODS = ("Adam", "PGA", "NAdam", "Snngm", "Nagm", "VOGN", "VOGN, auto", "Snngm()", "IVON")
GUIDES = {"`ConjugateGuide`, NumPyro": "numpyro", "`ConjugateGuide`, Pyro": "pyro"}


class Factors(NamedTuple):
    """What is beside the Gaussian."""

    gamma: jax.Array  #: of the inputs, shape ``(p,)``
    gamma_w: jax.Array  #: of the other weights
    rate: jax.Array  #: ``b`` of ``q(v)``


class Network:
    """The network's weights as one vector, and its log likelihood.

    :param inputs: their number ``p``.
    :param num_rows: ``n``.
    """

    def __init__(self, inputs: int, num_rows: int, is_binary: bool) -> None:
        self.inputs, self.num_rows, self.is_binary = inputs, num_rows, is_binary
        shapes = [(inputs, UNITS), (UNITS, UNITS), (UNITS,), (UNITS,), (UNITS,), ()]
        self.shapes, sizes = shapes, [math.prod(shape) for shape in shapes]
        self.ends = np.cumsum(sizes)
        self.dim = int(self.ends[-1])
        self.num_shrunk = sizes[1] + sizes[2]
        self.concentration = A0 + num_rows / 2

    def parts(self, theta: jax.Array) -> list[jax.Array]:
        """``w1, w2, w3, b1, b2, b3``."""
        found = jnp.split(theta, self.ends[:-1])
        return [part.reshape(shape) for part, shape in zip(found, self.shapes, strict=True)]

    def start(self, seed: int) -> Diagonal:
        """Xavier's weights, and a width of ``1 / sqrt(n)``."""
        rng, parts = np.random.default_rng(seed), []
        for shape in self.shapes[:3]:
            fan_in, fan_out = (*shape, 1)[:2]
            limit = math.sqrt(6 / (fan_in + fan_out))
            parts.append(rng.uniform(-limit, limit, shape).ravel())
        parts.append(np.zeros(2 * UNITS + 1))
        return Diagonal().initial(jnp.asarray(np.concatenate(parts), float), self.num_rows**-0.5)

    def layers(self, theta: jax.Array, X: jax.Array, taps: Any = (0.0, 0.0, 0.0)) -> Any:
        """What enters each layer, and the output.

        :param taps: are added to each layer's sums.
        """
        w1, w2, w3, b1, b2, b3 = self.parts(theta)
        first = jax.nn.relu(X @ w1 + b1 + taps[0])
        second = jax.nn.relu(first @ w2 + b2 + taps[1])
        return (X, first, second), second @ w3 + b3 + taps[2]

    def log_likelihood(self, output: jax.Array, y: jax.Array, factors: Factors) -> jax.Array:
        """The sum over rows of what depends on the weights."""
        if self.is_binary:
            return jnp.sum(y * output - jax.nn.softplus(output))
        return -0.5 * self.concentration / factors.rate * jnp.sum((y - output) ** 2)

    def precision(self, factors: Factors, squares: jax.Array) -> jax.Array:
        """Of the prior, by weight: ``E[1/tau]``, ``gamma_w``, and that of biases."""
        of_inputs = factors.gamma / jnp.sqrt(
            squares[: self.inputs * UNITS].reshape(-1, UNITS).sum(1)
        )
        each = jnp.repeat(of_inputs, UNITS), jnp.full(self.num_shrunk, factors.gamma_w)
        return jnp.concatenate([*each, jnp.full(2 * UNITS + 1, OF_BIASES)])

    def first_factors(self, y: np.ndarray) -> Factors:
        """``tau`` of 1 / p, weights of variance 1 / 20, ``v`` the variance of the response."""
        gamma = jnp.full(self.inputs, math.sqrt((UNITS + 1) * self.inputs))
        rate = B0 + 0.5 * self.num_rows * float(np.var(y))
        return Factors(gamma, jnp.asarray(float(UNITS)), jnp.asarray(rate))

    def moved(self, factors: Factors, squares: jax.Array, rate: jax.Array) -> Factors:
        """The paper's step of all factors: ``q(tau)``, then gamma.

        :param squares: ``E[theta^2]``.
        """
        size, of_weights = self.sizes(squares)
        expected = jnp.sqrt(size) / factors.gamma + factors.gamma**-2
        gamma = jnp.sqrt((UNITS + 1) / expected)
        return Factors(gamma, self.num_shrunk / of_weights, rate)

    def sizes(self, squares: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of each input's weights, and of all between the layers: expected squared lengths."""
        shrunk = squares[self.inputs * UNITS :][: self.num_shrunk]
        return squares[: self.inputs * UNITS].reshape(-1, UNITS).sum(1), shrunk.sum()

    def estimator(self, kind: str) -> Any:
        """Of the bound's natural gradient, from one draw on a minibatch.

        :param kind: ``"first"`` for the draw's gradient only; or where curvature is from: the
            ``"squares"`` of the rows' gradients, or the ``"draw"``.
        """

        def estimate(
            q: Any, factors: Factors, key: jax.Array, X: jax.Array, y: jax.Array
        ) -> tuple[Any, Factors]:
            weight, z = self.num_rows / len(y), jax.random.normal(key, (self.dim,))
            theta, squares = q.sample(z), q.mean**2 + q.stddev**2
            precision = self.precision(factors, squares)

            def likelihood(theta: jax.Array, taps: Any) -> Any:
                entering, output = self.layers(theta, X, taps)
                return self.log_likelihood(output, y, factors), (entering, output)

            taps = jnp.zeros((len(y), UNITS)), jnp.zeros((len(y), UNITS)), jnp.zeros(len(y))
            by_both = jax.grad(likelihood, (0, 1), has_aux=True)
            (gradient, slopes), (entering, output) = by_both(theta, taps)
            gradient = weight * gradient
            curvature = None
            if kind == "squares":
                curvature = weight * self.squares(entering, slopes)
            elif kind == "draw":
                curvature = -gradient * z / q.scale
            natural = of_draw(q, z, gradient, precision, curvature)
            rate = factors.rate
            if not self.is_binary:
                rate = B0 + 0.5 * weight * jnp.sum((y - output) ** 2)
            return natural, self.moved(factors, squares, rate)

        return estimate

    def squares(self, entering: Any, slopes: Any) -> jax.Array:
        """The sum over rows of the squares of their gradients, by those of the layers' sums."""
        (x, first, second), (s1, s2, s3) = (
            [each**2 for each in part] for part in (entering, slopes)
        )
        parts = x.T @ s1, first.T @ s2, second.T @ s3, s1.sum(0), s2.sum(0), s3.sum()
        return jnp.concatenate([part.ravel() for part in parts])

    def bound(
        self, q: Any, X: jax.Array, y: jax.Array, num_draws: int = 100, seed: int = 0
    ) -> float:
        """In nats, with factors and gamma at their optimum for ``q`` (S8.1)."""

        @jax.jit
        def one(z: jax.Array) -> jax.Array:
            output = self.layers(q.sample(z), X)[1]
            if self.is_binary:
                return jnp.sum(y * output - jax.nn.softplus(output))
            return jnp.sum((y - output) ** 2)

        noise = np.random.default_rng(seed).standard_normal((num_draws, self.dim))
        expected = float(np.mean([one(jnp.asarray(z, q.mean.dtype)) for z in noise]))
        mean, stddev = np.asarray(q.mean, float), np.asarray(q.stddev, float)
        found = self.of_weights(mean**2 + stddev**2)
        found += 0.5 * self.dim * (1 + math.log(2 * math.pi)) + float(np.log(stddev).sum())
        if self.is_binary:
            return found + expected
        a, b = self.concentration, B0 + 0.5 * expected
        found += A0 * math.log(B0) - math.lgamma(A0) + math.lgamma(a) - a * math.log(b)
        return found - 0.5 * self.num_rows * math.log(2 * math.pi)

    def of_weights(self, squares: np.ndarray) -> float:
        """``E log p(w, tau) - E log q(tau)`` at the best ``q(tau)`` and gamma.

        The integral of the inputs' joint density over tau leaves ``m log gamma - gamma sqrt(S)``
        with ``S = E|w|^2``, whose maximum is at ``gamma = m / sqrt(S)``.
        """
        size, of_weights = (np.asarray(part, float) for part in self.sizes(squares))
        gamma, shrunk = UNITS / np.sqrt(size), self.num_shrunk
        found = np.sum(UNITS * np.log(gamma) - UNITS)
        each = (1 - UNITS) * math.log(2 * math.pi) - (UNITS + 1) * math.log(2)
        found += self.inputs * (0.5 * each - math.lgamma((UNITS + 1) / 2))
        found -= 0.5 * OF_BIASES * np.sum(squares[-2 * UNITS - 1 :])
        return float(found + 0.5 * shrunk * (math.log(shrunk / of_weights / (2 * math.pi)) - 1))


def load(name: str, directory: Path, rows: int, inputs: int, seed: int) -> deep_glm.Data:
    """Inputs and responses."""
    if name != "Protein":
        return deep_glm.simulated(name.lower(), rows, inputs, seed)
    with np.load(directory / "regression" / "uci_protein.npz") as arrays:
        X, y = arrays["X"], arrays["y"].reshape(-1)
    X = (X - X.mean(0)) / X.std(0)
    return deep_glm.Data(X.astype(np.float32), y.astype(np.float32), False)


def by_guide(ppl: str, data: deep_glm.Data, epochs: int, batch: int, seed: int) -> tuple:
    """The last epoch's mean bound of ``ConjugateGuide`` with ``IVON``, and gamma.

    Its biases have the same prior, normalised; the constant is left out.
    """
    gamma, _, bound, _ = deep_glm.train(ppl, data, epochs, batch, seed)
    return bound + (2 * UNITS + 1) * 0.5 * math.log(2 * math.pi * 10.0**2), gamma


def told_apart(name: str, gamma: np.ndarray) -> str:
    """How many of the relevant inputs have a smaller gamma than all others."""
    relevant = deep_glm.RELEVANT.get(name.lower())
    if relevant is None:
        return ""
    return f"{int(np.sum(gamma[:relevant] < gamma[relevant:].min()))} of {relevant}"


def column(
    name: str, data: deep_glm.Data, methods: list[str], epochs: int, batch: int, seed: int
) -> Iterator[dict[str, str]]:
    """The rows of one data set."""
    network = Network(data.X.shape[1], len(data.y), data.is_binary)
    X, y = jnp.asarray(data.X), jnp.asarray(data.y)
    papers = dict(zip(METHODS, PAPER[name], strict=False))
    for method in methods:
        rate, begin = "", time.process_time()
        if method in GUIDES:
            bound, gamma = by_guide(GUIDES[method], data, epochs, batch, seed)
        else:
            estimate = network.estimator(CURVATURE.get(method, "first"))
            start = network.start(seed), network.first_factors(data.y)

            def make(optimiser: Any, e: Any = estimate, s: Any = start) -> Any:
                return path(optimiser, s[0], e, X, y, batch, [epochs], seed, s[1])[-1][0]

            rate, q, seconds = best_rate(
                method, make, lambda q: network.bound(q, X, y), RATES_OF_NETWORKS
            )
            begin = time.process_time() - seconds
            mean, stddev = np.asarray(q.mean, float), np.asarray(q.stddev, float)
            gamma = UNITS / np.sqrt(network.sizes(mean**2 + stddev**2)[0])
            bound = network.bound(q, X, y, seed=1)
        seconds, paper = time.process_time() - begin, papers.get(method)
        cells = {"data": name, "method": method, "rate": f"{rate}", "bound": f"{bound:.0f}"}
        cells |= {"a row": f"{bound / len(y):.4f}", "inputs told apart": told_apart(name, gamma)}
        cells |= {"paper": "" if paper is None else f"{paper}"}
        cells |= {"paper, a row": "" if paper is None else f"{paper / PAPER_ROWS[name]:.4f}"}
        yield cells | {"rows": f"{len(y):,}", "epochs": f"{epochs}", "CPU s": f"{seconds:.0f}"}


def draw(csv: str, picture: str) -> None:
    """Bounds a row below the best of the column, here and in the paper."""
    rows = pages.read(csv)
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = pages.figure(1, len(names), (3.6, 3.4))
    for axis, name in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["data"] == name][::-1]
        for column, style, colour, label in (
            ("paper, a row", "o", "#d55e00", "the paper's"),
            ("a row", "D", "#0072b2", "here"),
        ):
            found = [(float(row[column]), at) for at, row in enumerate(own) if row[column]]
            values, at = np.array(found).T
            axis.plot(values, at, style, color=colour, ms=4.5, label=label)
        axis.set(title=name, yticks=np.arange(len(own)), xlabel="bound, nats a row")
        axis.set_yticklabels([row["method"].replace("`", "") for row in own])
    axes[0, 0].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    pages.save(figure, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", choices=PAPER, default=list(PAPER))
    names = [*METHODS, *GUIDES]
    parser.add_argument("--methods", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", type=int, default=20_000, help="of the simulations")
    parser.add_argument("--inputs", type=int, default=100, help="of the simulations")
    parser.add_argument("--batch", type=int, help="a twentieth of the rows, of Protein's a tenth")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    about = f"`python -m benchmarks tan_table10`, data and fits of seed {options.seed}"
    about = f"{about}, float32; CPU s of the rate shown, with compilation; {describe()}"
    for name in options.data:
        data = load(name, options.data_dir, options.rows, options.inputs, options.seed)
        batch = options.batch or len(data.y) // BATCHES_OF_AN_EPOCH[name]
        for row in column(name, data, options.methods, options.epochs, batch, options.seed):
            print(row, flush=True)
            pages.replace("tan_table10.csv", [row], about, ("data", "method"))
    draw("tan_table10.csv", "tan_table10.png")


if __name__ == "__main__":
    main()
