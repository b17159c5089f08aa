"""What the two sets of models share: arguments from the data, conversion of parameters.

These are the `transformed data` and `transformed parameters` blocks of the Stan programs,
in NumPy. The arguments of every regression are a design matrix and an outcome.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .data import Conversion, Data, Draws

# Added to the diagonal of the Gaussian process's covariance matrix, as in Stan.
JITTER = 1e-10


def design(*columns: np.ndarray) -> np.ndarray:
    """An intercept and the columns."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def earn_height(data: Data) -> tuple:
    return design(data["height"]), data["earn"]


def logearn_height(data: Data) -> tuple:
    return design(data["height"]), np.log(data["earn"])


def logearn_height_male(data: Data) -> tuple:
    return design(data["height"], data["male"]), np.log(data["earn"])


def kidscore_momhs(data: Data) -> tuple:
    return design(data["mom_hs"]), data["kid_score"]


def kidscore_momiq(data: Data) -> tuple:
    return design(data["mom_iq"]), data["kid_score"]


def kidscore_momhsiq(data: Data) -> tuple:
    return design(data["mom_hs"], data["mom_iq"]), data["kid_score"]


def kidscore_interaction(data: Data) -> tuple:
    hs, iq = data["mom_hs"], data["mom_iq"]
    return design(hs, iq, hs * iq), data["kid_score"]


def kidscore_interaction_c(data: Data) -> tuple:
    hs = data["mom_hs"] - data["mom_hs"].mean()
    iq = data["mom_iq"] - data["mom_iq"].mean()
    return design(hs, iq, hs * iq), data["kid_score"]


def mesquite(data: Data) -> tuple:
    sizes = [data[name] for name in MESQUITE_SIZES]
    return design(*sizes, data["group"]), data["weight"]


def logmesquite(data: Data) -> tuple:
    sizes = [np.log(data[name]) for name in MESQUITE_SIZES]
    return design(*sizes, data["group"]), np.log(data["weight"])


def logmesquite_logvolume(data: Data) -> tuple:
    volume = data["diam1"] * data["diam2"] * data["canopy_height"]
    return design(np.log(volume)), np.log(data["weight"])


def nes(data: Data) -> tuple:
    age = [(data["age_discrete"] == level).astype(float) for level in (2, 3, 4)]
    rest = [data[name] for name in ("educ1", "gender", "income")]
    return design(data["real_ideo"], data["race_adj"], *age, *rest), data["partyid7"]


def blr(data: Data) -> tuple:
    return data["X"], data["y"]


def kilpisjarvi(data: Data) -> tuple:
    names = ("x", "y", "pmualpha", "psalpha", "pmubeta", "psbeta")
    return tuple(data[name] for name in names)


def autoregression(data: Data) -> tuple:
    """The lagged series as a design matrix without intercept, and the series."""
    y, order = data["y"], int(data["K"])
    lags = [y[order - lag : len(y) - lag] for lag in range(1, order + 1)]
    return np.column_stack(lags), y[order:]


def eight_schools(data: Data) -> tuple:
    return data["y"], data["sigma"]


def gp_pois_regr(data: Data) -> tuple:
    return data["x"], data["k"]


def low_dim_gauss_mix(data: Data) -> tuple:
    return (data["y"],)


def hmm_example(data: Data) -> tuple:
    return (data["y"],)


def hmm_drive_0(data: Data) -> tuple:
    """The two series side by side, and the priors of the transition probabilities."""
    return np.column_stack([data["u"], data["v"]]), data["alpha"]


def hmm_from_reference(draws: Draws, data: Data) -> Draws:
    """The reference draws are rounded: probabilities sum to one again."""
    rows = {name: draws[name] for name in ("theta1", "theta2")}
    return draws | {name: row / row.sum(axis=-1, keepdims=True) for name, row in rows.items()}


