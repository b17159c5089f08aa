"""A Bayesian neural network for handwritten digits, in both PPLs.

64-32-10 with tanh and a normal prior scaled by the width, 1297 images for training and 500 for
testing: accuracy, negative log likelihood and expected calibration error of predictions that are
averaged over the posterior, how often images of shuffled pixels, which are no digits, are less
certain than digits (by entropy: the area under the ROC curve), and the bound, by IVON, of a cold
posterior as well, by VOGN, by noisy K-FAC (IVON's rule with a Kronecker covariance for each
matrix), and by the stock AutoNormal with Adam, from its own start and from that of the others. Each
has the best of three rates in the test's NLL, an advantage that is the same for all; medians over
seeds, and the range. Then a reliability diagram.

    pip install '.[examples]' scikit-learn
    python -m examples.bnn --ppl numpyro pyro --epochs 60 --seeds 3 --plot reliability.png
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

NUM_CLASSES = 10
#: Hidden units by the number of pixels: of digits, and of MNIST in ``benchmarks/networks.py``.
HIDDEN = {64: 32, 784: 100}
RATES = {
    "Adam": (3e-3, 1e-2, 3e-2),
    "Adam, narrow": (3e-3, 1e-2, 3e-2),
    "IVON": ("auto", 0.03, 0.1),
    "IVON, tempered": ("auto", 0.03, 0.1),
    "VOGN": ("auto", 0.03, 0.1),
    "K-FAC": (0.01, 0.03, 0.1),
}
BATCH, NUM_TEST, NUM_DRAWS = 64, 500, 100
#: Of the cold posterior: ten labels count as fourteen do.
TEMPERATURE = 0.7


class Data(NamedTuple):
    """Images, and what they show."""

    images: np.ndarray  #: standardised pixels, shape ``(n, 64)``
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def weights(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """The network's weights: shapes, and the prior's scales."""
        fan_in = self.images.shape[1]
        units = HIDDEN[fan_in]
        return {
            "W1": ((fan_in, units), fan_in**-0.5),
            "b1": ((units,), 1.0),
            "W2": ((units, NUM_CLASSES), units**-0.5),
            "b2": ((NUM_CLASSES,), 1.0),
        }


def digits(seed: int) -> Data:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    return Data(images[train], labels[train], images[test], labels[test])


# -- in either PPL: functions for a step, of test images to logits, and for the bound ------------


def with_numpyro(method: str, rate: Any, data: Data, seed: int) -> tuple:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Predictive, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.infer.initialization import init_to_median

    from numpyro_ngvi import IVON, SVI, NaturalELBO, NaturalGaussianGuide, tempered
    from numpyro_ngvi.optim import VOGN

    def model(images: jax.Array, labels: jax.Array | None = None) -> None:
        w = {
            name: numpyro.sample(name, dist.Normal(0, scale).expand(shape).to_event())
            for name, (shape, scale) in data.weights().items()
        }
        hidden = jax.numpy.tanh(images @ w["W1"] + w["b1"])
        logits = numpyro.deterministic("logits", hidden @ w["W2"] + w["b2"])
        with numpyro.plate("data", len(data.labels), subsample_size=len(images)):
            numpyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    if method.startswith("Adam"):
        start = {"init_loc_fn": init_to_median, "init_scale": 0.05} if "narrow" in method else {}
        guide: Any = AutoNormal(model, **start)
        optimiser: Any = numpyro.optim.Adam(rate)
        loss: Any = Trace_ELBO()
    else:
        family = "matrix_normal" if method == "K-FAC" else "diagonal"
        guide = NaturalGaussianGuide(model, family, init_scale=0.05)
        optimiser = VOGN(rate) if method == "VOGN" else IVON(rate)
        loss = NaturalELBO(1, "gauss_newton" if method == "VOGN" else "stein")
    trained = tempered(model, TEMPERATURE) if "tempered" in method else model
    svi = SVI(trained, guide, optimiser, loss, rng_key=jax.random.key(seed))

    def logits(images: np.ndarray) -> np.ndarray:
        predictive = Predictive(model, guide=guide, params=svi.params, num_samples=NUM_DRAWS)
        return np.asarray(predictive(jax.random.key(seed), images)["logits"])

    def bound() -> float:
        elbo = Trace_ELBO(num_particles=NUM_DRAWS)
        # Data are arguments: of constants XLA would make what it can as it compiles.
        loss = jax.jit(lambda key, params, *data: elbo.loss(key, params, model, guide, *data))
        return -float(loss(jax.random.key(seed), svi.params, data.images, data.labels))

    return lambda x, y: svi.step(x, y), logits, bound


def with_pyro(method: str, rate: Any, data: Data, seed: int) -> tuple:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Predictive, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.infer.autoguide.initialization import init_to_median
    from pyro.optim import Adam

    from pyro_ngvi import IVON, NaturalELBO, NaturalGaussianGuide, tempered
    from pyro_ngvi.optim import VOGN

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)

    def model(images: torch.Tensor, labels: torch.Tensor | None = None) -> None:
        w = {
            name: pyro.sample(name, dist.Normal(torch.zeros(shape), scale).to_event())
            for name, (shape, scale) in data.weights().items()
        }
        hidden = torch.tanh(images @ w["W1"] + w["b1"].unsqueeze(-2))
        logits = pyro.deterministic("logits", hidden @ w["W2"] + w["b2"].unsqueeze(-2))
        with pyro.plate("data", len(data.labels), subsample_size=len(images)):
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    if method.startswith("Adam"):
        start = {"init_loc_fn": init_to_median, "init_scale": 0.05} if "narrow" in method else {}
        guide: Any = AutoNormal(model, **start)
        optimiser: Any = Adam({"lr": rate})
        loss: Any = Trace_ELBO()
    else:
        family = "matrix_normal" if method == "K-FAC" else "diagonal"
        guide = NaturalGaussianGuide(model, family, init_scale=0.05)
        optimiser = VOGN({"lr": rate}) if method == "VOGN" else IVON({"lr": rate})
        loss = NaturalELBO(1, "gauss_newton" if method == "VOGN" else "stein")
    trained = tempered(model, TEMPERATURE) if "tempered" in method else model
    svi = SVI(trained, guide, optimiser, loss)

    def logits(images: np.ndarray) -> np.ndarray:
        predictive = Predictive(model, guide=guide, num_samples=NUM_DRAWS, return_sites=["logits"])
        found = predictive(torch.as_tensor(images))["logits"]
        return found.detach().numpy().reshape(NUM_DRAWS, len(images), -1)

    def bound() -> float:
        arguments = torch.as_tensor(data.images), torch.as_tensor(data.labels)
        with torch.no_grad():
            return -Trace_ELBO(num_particles=NUM_DRAWS).loss(model, guide, *arguments)

    return lambda x, y: svi.step(torch.as_tensor(x), torch.as_tensor(y)), logits, bound


PPLS = {"numpyro": with_numpyro, "pyro": with_pyro}


# -- scores -----------------------------------------------------------------------------------


class Scores(NamedTuple):
    """Of a run, on the test images."""

    accuracy: float
    nll: float  #: nats an image
    ece: float
    bound: float  #: nats, of the training images
    seconds: float
    probabilities: np.ndarray
    shuffled: float = float("nan")  #: area under the ROC curve that separates no digits


def train(ppl: str, method: str, rate: Any, epochs: int, seed: int) -> tuple[Scores, Data]:
    data = digits(seed)
    step, logits, bound = PPLS[ppl](method, rate, data, seed)
    begin = time.perf_counter()
    for rows in minibatches(len(data.labels), epochs, seed):
        step(data.images[rows], data.labels[rows])
    scores = scored(data, logits, bound, time.perf_counter() - begin)
    pixels = np.random.default_rng(0).permutation(data.test_images.shape[1])
    shuffled = averaged(logits(data.test_images[:, pixels]))
    found = area(entropy(scores.probabilities), entropy(shuffled))
    return scores._replace(shuffled=found), data


def minibatches(size: int, epochs: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(size)
        yield from order[: size - size % BATCH].reshape(-1, BATCH)


def scored(data: Data, logits: Callable, bound: Callable, seconds: float) -> Scores:
    found = averaged(logits(data.test_images))
    right = found.argmax(-1) == data.test_labels
    nll = -np.log(found[np.arange(len(right)), data.test_labels]).mean()
    ece = sum(abs(c - a) * n for c, a, n in calibration(found, data.test_labels)) / len(right)
    return Scores(right.mean(), float(nll), float(ece), bound(), seconds, found)


def averaged(logits: np.ndarray) -> np.ndarray:
    """Probabilities, of the first axis' draws."""
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return (odds / odds.sum(-1, keepdims=True)).mean(0)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    return -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(-1)


