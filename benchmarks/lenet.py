"""LeNet-5 for images of 28 by 28 (ReLU, max-pooling, d = 61,706): a model in both PPLs, a module.

Priors of the weights are scaled by the width, those of biases are N(0, 1). Images are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

NUM_DATA, SIDE, CLASSES = 10_000, 28, 10
#: Kernels in the layout of torch (out, in, height, width); in NumPyro they are in that of Flax.
SHAPES = {
    "c1": (6, 1, 5, 5),
    "c2": (16, 6, 5, 5),
    "f1": (400, 120),
    "f2": (120, 84),
    "f3": (84, 10),
}


def data(batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(batch, SIDE, SIDE)).astype(np.float32)
    return images, rng.integers(CLASSES, size=batch)


def fan_in(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:]) if len(shape) == 4 else shape[0]


def numpyro_model() -> Callable:
    import jax
    import numpyro
    import numpyro.distributions as dist

    def convolved(x: jax.Array, kernel: jax.Array, bias: jax.Array, pad: int) -> jax.Array:
        names = ("NHWC", "HWIO", "NHWC")
        padding = [(pad, pad)] * 2
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=names)
        batch, height, width, channels = x.shape
        x = jax.nn.relu(x + bias).reshape(batch, height // 2, 2, width // 2, 2, channels)
        return x.max((2, 4))

    def model(images: jax.Array, labels: jax.Array) -> None:
        weights, biases = {}, {}
        for name, shape in SHAPES.items():
            scale, order = fan_in(shape) ** -0.5, (2, 3, 1, 0)[: len(shape)]
            if len(shape) == 4:
                shape = tuple(shape[axis] for axis in order)
            prior = dist.Normal(0, scale).expand(shape).to_event()
            weights[name] = numpyro.sample(name, prior)
            biases[name] = numpyro.sample(
                f"{name}_bias", dist.Normal(0, 1).expand(shape[-1:]).to_event()
            )
        x = convolved(images[..., None], weights["c1"], biases["c1"], 2)
        x = convolved(x, weights["c2"], biases["c2"], 0).reshape(len(images), -1)
        x = jax.nn.relu(x @ weights["f1"] + biases["f1"])
        x = jax.nn.relu(x @ weights["f2"] + biases["f2"])
        logits = x @ weights["f3"] + biases["f3"]
        with numpyro.plate("data", NUM_DATA, subsample_size=len(labels)):
            numpyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    return model


def pyro_model() -> Callable:
    import pyro
    import pyro.distributions as dist
    import torch
    from torch.nn import functional

    def convolved(
        x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, pad: int
    ) -> torch.Tensor:
        return functional.max_pool2d(functional.conv2d(x, kernel, bias, padding=pad).relu(), 2)

    def model(images: torch.Tensor, labels: torch.Tensor) -> None:
        weights, biases = {}, {}
        for name, shape in SHAPES.items():
            prior = dist.Normal(torch.zeros(shape), fan_in(shape) ** -0.5).to_event()
            weights[name] = pyro.sample(name, prior)
            out = shape[0] if len(shape) == 4 else shape[1]
            biases[name] = pyro.sample(
                f"{name}_bias", dist.Normal(torch.zeros(out), 1.0).to_event()
            )
        x = convolved(images[:, None], weights["c1"], biases["c1"], 2)
        x = convolved(x, weights["c2"], biases["c2"], 0).flatten(1)
        x = (x @ weights["f1"] + biases["f1"]).relu()
        x = (x @ weights["f2"] + biases["f2"]).relu()
        logits = x @ weights["f3"] + biases["f3"]
        with pyro.plate("data", NUM_DATA, subsample_size=len(labels)):
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    return model


def module() -> Any:
    """Without a PPL, of torch."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
