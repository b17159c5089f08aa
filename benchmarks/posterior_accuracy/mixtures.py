"""Posteriors of two, four and nine Gaussian modes, by ``num_components="auto"``.

Means are uniform in a box of half width 10 (no two nearer than 6), weights of a Dirichlet
distribution (none below 0.03), and the prior is ``N(0, 10^2)``. Standard deviations are one, or
those of each mode are one number between 0.5 and 1: the wider ones then hide the others from where
points begin. Of one mode the cost is beside that of a plain fit. Five seeds each.

    python -m benchmarks posterior_accuracy.mixtures [--ppl pyro] [--modes 9] [--dims 2 10]

writes ``docs/benchmarks/mixtures.csv``: rows that are asked for, and keeps the others.

Time: 6 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import pages
from benchmarks.gauntlet.models.ppl import PPLS, Ppl
from examples.machine import describe

TABLE = "mixtures.csv"
SEEDS, APART, LEAST, BOX = 5, 6.0, 0.03, 10.0
WIDTHS = {"one": (1.0, 1.0), "0.5 to 1": (0.5, 1.0)}


class Modes(NamedTuple):
    """A mixture of evidence one."""

    weights: np.ndarray
    centres: np.ndarray  #: shape ``(K, d)``
    stddevs: np.ndarray  #: of the modes

    @classmethod
    def drawn(cls, count: int, dim: int, widths: tuple[float, float], seed: int) -> Modes:
        """Modes that are apart."""
        rng = np.random.default_rng([seed, count, dim])
        while True:
            centres = rng.uniform(-BOX, BOX, (count, dim))
            weights = rng.dirichlet(np.full(count, 5.0))
            gaps = np.linalg.norm(centres[:, None] - centres, axis=2) + np.diag(np.full(count, 1e9))
            if gaps.min() > APART and weights.min() > LEAST:
                return cls(weights, centres, rng.uniform(*widths, count))

    def model(self, ppl: Ppl) -> Callable:
        """As a model of a PPL."""
        dim = self.centres.shape[1]
        scales = np.repeat(self.stddevs[:, None], dim, 1)

        def model() -> None:
            dist = ppl.dist
            prior = dist.Normal(ppl.array(np.zeros(dim)), BOX).to_event(1)
            x = ppl.sample("x", prior)
            each = dist.Normal(ppl.array(self.centres), ppl.array(scales)).to_event(1)
            of = dist.MixtureSameFamily(dist.Categorical(ppl.array(self.weights)), each)
            ppl.factor("rest", of.log_prob(x) - prior.log_prob(x))

        return model

    def missed(self, weights: np.ndarray, means: np.ndarray) -> tuple[int, float]:
        """How many modes have no component, and the largest error of a weight."""
        nearest = np.linalg.norm(means[:, None] - self.centres, axis=2).argmin(1)
        found = np.bincount(nearest, weights, len(self.weights))
        return int((found == 0).sum()), float(np.abs(found - self.weights).max())


def fitted(ppl: Ppl, model: Callable, seed: int, **options: Any) -> Any:
    """One fit, with a fresh store."""
    options |= {"progress_bar": False, "allow_prior": True}
    if ppl.is_numpyro:
        from numpyro_ngvi import fit

        return fit(model, rng_key=jax.random.key(seed), **options)
    import pyro

    from pyro_ngvi import fit

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    return fit(model, **options)


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


def row(name: str, count: int, dim: int, widths: str) -> dict[str, str]:
    """All seeds of one size."""
    ppl, begin, found = Ppl(name), time.process_time(), []
    for seed in range(SEEDS):
        modes = Modes.drawn(count, dim, WIDTHS[widths], seed)
        result = fitted(ppl, modes.model(ppl), seed, num_components="auto")
        q, own = result.family, result.cost.total
        is_mixture = q.name == "mixture"
        weights = _numpy(q.weights) if is_mixture else np.ones(1)
        missed, error = modes.missed(weights, np.atleast_2d(_numpy(q.loc)))
        plain = fitted(ppl, modes.model(ppl), seed).cost.total if count == 1 else np.nan
        components = len(weights) - count
        found.append((missed, components, error, abs(result.bound), own, own / plain))
    missed, more, errors, gaps, gradients, ratios = np.array(found, float).T
    return {
        "by": {"numpyro": "NumPyro", "pyro": "Pyro"}[name],
        "modes": str(count),
        "d": str(dim),
        "sds": widths,
        "seeds with all": f"{int((missed == 0).sum())} of {SEEDS}",
        "modes missed": f"{int(missed.sum())} of {count * SEEDS}",
        "components too many": f"{int(np.maximum(more, 0).sum())}",
        "farthest weight": f"{errors.max():.3f}",
        "largest gap [nats]": f"{gaps.max():.3f}",
        "gradients": f"{np.median(gradients):,.0f}",
        "of a plain fit": f"{ratios.max():.2f}" if count == 1 else "",
        "CPU s": f"{(time.process_time() - begin) / SEEDS:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ppl", nargs="*", default=list(PPLS), choices=PPLS)
    parser.add_argument("--modes", nargs="*", type=int, default=[1, 2, 4, 9])
    parser.add_argument("--dims", nargs="*", type=int, default=[2, 10, 50])
    parser.add_argument("--sds", nargs="*", default=list(WIDTHS), choices=list(WIDTHS))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    import torch

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    about = f"`python -m benchmarks posterior_accuracy.mixtures`, double precision, {describe()}"
    for name in options.ppl:
        for count in options.modes:
            for dim in options.dims:
                for widths in options.sds if count > 1 else options.sds[:1]:
                    new = row(name, count, dim, widths)
                    print(new, flush=True)
                    pages.replace(TABLE, [new], about, ("by", "modes", "d", "sds"))


if __name__ == "__main__":
    main()