def noncentered_from_reference(draws: Draws, data: Data) -> Draws:
    mu, tau = draws["mu"], draws["tau"]
    return {"theta_trans": (draws["theta"] - mu[:, None]) / tau[:, None], "mu": mu, "tau": tau}


def noncentered_to_reference(draws: Draws, data: Data) -> Draws:
    mu, tau = draws["mu"], draws["tau"]
    return {"theta": draws["theta_trans"] * tau[:, None] + mu[:, None], "mu": mu, "tau": tau}


def cholesky_covariance(rho: np.ndarray, alpha: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Cholesky factor of the squared-exponential covariance matrix, one for each draw."""
    distances = (x[:, None] - x) / rho[:, None, None]
    covariance = alpha[:, None, None] ** 2 * np.exp(-0.5 * distances**2)
    return np.linalg.cholesky(covariance + JITTER * np.eye(len(x)))


def gp_from_reference(draws: Draws, data: Data) -> Draws:
    factor = cholesky_covariance(draws["rho"], draws["alpha"], data["x"])
    f_tilde = np.linalg.solve(factor, draws["f"][..., None])[..., 0]
    return {"rho": draws["rho"], "alpha": draws["alpha"], "f_tilde": f_tilde}


def gp_to_reference(draws: Draws, data: Data) -> Draws:
    factor = cholesky_covariance(draws["rho"], draws["alpha"], data["x"])
    f = (factor @ draws["f_tilde"][..., None])[..., 0]
    return {"rho": draws["rho"], "alpha": draws["alpha"], "f": f}


MESQUITE_SIZES = ("diam1", "diam2", "canopy_height", "total_height", "density")

INPUTS: dict[str, Callable[[Data], tuple]] = {
    "arK": autoregression,
    "blr": blr,
    "earn_height": earn_height,
    "eight_schools_centered": eight_schools,
    "eight_schools_noncentered": eight_schools,
    "gp_pois_regr": gp_pois_regr,
    "hmm_drive_0": hmm_drive_0,
    "hmm_example": hmm_example,
    "kidscore_interaction": kidscore_interaction,
    "kidscore_interaction_c": kidscore_interaction_c,
    "kidscore_momhs": kidscore_momhs,
    "kidscore_momhsiq": kidscore_momhsiq,
    "kidscore_momiq": kidscore_momiq,
    "kilpisjarvi": kilpisjarvi,
    "logearn_height": logearn_height,
    "logearn_height_male": logearn_height_male,
    "logmesquite": logmesquite,
    "logmesquite_logvolume": logmesquite_logvolume,
    "low_dim_gauss_mix": low_dim_gauss_mix,
    "mesquite": mesquite,
    "nes": nes,
}

CONVERSIONS: dict[str, Conversion] = {
    "eight_schools_noncentered": Conversion(noncentered_from_reference, noncentered_to_reference),
    "gp_pois_regr": Conversion(gp_from_reference, gp_to_reference),
    "hmm_drive_0": Conversion(hmm_from_reference),
    "hmm_example": Conversion(hmm_from_reference),
}

NAMES = (
    "arK-arK",
    "bball_drive_event_0-hmm_drive_0",
    "earnings-earn_height",
    "earnings-logearn_height",
    "earnings-logearn_height_male",
    "eight_schools-eight_schools_centered",
    "eight_schools-eight_schools_noncentered",
    "gp_pois_regr-gp_pois_regr",
    "hmm_example-hmm_example",
    "kidiq-kidscore_interaction",
    "kidiq-kidscore_momhs",
    "kidiq-kidscore_momhsiq",
    "kidiq-kidscore_momiq",
    "kidiq_with_mom_work-kidscore_interaction_c",
    "kilpisjarvi_mod-kilpisjarvi",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "mesquite-logmesquite",
    "mesquite-logmesquite_logvolume",
    "mesquite-mesquite",
    "nes1972-nes",
    "nes1976-nes",
    "nes1996-nes",
    "sblri-blr",
)
