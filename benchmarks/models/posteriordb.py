"""The 23 posteriors of posteriordb that have reference draws (Magnusson et al., 2025).

Stan's programs with Stan's names, for both PPLs. Data and references are read from a folder with
``index.csv``, ``data/DATA.json.gz`` and ``reference/POSTERIOR.npz``, in double precision: the
Gaussian process has a jitter of 1e-10.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .entries import Entry, special, with_ones

Data = dict[str, Any]
SIZES = ("diam1", "diam2", "canopy_height", "total_height", "density")


# -- models ----------------------------------------------------------------------------


def _flat(ppl: Any, name: str, support: Any, *shape: int) -> Any:
    return ppl.sample(name, ppl.ImproperUniform(support, (), shape))


def _positive(ppl: Any) -> Any:
    return _flat(ppl, "sigma", ppl.constraints.positive)


def _regression(ppl, X, y, sd=_positive):
    beta = _flat(ppl, "beta", ppl.constraints.real_vector, X.shape[1])
    sigma = sd(ppl)
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _scale(ppl):
    return ppl.sample("sigma", ppl.HalfCauchy(ppl.array(2.5)))


def _ridge(ppl, X, y):
    beta = ppl.normals("beta", X.shape[1], 10.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(ppl.array(10.0)))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _lakes(ppl, x, y, *prior):
    alpha = ppl.sample("alpha", ppl.Normal(prior[0], prior[1]))
    beta = ppl.sample("beta", ppl.Normal(prior[2], prior[3]))
    sigma = _positive(ppl)
    ppl.rows(ppl.Normal(alpha + beta * x, sigma), y)


def _lags(ppl, X, y):
    alpha = ppl.sample("alpha", ppl.Normal(0.0, 10.0))
    beta = ppl.normals("beta", X.shape[1], 10.0)
    sigma = _scale(ppl)
    ppl.rows(ppl.Normal(alpha + X @ beta, sigma), y)


def _schools(ppl, y, sigma, is_centred=True):
    mu = ppl.sample("mu", ppl.Normal(0.0, 5.0))
    tau = ppl.sample("tau", ppl.HalfCauchy(ppl.array(5.0)))
    with ppl.plate("schools", len(y)):
        if is_centred:
            theta = ppl.sample("theta", ppl.Normal(mu, tau))
        else:
            theta = mu + tau * ppl.sample("theta_trans", ppl.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.Normal(theta, sigma), obs=y)


def _process(ppl, x, k):
    rho = ppl.sample("rho", ppl.Gamma(ppl.array(25.0), 4.0))
    alpha = ppl.sample("alpha", ppl.HalfNormal(ppl.array(2.0)))
    kernel = alpha**2 * ppl.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)
    factor = ppl.linalg.cholesky(kernel + 1e-10 * ppl.array(np.eye(len(x))))
    ppl.rows(ppl.Poisson(ppl.exp(factor @ ppl.normals("f_tilde", len(x)))), k)


def _ordered(ppl, name, prior, support):
    value = _flat(ppl, name, support, 2)
    ppl.factor(f"{name}_prior", prior.log_prob(value).sum())
    return value


def _mixture(ppl, y):
    mu = _ordered(ppl, "mu", ppl.Normal(ppl.array(0.0), 2.0), ppl.constraints.ordered_vector)
    sigma = ppl.sample("sigma", ppl.HalfNormal(ppl.array(2.0)).expand([2]).to_event(1))
    theta = ppl.sample("theta", ppl.Beta(ppl.array(5.0), 5.0))
    weights = ppl.log(ppl.stack([theta, 1 - theta]))
    ppl.factor("y", _summed(ppl, weights + ppl.Normal(mu, sigma).log_prob(y[:, None])).sum())


def _summed(ppl, x):
    """The logarithm of a sum along the last axis."""
    return special(ppl).logsumexp(x, -1)


def _forward(ppl, transitions, emissions):
    """The log likelihood of a hidden Markov chain that has the weight one in either state."""
    log_transitions, weights = ppl.log(transitions), emissions[0]
    if ppl.is_numpyro:
        import jax

        def step(weights: Any, emission: Any) -> tuple[Any, None]:
            return _summed(ppl, (weights[:, None] + log_transitions).T) + emission, None

        weights, _ = jax.lax.scan(step, weights, emissions[1:])
    else:
        for emission in emissions[1:]:
            weights = _summed(ppl, (weights[:, None] + log_transitions).T) + emission
    ppl.factor("y", _summed(ppl, weights))


def _chain(ppl, y):
    rows = [ppl.sample(f"theta{i}", ppl.Dirichlet(ppl.array(np.ones(2)))) for i in (1, 2)]
    prior = ppl.Normal(ppl.array([3.0, 10.0]), 1.0)
    mu = _ordered(ppl, "mu", prior, ppl.constraints.positive_ordered_vector)
    _forward(ppl, ppl.stack(rows), ppl.Normal(mu, 1.0).log_prob(y[:, None]))


def _drives(ppl, y, concentrations):
    rows = [ppl.sample(f"theta{i}", ppl.Dirichlet(concentrations[i - 1])) for i in (1, 2)]
    support, prior = ppl.constraints.positive_ordered_vector, ppl.Normal(ppl.array([0.0, 3.0]), 1.0)
    rates = [_ordered(ppl, name, prior, support) for name in ("phi", "lambda")]
    emissions = ppl.Exponential(ppl.stack(rates).T).log_prob(y[:, None]).sum(-1)
    _forward(ppl, ppl.stack(rows), emissions)


# -- data ------------------------------------------------------------------------------


def _of(response: str, *names: str, log: bool = False, more: tuple[str, ...] = ()) -> Callable:
    """A design matrix with an intercept, of columns or their logarithms, and the response."""

    def made(data: Data) -> tuple:
        X = [np.log(data[name]) if log else data[name] for name in names]
        y = data[response]
        return with_ones(np.column_stack([*X, *(data[name] for name in more)])), y

    return made


def _log_response(made: Callable) -> Callable:
    return lambda data: (made(data)[0], np.log(made(data)[1]))


def _crossed(data: Data, is_centred: bool = False) -> tuple:
    hs, iq = (data[k] - is_centred * data[k].mean() for k in ("mom_hs", "mom_iq"))
    return with_ones(np.column_stack([hs, iq, hs * iq])), data["kid_score"]


def _volume(data: Data) -> tuple:
    volume = data["diam1"] * data["diam2"] * data["canopy_height"]
    return with_ones(np.log(volume)[:, None]), np.log(data["weight"])


def _voters(data: Data) -> tuple:
    ages = [data["age_discrete"] == level for level in (2, 3, 4)]
    first, rest = (data[k] for k in ("real_ideo", "race_adj")), ("educ1", "gender", "income")
    return with_ones(np.column_stack([*first, *ages, *(data[k] for k in rest)])), data["partyid7"]


def _series(data: Data) -> tuple:
    y, order = data["y"], int(data["K"])
    return np.column_stack([y[order - k : len(y) - k] for k in range(1, order + 1)]), y[order:]


def _named(*names: str) -> Callable:
    return lambda data: tuple(data[name] for name in names)


#: The model of each program, and its arguments.
PROGRAMS: dict[str, tuple[Callable, Callable[[Data], tuple]]] = {
    "arK": (_lags, _series),
    "hmm_drive_0": (_drives, lambda data: (np.column_stack([data["u"], data["v"]]), data["alpha"])),
    "earn_height": (_regression, _of("earn", "height")),
    "logearn_height": (_regression, _log_response(_of("earn", "height"))),
    "logearn_height_male": (_regression, _log_response(_of("earn", "height", "male"))),
    "eight_schools_centered": (_schools, _named("y", "sigma")),
    "eight_schools_noncentered": (partial(_schools, is_centred=False), _named("y", "sigma")),
    "gp_pois_regr": (_process, _named("x", "k")),
    "hmm_example": (_chain, _named("y")),
    "kidscore_interaction": (partial(_regression, sd=_scale), _crossed),
    "kidscore_momhs": (partial(_regression, sd=_scale), _of("kid_score", "mom_hs")),
    "kidscore_momhsiq": (partial(_regression, sd=_scale), _of("kid_score", "mom_hs", "mom_iq")),
    "kidscore_momiq": (partial(_regression, sd=_scale), _of("kid_score", "mom_iq")),
    "kidscore_interaction_c": (_regression, partial(_crossed, is_centred=True)),
    "kilpisjarvi": (_lakes, _named("x", "y", "pmualpha", "psalpha", "pmubeta", "psbeta")),
    "low_dim_gauss_mix": (_mixture, _named("y")),
    "logmesquite": (
        _regression,
        _log_response(_of("weight", *SIZES, log=True, more=("group",))),
    ),
    "logmesquite_logvolume": (_regression, _volume),
    "mesquite": (_regression, _of("weight", *SIZES, more=("group",))),
    "nes": (_regression, _voters),
    "blr": (_ridge, _named("X", "y")),
}


def entries(folder: Path) -> list[Entry]:
    """All posteriors of a folder."""
    with (folder / "index.csv").open(newline="", encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    found = []
    for name in names:
        data, _, program = name.partition("-")
        model, arguments = PROGRAMS[program]
        found.append(Entry(f"posteriordb/{name}", model, partial(_read, folder, data, arguments)))
    return found


def _read(folder: Path, name: str, arguments: Callable[[Data], tuple]) -> tuple:
    with gzip.open(folder / "data" / f"{name}.json.gz", "rt") as file:
        data = {key: np.asarray(value) for key, value in json.load(file).items()}
    floats = {k: v.astype(float) if k != "K" else v for k, v in data.items()}
    return arguments(floats)


def reference(folder: Path, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations by Stan's names, flat."""
    with np.load(folder / "reference" / f"{name.partition('/')[2]}.npz") as file:
        stems = [re.split(r"\[", str(name))[0] for name in file["parameters"]]
        mean, sd = file["mean"], file["sd"]
    at = {stem: [i for i, one in enumerate(stems) if one == stem] for stem in stems}
    return {stem: (mean[i], sd[i]) for stem, i in at.items()}