def area(low: np.ndarray, high: np.ndarray) -> float:
    """How often one of ``high`` is above one of ``low``: the area under the ROC curve."""
    ranks = np.concatenate([low, high]).argsort().argsort()[len(low) :]
    return float((ranks.mean() - (len(high) - 1) / 2) / len(low))


def calibration(probabilities: np.ndarray, labels: np.ndarray) -> list[tuple[float, float, int]]:
    """Confidence, accuracy and size of ten bins of the confidence."""
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    bins = np.minimum((10 * confidence).astype(int), 9)
    members = (bins == index for index in range(10))
    return [(confidence[m].mean(), right[m].mean(), int(m.sum())) for m in members if m.any()]


def best(ppl: str, method: str, epochs: int, seed: int) -> tuple[Scores, Data]:
    runs = [train(ppl, method, rate, epochs, seed) for rate in RATES[method]]
    return min(runs, key=lambda run: run[0].nll if np.isfinite(run[0].nll) else np.inf)


def plot(found: dict[str, list[tuple[Scores, Data]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.5, 4.5))
    axes.plot([0, 1], [0, 1], color="0.7")
    for name, runs in found.items():
        scores = np.concatenate([scores.probabilities for scores, _ in runs])
        labels = np.concatenate([data.test_labels for _, data in runs])
        points = calibration(scores, labels)
        axes.plot([p[0] for p in points], [p[1] for p in points], "o-", label=name, markersize=4)
    axes.set(xlabel="confidence", ylabel="accuracy")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ppl", choices=PPLS, nargs="+", default=list(PPLS))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", help="where to save the reliability diagram")
    options = parser.parse_args()
    heads = f"{'accuracy [%]':20s} {'NLL [nats]':21s} {'ECE':21s} {'shuffled [area]':21s} "
    heads += f"{'bound [nats]':22s} time [s]"
    print(f"{'':23s}  {heads}")
    found = {}
    for ppl in options.ppl:
        for method in RATES:
            runs = [best(ppl, method, options.epochs, seed) for seed in range(options.seeds)]
            found[f"{method} ({ppl})"] = runs
            columns = zip(*(scores[:5] for scores, _ in runs), strict=True)
            accuracy, nll, ece, bound, seconds = columns
            words = [spread([100 * a for a in accuracy], 1), spread(nll, 3), spread(ece, 3)]
            words.append(spread([scores.shuffled for scores, _ in runs], 3))
            words.append(spread(bound, 0))
            words.append(f"{statistics.median(seconds):8.1f}")
            print(f"{ppl:8s} {method:15s}" + " ".join(words), flush=True)
    if options.plot:
        plot(found, options.plot)


def spread(values: tuple | list, places: int) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:7.{places}f} ({least:.{places}f}-{most:.{places}f})"


if __name__ == "__main__":
    main()
