"""What Pyro and NumPyro spell alike, and the little that they do not.

A model is one function whose first argument is a :class:`Ppl`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

PPLS = ("numpyro", "pyro")


class Ppl:
    """One vocabulary: ``sample``, ``plate``, ``param``, ``deterministic`` and ``factor`` of a PPL.

    Its distributions and the array functions of ``jax.numpy`` or ``torch`` are attributes as well.

    :param name: ``"numpyro"`` or ``"pyro"``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_numpyro = name == "numpyro"
        self._lib = importlib.import_module(name)
        self.dist = importlib.import_module(f"{name}.distributions")
        self.np = importlib.import_module("jax.numpy" if self.is_numpyro else "torch")

    def __getattr__(self, name: str) -> Any:
        if name in ("sample", "plate", "param", "deterministic", "factor"):
            return getattr(self._lib, name)
        is_of_dist = name[0].isupper() or name in ("constraints", "transforms", "biject_to")
        return getattr(self.dist if is_of_dist else self.np, name)

    @property
    def ours(self) -> Any:
        """This package for the PPL."""
        return importlib.import_module(f"{self.name}_ngvi")

    def array(self, value: Any) -> Any:
        """Integers as they are, all else in the default floating type."""
        value = np.asarray(value)
        if self.is_numpyro:
            return self.np.asarray(value, None if value.dtype.kind == "i" else float)
        dtype = self.np.int64 if value.dtype.kind == "i" else self.np.get_default_dtype()
        return self.np.tensor(value, dtype=dtype)

    def normals(self, name: str, size: int, scale: float = 1.0, loc: float = 0.0) -> Any:
        """A vector of independent normals, one site."""
        return self.sample(name, self.dist.Normal(loc, scale).expand([size]).to_event(1))

    def draws(self, **distributions: Any) -> list[Any]:
        """Sites with these names, one after another."""
        return [self.sample(name, one) for name, one in distributions.items()]

    def rows(self, distribution: Any, y: Any, plate: str = "rows") -> None:
        """Observe the site ``y`` in a plate of its rows."""
        with self.plate(plate, len(y)):
            self.sample("y", distribution, obs=y)

    def iterate(self, step: Callable, state: Any, count: int) -> Any:
        """The states after 1, ..., ``count`` steps, stacked."""
        if self.is_numpyro:
            import jax

            return jax.lax.scan(lambda s, _: (step(s),) * 2, state, None, length=count)[1]
        states = []
        for _ in range(count):
            state = step(state)
            states.append(state)
        return self.np.stack(states)

    def runge_kutta(self, slope: Callable, state: Any, dt: float, count: int) -> Any:
        """States of ``state' = slope(state)`` after 1, ..., ``count`` steps of length ``dt``."""

        def step(x: Any) -> Any:
            k1 = slope(x)
            k2 = slope(x + 0.5 * dt * k1)
            k3 = slope(x + 0.5 * dt * k2)
            return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + slope(x + dt * k3))

        return self.iterate(step, state, count)

    @cached_property
    def _markov(self) -> Callable:
        path = "numpyro.contrib.funsor" if self.is_numpyro else "pyro"
        return importlib.import_module(path).markov

    def markov(self, steps: Iterable) -> Any:
        """A loop along a Markov chain of enumerated latents."""
        return self._markov(steps)

    def vindex(self, values: Any) -> Any:
        """``values``, indexed by enumerated latents."""
        return importlib.import_module(f"{self.name}.ops.indexing").Vindex(values)
