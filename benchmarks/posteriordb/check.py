"""Holds every model against the reference draws, without Stan.

On the unconstrained scale, with x a draw, g the gradient of the model's log density there
and any constant c, the posterior has

    E[g] = 0    and    E[(x - c) g^T] = -I.

Both expectations are estimated from the reference draws and each of their entries is divided
by its standard error: with a wrong prior, likelihood or Jacobian some of these z-scores are
large. Coordinates are whitened, so that an error in a direction in which the posterior is
wide is not drowned by the gradients of the narrow ones; coordinate i is then parameter i
given the parameters before it.

The collection has every tenth draw but also the mean and the covariance over all of them.
Regression on the parameters and their products, whose true means are thereby known better,
makes a test that is worth almost all draws where the posterior is nearly normal.

Both hold in any coordinates, and where those of a model are bad for the test it has others,
with their Jacobian: the gradients of the centered eight schools have no variance, because the
sd of the group comes near zero, and those of the noncentered Gaussian process are noisy.

The Pyro models must have the log densities of the NumPyro models, up to a constant, and
what converts draws must invert its inverse.

    python -m benchmarks posteriordb.check --data-dir DIR [--only NAME ...]

Time: minutes. Data: an extract of posteriordb.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyro
import torch
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density, potential_energy

from . import numpyro_models, pyro_models
from .data import Data, Posterior, Reference, flatten, load_data, load_index, load_reference
from .transformed import JITTER

# The largest of the 1,238 z-scores of 23 right models exceeds this once in thirteen times.
MAX_Z = 4.0
# Relative to the spread of the log density over the draws, both in double precision.
MAX_DENSITY_ERROR = 1e-6
# The reference draws are stored in single precision.
MAX_CONVERSION_ERROR = 1e-5
NUM_DENSITIES = 20
# Eigenvalues of a correlation matrix below this are exact relations (of a simplex).
RANK_TOLERANCE = 1e-9

Values = dict[str, jax.Array]


def decentered_schools(sites: Values, data: Data) -> Values:
    theta = (sites["theta"] - sites["mu"]) / jnp.exp(sites["tau"])
    return sites | {"theta": theta}


def centered_schools(coordinates: Values, data: Data) -> Values:
    theta = coordinates["mu"] + jnp.exp(coordinates["tau"]) * coordinates["theta"]
    return coordinates | {"theta": theta}


def gp_factor(values: Values, data: Data) -> jax.Array:
    distances = (data["x"][:, None] - data["x"]) / jnp.exp(values["rho"])
    covariance = jnp.exp(2 * values["alpha"] - 0.5 * distances**2)
    return jnp.linalg.cholesky(covariance + JITTER * jnp.eye(len(covariance)))


def centered_gp(sites: Values, data: Data) -> Values:
    return sites | {"f_tilde": gp_factor(sites, data) @ sites["f_tilde"]}


def decentered_gp(coordinates: Values, data: Data) -> Values:
    factor = gp_factor(coordinates, data)
    f_tilde = jax.scipy.linalg.solve_triangular(factor, coordinates["f_tilde"], lower=True)
    return coordinates | {"f_tilde": f_tilde}


# Other coordinates for the test: from unconstrained sites, and back.
COORDINATES: dict[str, tuple[Callable[[Values, Data], Values], ...]] = {
    "eight_schools-eight_schools_centered": (decentered_schools, centered_schools),
    "gp_pois_regr-gp_pois_regr": (centered_gp, decentered_gp),
}


@dataclass(frozen=True)
class Moments:
    """The z-scores of both expectations.

    `score` has one entry a coordinate; `stein` is the matrix of z-scores of E[x g^T] + I
    and `stein_diagonal` the estimates of the diagonal of -E[x g^T], all ones.
    """

    labels: list[str]
    score: np.ndarray
    stein: np.ndarray
    stein_diagonal: np.ndarray
    stein_errors: np.ndarray

    def worst(self) -> tuple[float, str]:
        """The largest |z|, infinite where one is NaN, and its coordinate."""
        largest = np.maximum(np.abs(self.score), np.abs(self.stein).max(axis=1))
        largest = np.where(np.isfinite(largest), largest, np.inf)
        index = int(largest.argmax())
        return float(largest[index]), self.labels[index]


def unconstrained_scores(
    posterior: Posterior, reference: Reference, data: Data
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The draws on the unconstrained scale, the gradients there and the coordinates' names."""
    model, args = posterior.build(data)
    sites = posterior.conversion.to_sites(reference.by_name(), data)
    to_coordinates, to_model = COORDINATES.get(posterior.name, (None, None))
    first = {name: values[0] for name, values in sites.items()}
    seeded = handlers.seed(model, rng_seed=0)
    trace = handlers.trace(handlers.substitute(seeded, first)).get_trace(*args)
    latent = {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    if set(latent) != set(sites):
        raise ValueError(f"the model's sites are {sorted(latent)}, the draws' {sorted(sites)}")

    def unconstrained(draw: Values) -> Values:
        values = {name: biject_to(latent[name]["fn"].support).inv(draw[name]) for name in latent}
        return to_coordinates(values, data) if to_coordinates else values

    _, unravel = ravel_pytree(unconstrained(first))
    x = jax.vmap(lambda draw: ravel_pytree(unconstrained(draw))[0])(sites)

    def log_prob(flat: jax.Array) -> jax.Array:
        if to_model is None:
            return -potential_energy(model, args, {}, unravel(flat))
        values = to_model(unravel(flat), data)
        jacobian = jax.jacfwd(lambda flat: ravel_pytree(to_model(unravel(flat), data))[0])(flat)
        return jnp.linalg.slogdet(jacobian)[1] - potential_energy(model, args, {}, values)

    gradients = jax.jit(lambda x: jax.lax.map(jax.grad(log_prob), x, batch_size=100))(x)
    labels = [
        f"{name}[{index + 1}]" if value.ndim else name
        for name, value in sorted(unconstrained(first).items())
        for index in range(value.size)
    ]
    return np.asarray(x), np.asarray(gradients), labels


def controls(reference: Reference) -> np.ndarray:
    """Functions of the draws, one a column, with means of zero over all reference draws.

    The parameters, decorrelated, and their products.
    """
    scale = np.sqrt(np.diag(reference.cov))
    values, vectors = np.linalg.eigh(reference.cov / np.outer(scale, scale))
    kept = values > RANK_TOLERANCE
    standard = (reference.draws - reference.mean) / scale @ vectors[:, kept] / np.sqrt(values[kept])
    rows, columns = np.tril_indices(standard.shape[1])
    products = standard[:, rows] * standard[:, columns] - (rows == columns)
    return np.column_stack([standard, products])


def adjusted_mean(
    values: np.ndarray, controls: np.ndarray, num_draws: float
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each column, given that the controls have mean zero; its standard error.

    :param num_draws: what the zero means of the controls are estimated from.
    """
    regressors = np.column_stack([np.ones(len(controls)), controls])
    inverse = np.linalg.pinv(regressors)
    coefficients = inverse @ values
    residuals = values - regressors @ coefficients
    # Robust to a variance that depends on the controls.
    correction = len(values) / (len(values) - regressors.shape[1])
    variance = correction * (inverse[0] ** 2 @ residuals**2)
    variance += (controls @ coefficients[1:]).var(axis=0) / num_draws
    return coefficients[0], np.sqrt(variance)


def moments(posterior: Posterior, reference: Reference, data: Data) -> Moments:
    """The test of one NumPyro model."""
    x, gradients, labels = unconstrained_scores(posterior, reference, data)
    root = np.linalg.cholesky(np.cov(x, rowvar=False).reshape(x.shape[1], -1))
    x = np.linalg.solve(root, (x - x.mean(axis=0)).T).T
    gradients = gradients @ root
    known = controls(reference)
    mean, error = adjusted_mean(gradients, known, reference.ess)
    dim = x.shape[1]
    products = (x[:, :, None] * gradients[:, None, :]).reshape(-1, dim * dim)
    stein, stein_error = adjusted_mean(products, known, reference.ess)
    stein, stein_error = stein.reshape(dim, dim), stein_error.reshape(dim, dim)
    return Moments(
        labels=labels,
        score=mean / error,
        stein=(stein + np.eye(dim)) / stein_error,
        stein_diagonal=-np.diag(stein),
        stein_errors=np.diag(stein_error),
    )


def density_error(name: str, reference: Reference, data: Data) -> float:
    """How far the difference of the two packages' log densities is from constant.

    Relative to the standard deviation of the log density.
    """
    posterior = numpyro_models.POSTERIORS[name]
    sites = posterior.conversion.to_sites(reference.by_name(), data)
    step = len(reference.draws) // NUM_DENSITIES
    sites = {key: values[::step] for key, values in sites.items()}

    model, args = posterior.build(data)
    densities = jax.jit(jax.vmap(lambda draw: log_density(model, args, {}, draw)[0]))
    from_numpyro = np.asarray(densities({key: jnp.asarray(v) for key, v in sites.items()}))

    model, args = pyro_models.POSTERIORS[name].build(data)
    from_pyro = []
    for draw in range(len(from_numpyro)):
        values = {key: torch.as_tensor(v[draw]) for key, v in sites.items()}
        trace = pyro.poutine.trace(pyro.condition(model, values)).get_trace(*args)
        from_pyro.append(trace.log_prob_sum().item())
    return float(np.ptp(from_numpyro - np.array(from_pyro)) / from_numpyro.std())


def conversion_error(posterior: Posterior, reference: Reference, data: Data) -> float:
    """How far the draws move from the reference to the sites and back, in posterior sds."""
    conversion = posterior.conversion
    there = conversion.to_sites(reference.by_name(), data)
    back = flatten(reference.parameters, conversion.to_reference(there, data))
    return float((np.abs(back - reference.draws) / np.sqrt(np.diag(reference.cov))).max())


def main(arguments: list[str] | None = None) -> int:
    """Print a table; the number of posteriors that fail or that only one side has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="has index.csv")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these posteriors")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)

    index = set(load_index(options.data_dir))
    names = index & set(numpyro_models.POSTERIORS)
    missing = index ^ set(numpyro_models.POSTERIORS)
    if unknown := set(options.only or ()) - names:
        parser.error(f"no such posterior: {', '.join(sorted(unknown))}")
    if missing:
        print(f"in the index or in the registry only: {', '.join(sorted(missing))}")
    print(
        f"{'posterior':<42} {'dim':>3}  {'max |z|: g':>10} {'x g':>5}"
        f"  {'diagonal of -E[x g]':<22} {'Pyro':>7}"
    )
    failed = 0
    for name in options.only or sorted(names):
        posterior = numpyro_models.POSTERIORS[name]
        data = load_data(options.data_dir, posterior.data_name)
        reference = load_reference(options.data_dir, name)
        result = moments(posterior, reference, data)
        largest, label = result.worst()
        reasons = []
        if largest > MAX_Z:
            reasons.append(f"z of {label}")
        if not conversion_error(posterior, reference, data) <= MAX_CONVERSION_ERROR:
            reasons.append("conversion")
        pyro_column = "-"
        if name in pyro_models.POSTERIORS:
            error = density_error(name, reference, data)
            pyro_column = f"{error:.0e}"
            if not error <= MAX_DENSITY_ERROR:
                reasons.append("Pyro")
        diagonal = result.stein_diagonal
        spread = f"{diagonal.min():.3f}..{diagonal.max():.3f} +-{result.stein_errors.max():.3f}"
        print(
            f"{name:<42} {len(diagonal):>3}  {np.abs(result.score).max():>10.2f}"
            f" {np.abs(result.stein).max():>5.2f}  {spread:<22} {pyro_column:>7}"
            f"  {'FAILED: ' + ', '.join(reasons) if reasons else 'ok'}",
            flush=True,
        )
        failed += bool(reasons)
    print(f"{failed} failed" if failed else "all passed")
    return failed + len(missing)


if __name__ == "__main__":
    sys.exit(bool(main()))
