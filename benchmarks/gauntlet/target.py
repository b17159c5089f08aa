"""What a Gaussian is really worth: its bound, by draws that no fit has seen.

Nothing here is ours: the density is NumPyro's ``potential_energy`` in double precision, of all
data, for the Gaussians of both PPLs, whose unconstrained scales are the same.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers, validation_enabled
from numpyro.distributions import biject_to, constraints
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import potential_energy
from scipy.special import ndtri
from scipy.stats import qmc

from benchmarks.models import Entry, Ppl

LOG_2_PI = float(np.log(2 * np.pi))
#: Draws of one randomisation, how many there are, and how many draws are evaluated at once.
NUM_DRAWS, NUM_RANDOMISATIONS, CHUNK = 1024, 8, 128


class Bound(NamedTuple):
    """Nats, and their standard error."""

    value: float
    error: float


class Gaussian(NamedTuple):
    """``N(mean, factor factor^T)`` and the parameters of the model's own, constrained."""

    mean: np.ndarray
    factor: np.ndarray
    params: dict[str, np.ndarray]


def normal_draws(num: int, dim: int, seed: int) -> np.ndarray:
    """Standard normal draws, ``num`` x ``dim``: scrambled Sobol points and their negatives."""
    points = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(seed)).random(num // 2)
    half = ndtri(np.clip(points, 1e-12, 1 - 1e-12))
    return np.concatenate([half, -half])


class Target:
    """The log density of an entry, a function of one unconstrained vector.

    To be made and used with ``jax_enable_x64``.
    """

    def __init__(self, entry: Entry) -> None:
        ppl = Ppl("numpyro")
        self.entry, self.args = entry, entry.args(ppl)
        self.plain_model = self.model = entry.model(ppl, full=True)
        if entry.enumerated:
            from numpyro.contrib.funsor import config_enumerate, enum

            plates = [f for site in self._trace.values() for f in site.get("cond_indep_stack", ())]
            deepest = min((frame.dim for frame in plates), default=0)
            self.model = enum(config_enumerate(self.plain_model), first_available_dim=deepest - 1)
        self._bounds = jax.jit(self._bounds_of)

    @cached_property
    def _trace(self) -> dict[str, Any]:
        model = handlers.seed(self.plain_model, rng_seed=0)
        started = handlers.substitute(model, substitute_fn=init_to_uniform)
        with validation_enabled(False):  # a start may overflow
            return handlers.trace(started).get_trace(*self.args)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the unconstrained sites, in the order of the model."""
        return {
            name: biject_to(site["fn"].support).inverse_shape(np.shape(site["value"]))
            for name, site in self._trace.items()
            if site["type"] == "sample"
            and not site["is_observed"]
            and not site["infer"].get("enumerate")
        }

    @property
    def dim(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @cached_property
    def params(self) -> dict[str, np.ndarray]:
        """The model's own parameters at their start, constrained."""
        sites = self._trace.items()
        return {n: np.asarray(s["value"]) for n, s in sites if s["type"] == "param"}

    @cached_property
    def param_transforms(self) -> dict[str, Any]:
        """From unconstrained parameters of the model to constrained ones."""
        return {
            name: biject_to(site["kwargs"].get("constraint", constraints.real))
            for name, site in self._trace.items()
            if site["type"] == "param"
        }

    def log_prob(self, flat: Any, params: dict[str, Any]) -> Any:
        """The log density with the Jacobians of the constraints."""
        values, start = dict(params), 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            values[name] = flat[start : start + size].reshape(shape)
            start += size
        # Enumeration is NumPyro's own, with funsor.
        return -potential_energy(self.model, self.args, {}, values, enum=self.entry.enumerated)

    @cached_property
    def draws(self) -> np.ndarray:
        """The same for every Gaussian, so that differences of bounds are known best."""
        seed = zlib.crc32(self.entry.name.encode())
        sets = [normal_draws(NUM_DRAWS, self.dim, seed + k) for k in range(NUM_RANDOMISATIONS)]
        return np.stack(sets)

    def _bounds_of(self, mean: Any, factor: Any, params: dict, draws: Any) -> Any:
        def of_draw(noise: Any) -> Any:
            return self.log_prob(mean + factor @ noise, params) + 0.5 * noise @ noise

        values = jax.lax.map(of_draw, draws.reshape(-1, self.dim), batch_size=CHUNK)
        entropy = 0.5 * self.dim * LOG_2_PI + jnp.linalg.slogdet(factor)[1]
        return values.reshape(draws.shape[:2]).mean(1) + entropy

    def bound(self, gaussian: Gaussian) -> Bound:
        """``E_q[log p - log q]`` in nats; minus infinity where a draw has no density."""
        values = np.asarray(self._bounds(*gaussian, self.draws))
        if not np.isfinite(values).all():
            return Bound(-np.inf, np.inf)
        return Bound(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))

    def in_order(self, gaussian: Gaussian, names: list[str]) -> Gaussian:
        """A Gaussian whose sites come in the order of ``names``, in the order of the target."""
        if names == list(self.shapes):
            return gaussian
        sizes = {name: int(np.prod(shape)) for name, shape in self.shapes.items()}
        if set(names) != set(sizes):
            raise ValueError(f"the sites are {sorted(sizes)}, not {sorted(names)}")
        ends = np.cumsum([sizes[name] for name in names])
        rows = {n: range(end - sizes[n], end) for n, end in zip(names, ends, strict=True)}
        order = np.concatenate([rows[name] for name in self.shapes])
        return Gaussian(gaussian.mean[order], gaussian.factor[order], gaussian.params)
