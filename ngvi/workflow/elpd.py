"""Pointwise predictive densities as what ArviZ compares."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngvi.inference.chains import import_arviz
from ngvi.workflow.loo import IMPROPER, MASKED, Pointwise
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.units import Units


def elpd_data(found: Pointwise, units: Units, attrs: dict[str, Any]) -> Any:
    """An ``ELPDData`` of ArviZ 0 or 1, ``pareto_k`` of which is the reliability.

    :param attrs: of its pointwise values.
    """
    arviz = import_arviz()
    import xarray

    dims = [name for name, _ in units.plates]

    def shaped(values: np.ndarray) -> np.ndarray:
        return values.reshape(units.shape).copy()  # what is found is kept

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
    p_loo = float((found.lpd - found.elpd).sum())
    warns = bool((~(found.reliability <= DEFAULTS.good_k)).any())
    if arviz.__version__.startswith("0."):
        from arviz.stats.stats_utils import ELPDData

        fields = {
            "elpd_loo": total,
            "se": error,
            "p_loo": p_loo,
            "n_samples": DEFAULTS.num_joint,
            "n_data_points": count,
            "warning": warns,
            "loo_i": pointwise,
            "pareto_k": k,
            "scale": "log",
            "good_k": DEFAULTS.good_k,
        }
        return ELPDData(data=list(fields.values()), index=list(fields))
    from arviz_stats import utils

    known = {
        "kind": "loo",
        "elpd": total,
        "se": error,
        "p": p_loo,
        "n_samples": DEFAULTS.num_joint,
        "n_data_points": count,
        "scale": "log",
        "warning": warns,
        "good_k": DEFAULTS.good_k,
        "elpd_i": pointwise,
        "pareto_k": k,
    }
    kind = getattr(utils, "ELPDDataLOO", utils.ELPDData)
    own = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in known.items() if name in own})


def note(found: Pointwise, units: Units) -> str:
    """What a reader of the numbers should know, in words, or nothing."""
    words = []
    improper = np.flatnonzero(found.how == IMPROPER)
    if len(improper):
        names = ", ".join(units.label(int(one)) for one in improper[: DEFAULTS.num_named])
        more = f" and {len(improper) - DEFAULTS.num_named} more" * (
            len(improper) > DEFAULTS.num_named
        )
        words.append(
            f"without {names}{more} the posterior is improper, or not found: its predictive "
            "density is NaN"
        )
    for plate, sites in units.shared.items():
        names = ", ".join(map(repr, sites))
        words.append(
            f"{names} is in plate '{plate}', whose elements several rows share: this is about "
            f"another row of a known one, and plate='{plate}' leaves out all rows of one"
        )
    return "; ".join(words)
