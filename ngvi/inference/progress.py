"""How far the search for other optima is, for a checkpoint: what led there need not be kept.

Before each of its rounds a search is its optima, the modes that ascents have ended at, the points
that wait, and the state of the random numbers. With these in its file a fit goes on as if it had
come there by itself, and all answers before are dropped: what a file holds is bounded by one round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ngvi.inference.certificate import Certificate
from ngvi.inference.checks import Finding
from ngvi.inference.map_ascent import Ascent
from ngvi.inference.optima import Exploration, Optimum
from ngvi.inference.problem import Cost, StateSpace
from ngvi.inference.records import Arrays, plain, under
from ngvi.inference.search import Status
from ngvi.inference.starts import Prior, Starts
from ngvi.inference.trace import Trace
from ngvi.inference.validation import Validation


def noted_optima(optima: list[Optimum], space: StateSpace) -> tuple[list[Any], Arrays]:
    """Optima, for JSON and as arrays."""
    meta: list[Any] = []
    arrays: Arrays = {}
    for index, one in enumerate(optima):
        meta.append(
            {
                "validation": plain(vars(one.validation)),
                "certificate": plain(one.certificate._asdict()),
                "status": one.status and one.status.name,
                "trace": one.trace is not None,
                **{name: getattr(one, name) for name in ("name", "count")},
            }
        )
        for place, array in enumerate(space.arrays(one.state)):
            arrays[f"optima/{index}/{place}"] = array
        for name, values in vars(one.trace).items() if one.trace is not None else ():
            arrays[f"trace/{index}/{name}"] = np.array(values)
    return meta, arrays


def optima_of(meta: list[Any], arrays: Arrays, space: StateSpace) -> list[Optimum]:
    """Those that were noted."""
    found = []
    for index, one in enumerate(meta):
        trace = under(arrays, f"trace/{index}/")
        found.append(
            Optimum(
                space.of_arrays(list(under(arrays, f"optima/{index}/").values())),
                Validation(**one["validation"]),
                Certificate(**one["certificate"]),
                None if one["status"] is None else Status[one["status"]],
                one["name"],
                one["count"],
                Trace(**{k: a.tolist() for k, a in trace.items()}) if one["trace"] else None,
            )
        )
    return found


def noted_starts(starts: Starts) -> Arrays:
    """What starts have been drawn from, and what waits."""
    arrays: Arrays = {}
    own = vars(starts)
    if own.get("prior") is not None:
        arrays |= {f"prior/{name}": a for name, a in vars(own["prior"]).items()}
    elif "prior" in own:
        arrays["prior"] = np.zeros(0)
    if "pool" in own:
        arrays |= {f"pool/{i}": a for i, a in enumerate(own["pool"])}
    if own["_others"] is not None:
        arrays["others"] = np.reshape(own["_others"], (-1, starts.problem.space.dim))
    return arrays


def set_starts(starts: Starts, arrays: Arrays) -> None:
    """Let starts be as they were noted."""
    own, prior = vars(starts), under(arrays, "prior/")
    if prior or "prior" in arrays:
        own["prior"] = Prior(**prior) if prior else None
    if pool := under(arrays, "pool/"):
        own["pool"] = tuple(pool.values())
    if "others" in arrays:
        own["_others"] = list(arrays["others"])


def note(explorer: Any) -> tuple[dict[str, Any], Arrays] | None:
    """How far an :class:`~ngvi.inference.exploration.Explorer` is; None in the midst of a run."""
    runs, optima, modes = explorer.runs, explorer.runs.optima, explorer._modes
    if runs.waiting or any(one not in optima for _, one in [*modes, *explorer._ends]):
        return None
    meta, arrays = noted_optima(optima, runs.problem.space)
    for index, (end, _) in enumerate(modes):
        arrays[f"modes/{index}"] = end.mean
    checked, finding = runs.checked
    found = {
        "checked": [index for index, one in enumerate(optima) if one.state is checked],
        "finding": finding and plain(finding._asdict()),
        "dear": float(runs._expensive_limit),
        "tolerance": runs.tolerance,
        "options": repr(runs.options),
        "optima": meta,
        "modes": [[plain(end._replace(mean=0)._asdict()), optima.index(one)] for end, one in modes],
        "ends": [[plain(vars(end)), optima.index(one)] for end, one in explorer._ends],
        "are_optima": [explorer._treat_as_optima, explorer._saddle_budget],
        "heights": [[float(height), float(near)] for height, near in explorer._heights],
        "report": plain(vars(explorer.report)),
        "costs": [explorer.spent, explorer.reached],
        "cost": runs.problem.objective.cost.counts,
        "steps": [runs.monitor.num_steps, float(runs.monitor.best)],
        "rng": runs.rng.bit_generator.state,
    }
    return found, {**arrays, **noted_starts(explorer.starts)}


def go_on(explorer: Any, meta: dict[str, Any], arrays: Arrays) -> None:
    """Let an explorer be where it was noted."""
    runs = explorer.runs
    runs.optima = optima_of(meta["optima"], arrays, runs.problem.space)
    for place in meta["checked"][:1]:
        finding = meta["finding"] and Finding(**meta["finding"])
        runs.checked = runs.optima[place].state, finding
    runs._expensive_limit = meta["dear"]
    explorer._modes = [
        (Ascent(**{**end, "mean": arrays[f"modes/{index}"]}), runs.optima[place])
        for index, (end, place) in enumerate(meta["modes"])
    ]
    ends = [(Validation(**end), runs.optima[place]) for end, place in meta["ends"]]
    explorer._ends, (explorer._treat_as_optima, explorer._saddle_budget) = ends, meta["are_optima"]
    explorer._heights = [tuple(pair) for pair in meta["heights"]]
    explorer.report = Exploration(**meta["report"])
    explorer.spent, explorer.reached = meta["costs"]
    runs.problem.objective.cost.become(Cost(**meta["cost"]))
    runs.monitor.num_steps, runs.monitor.best = meta["steps"]
    runs.rng.bit_generator.state = meta["rng"]
    set_starts(explorer.starts, arrays)


def differs(explorer: Any, meta: dict[str, Any]) -> str:
    """Which setting is another than in the run that was noted, in words; or nothing."""
    runs = explorer.runs
    if meta["tolerance"] != runs.tolerance:
        return f"tolerance= was {meta['tolerance']}, and is {runs.tolerance}"
    return "" if meta["options"] == repr(runs.options) else "options= are others"
