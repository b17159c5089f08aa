"""Posteriors whose means and standard deviations are known, or found by long chains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.cold_start import ERRORS, SCHOOLS
from benchmarks.glmm.data import SEEDS
from benchmarks.posteriordb.data import flatten
from benchmarks.posteriordb.numpyro_models import POSTERIORS
from benchmarks.posteriordb.target import Target

Draws = dict[str, np.ndarray]


class Entry(NamedTuple):
    """A posterior."""

    model: Callable
    #: The numbers that are compared, by sites.
    names: tuple[str, ...]
    args: tuple = ()
    #: Their exact means and standard deviations, if they are known; shape ``(2, ...)`` by site.
    exact: Draws | None = None
    #: Locals that the chains of the reference standardise.
    local: tuple[str, ...] = ()
    #: From draws of all sites, the draws along the first axis, to those that are compared.
    convert: Callable[[dict[str, Any]], Draws] | None = None
    part: str = "small"
    num_draws: int = 2000  #: of a chain of NUTS

    def compared(self, draws: dict[str, Any]) -> Draws:
        """Draws of the numbers that are compared."""
        if self.convert is not None:
            return self.convert(draws)
        return {name: np.asarray(draws[name]) for name in self.names}


def schools(is_centred: bool) -> Callable:
    """Eight schools (Rubin, 1981)."""

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        log_tau = numpyro.sample(
            "log_tau",
            dist.TransformedDistribution(dist.HalfCauchy(5.0), dist.transforms.ExpTransform().inv),
        )
        tau = jnp.exp(log_tau)
        with numpyro.plate("schools", 8):
            if is_centred:
                theta = numpyro.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * numpyro.sample("effect", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta, jnp.asarray(ERRORS)), obs=jnp.asarray(SCHOOLS))

    return model


def seeds() -> None:
    """Germination of seeds on 21 plates (Crowder, 1978), centred."""
    r, n, x1, x2 = jnp.asarray(SEEDS.T, float)
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0).expand([4]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("plates", len(r)):
        b = numpyro.sample("b", dist.Normal(0.0, sigma))
        eta = alpha[0] + alpha[1] * x1 + alpha[2] * x2 + alpha[3] * x1 * x2 + b
        numpyro.sample("r", dist.Binomial(n, logits=eta), obs=r)


def funnel() -> None:
    """Neal's, in ten dimensions."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    with numpyro.plate("xs", 9):
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(0.5 * v)))


def banana() -> None:
    """A ridge along a parabola."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.5))
    numpyro.sample("y", dist.Normal(0.5 * x**2, 0.3))


def modes() -> None:
    """Two Gaussians, seven standard deviations apart, with weights 0.6 and 0.4."""
    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    at = jnp.array([[-3.5, 0.0], [3.5, 0.0]])
    parts = dist.Normal(at, 1.0).log_prob(x).sum(-1) + jnp.log(jnp.array([0.6, 0.4]))
    numpyro.factor("density", jax.scipy.special.logsumexp(parts))


def _moments(**sites: tuple[Any, Any]) -> Draws:
    return {name: np.array(pair, float) for name, pair in sites.items()}


#: Half a square has the mean ``s^2 / 2`` and the variance ``s^4 / 2``.
RIDGE = _moments(x=(0.0, 1.5), y=(1.125, (1.5**4 / 2 + 0.09) ** 0.5))
MODES = _moments(x=([-0.7, 0.0], [(1 + 0.96 * 12.25) ** 0.5, 1.0]))

SMALL: dict[str, Entry] = {
    "eight schools, centred": Entry(schools(True), ("mu", "log_tau", "theta"), local=("theta",)),
    "eight schools, standardised": Entry(schools(False), ("mu", "log_tau", "effect")),
    "seeds": Entry(seeds, ("alpha", "sigma"), local=("b",)),
    "funnel": Entry(funnel, ("v",), exact=_moments(v=(0.0, 3.0))),
    "banana": Entry(banana, ("x", "y"), exact=RIDGE),
    "two modes": Entry(modes, ("x",), exact=MODES),
}
NAMES = (*SMALL, *POSTERIORS)


def entry(name: str, folder: Path | None) -> Entry:
    """A posterior by its name.

    :param folder: of posteriordb.
    """
    if name in SMALL:
        return SMALL[name]
    if folder is None:
        raise SystemExit(f"{name} is of posteriordb: say where that is by --data-dir.")
    target = Target.load(folder / "posteriordb", name)
    reference = target.reference

    def convert(draws: dict[str, Any]) -> Draws:
        sites = {k: np.asarray(v) for k, v in draws.items()}
        found = target.posterior.conversion.to_reference(sites, target.data)
        return {"parameters": flatten(reference.parameters, found)}

    exact = {"parameters": np.stack([reference.mean, np.sqrt(np.diag(reference.cov))])}
    return Entry(
        target.model, (), target.args, exact, convert=convert, part="posteriordb", num_draws=1000
    )
