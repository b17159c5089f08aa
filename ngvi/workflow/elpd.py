"""Pointwise predictive densities for comparison by ArviZ."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngvi.inference.draws.chains import import_arviz
from ngvi.inference.draws.pareto import USABLE
from ngvi.workflow.loo import IMPROPER, MASKED, STEPS, SUBTRACTION, WEIGHTS, Pointwise
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.units import Units


def elpd_data(found: Pointwise, units: Units, attrs: dict[str, Any]) -> Any:
    """Return an ``ELPDData`` of ArviZ 0 or 1, whose ``pareto_k`` is the reliability.

    :param attrs: of its pointwise values.
    """
    arviz = import_arviz()
    import xarray

    dims = [name for name, _ in units.plates]

    def shaped(values: np.ndarray) -> np.ndarray:
        return values.reshape(units.shape)

    def array(values: np.ndarray, name: str) -> Any:
        return xarray.DataArray(shaped(values), dims=dims, name=name)

    pointwise, k = array(found.elpd, "loo_i"), array(found.reliability, "pareto_k")
    for name in ("leverage", "psis", "psis_k"):
        pointwise.coords[name] = dims, shaped(getattr(found, name))
    pointwise.coords["how"] = dims, shaped(found.how.astype(str))
    pointwise.attrs.update(attrs)
    observed = found.elpd[found.how != MASKED]
    count, total = len(observed), float(observed.sum())
    error = float(np.sqrt(count * observed.var()))
    fields = {
        "elpd": total,
        "se": error,
        "p": float((found.lpd - found.elpd).sum()),
        "n_samples": DEFAULTS.num_joint,
        "n_data_points": count,
        "warning": bool((~(found.reliability <= USABLE)).any()),
        "elpd_i": pointwise,
        "pareto_k": k,
        "scale": "log",
        "good_k": USABLE,
    }
    if arviz.__version__.startswith("0."):
        from arviz.stats.stats_utils import ELPDData

        names = {"elpd": "elpd_loo", "p": "p_loo", "elpd_i": "loo_i"}
        return ELPDData(list(fields.values()), [names.get(name, name) for name in fields])
    from arviz_stats import utils

    kind = getattr(utils, "ELPDDataLOO", utils.ELPDData)
    own = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: one for name, one in {"kind": "loo", **fields}.items() if name in own})


def note(found: Pointwise, units: Units) -> str:
    """Return what a reader of the numbers should know, in words, or nothing."""
    words = []
    improper = np.flatnonzero(found.how == IMPROPER)
    if len(improper):
        names = ", ".join(units.label(int(one)) for one in improper[: DEFAULTS.num_shown])
        more = ", ..." * (len(improper) > DEFAULTS.num_shown)
        words.append(
            f"without {names}{more} the posterior is improper, or not found: its density is NaN"
        )
    is_doubtful, has_steps = found.reliability > USABLE, found.how == STEPS
    unreliable = int((is_doubtful & np.isin(found.how, (SUBTRACTION, WEIGHTS))).sum())
    if unreliable:
        words.append(
            f"{unreliable} of {units.count} densities are not reliable (pareto_k > {USABLE}), and "
            "got no steps of their own: time_limit= (in seconds) gives more"
        )
    if far := int((is_doubtful & has_steps).sum()):
        words.append(
            f"{far} of {units.count} densities may be off (pareto_k > {USABLE}), also by steps "
            "without the unit. fit() on the other data gives the posterior to compare with"
        )
    for plate, sites in units.shared.items():
        names = ", ".join(map(repr, sites))
        words.append(
            f"{names} is in plate '{plate}', whose elements several rows share: plate='{plate}' "
            "leaves out all rows of an element"
        )
    return "; ".join(words)
