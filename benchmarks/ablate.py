"""What a mechanism of ``fit`` is worth: fits with and without it.

    python -m benchmarks --publish ablate quasi_newton

fits the models that a mechanism is for (``MECHANISMS``, of the part ``newest``, or of ``PARTS``)
with and without it, as users call it, in both packages with two seeds, and writes its row
in ``docs/mechanisms.md`` from ``ablations.csv``. Fits that the CSV has are not done again
without ``--anew``.

A certified result is false where its Gaussian is more than 0.1 nats below the best of that model
in the CSV, where another density (``gauntlet/target.py``) says so of its bound, or where the
posterior is improper. Locals by their modes have no other density; their bounds are compared.
Gradients and CPU seconds (of the second seed, whose programs are compiled) are medians of ratios.

Time: 3 minutes for a mechanism. Data: none.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections.abc import Callable
from itertools import product
from statistics import median
from typing import Any

import jax

from benchmarks import pages
from benchmarks.gauntlet import runs
from benchmarks.gauntlet.target import Target
from benchmarks.models import PPLS, Entry, chosen
from benchmarks.unseen import opened
from examples.machine import describe
from ngvi.inference.options import FitOptions

NAME, SEEDS, LIMIT, FALSE = "ablations.csv", (0, 1), 60.0, 0.1
KEYS = ("mechanism", "model", "ppl", "seed")
MECHANISMS = {
    "held_out_draws": "networks/two_layers,networks/air,networks/wave_relu",
    "certificate_steps": "many/*,own_parameters/*,overflow/raw_years,heavy_tails/*",
    "quasi_newton": "many/*,own_parameters/*",
    "prior_start": "raw_scale/*,overflow/*",
    "more_starts": "plateaus/*,flat/*",
    "checks": "jumps/*,ends/generations,ends/runaway_growth,flat/*,heavy_tails/*,single/*,terms/*",
    "data_passes": "minibatches/*",
    "other_optima": "mixtures/*,kinks/roof,raw_scale/*",
    "curvature": "hierarchy/*,meta/*,items/*,spatial/*",
    "reparametrize": "hierarchy/*,meta/*,items/*,spatial/*",
}
#: Sets of models that are not ``newest``: of the first part of ``unseen``, which has been opened.
PARTS = {"held_out_draws": "gauntlet", "curvature": "part_1", "reparametrize": "part_1"}
#: Of arguments of ``fit``, those without the mechanism.
WITHOUT = {"curvature": "hessian", "reparametrize": False}  # other curvatures have no chains
#: Classes in single precision and of improper posteriors, and arguments of fits of others.
SINGLE, IMPROPER = "single", "flat"
PROPER = {"flat/no_spread"}  #: A parameter ends at zero, where the bound has a finite limit.
ASKED = {
    "many": {"family": "diagonal"},
    "networks": {"draws": "gaussian"},
    "integrals": {"curvature": "quadrature"},
}


def measured(
    entry: Entry,
    target: Target,
    mechanism: str,
    ppl: str,
    seed: int,
    more: Callable = lambda _: {},
    limit: float = LIMIT,
) -> dict[str, Any]:
    """The row of one fit without a mechanism, or with all for the empty name.

    :param more: gives other cells of a result.
    :param limit: CPU seconds after which it is given up.
    """
    options: dict[str, Any] = dict(ASKED.get(entry.group, {}))
    if mechanism in WITHOUT:
        options[mechanism] = WITHOUT[mechanism]
    elif mechanism:
        options["options"] = FitOptions(**{mechanism: False})
    row: dict[str, Any] = dict(zip(KEYS, (mechanism, entry.name, ppl, seed), strict=True))
    row |= dict.fromkeys(("verdict", "claimed", "error", "bound", "gradients", "CPU s", "said"), "")
    dtype = "float32" if entry.group == SINGLE else entry.precision
    begin = time.process_time()
    try:
        with warnings.catch_warnings(), runs.precision(ppl, dtype), runs.alarm(limit):
            warnings.simplefilter("ignore")
            result = runs.RESULTS[ppl](entry, seed, **runs.DEFAULTS | options)
            row["CPU s"] = f"{time.process_time() - begin:.2f}"
            said = runs.claims(result)
            row |= {name: said[name] for name in ("verdict", "gradients")}
            row |= {"claimed": f"{result.bound:.4f}", "error": f"{result.bound_error:.4f}"}
            row |= {"said": said["reason"][:200], **more(result)}
            if type(result.guide).__name__.startswith("Reparametrized"):
                return row
            gaussian = runs.GAUSSIANS[ppl](result)
        with runs.enable_x64(True):
            gaussian = target.in_order(gaussian, [site.name for site in result.guide.sites])
            row["bound"] = f"{target.bound(gaussian).value:.4f}"
    except Exception as error:  # noqa: BLE001  it goes into the table
        row["verdict"], row["said"] = row["verdict"] or "exception", runs.in_words(error)[:200]
    return row


def is_false(row: dict[str, str], rows: list[dict[str, str]]) -> bool:
    """Whether a result is certified, and not so."""
    is_improper = row["model"].startswith(f"{IMPROPER}/") and row["model"] not in PROPER
    if row["verdict"] != "certified" or is_improper:
        return row["verdict"] == "certified"
    column, slack = "bound" if row["bound"] else "claimed", FALSE + 3 * float(row["error"])
    alike = [r for r in rows if r["model"] == row["model"] and r[column]]
    best = max(float(r[column]) for r in alike if bool(r["bound"]) == bool(row["bound"]))
    bounds = float(row[column]), float(row["claimed"])
    return best - bounds[0] > slack or not abs(bounds[0] - bounds[1]) <= slack


def worth(mechanism: str, rows: list[dict[str, str]]) -> str:
    """The cell of a mechanism: with -> without."""
    of = {tuple(row[key] for key in KEYS): row for row in rows}
    off = [row for row in rows if row["mechanism"] == mechanism]
    on = [of["", row["model"], row["ppl"], row["seed"]] for row in off]
    certified = [sum(r["verdict"] == "certified" for r in side) for side in (on, off)]
    false = [sum(is_false(r, rows) for r in side) for side in (on, off)]
    both = [pair for pair in zip(on, off, strict=True) if all(r["gradients"] for r in pair)]
    warm = [pair for pair in both if pair[0]["seed"] == str(SEEDS[-1])]
    gradients = median(float(b["gradients"]) / max(float(a["gradients"]), 1) for a, b in both)
    seconds = median(float(b["CPU s"]) / float(a["CPU s"]) for a, b in warm)
    claims = f"certified {certified[0]} -> {certified[1]}, false {false[0]} -> {false[1]}"
    cell = f"{len(on)} fits: {claims}, gradients * {gradients:.2f}, CPU s * {seconds:.2f}"
    accurate = [sum(r.get("draws") == "accurate" for r in side) for side in (on, off)]
    if any(accurate):
        cell += f", draws accurate {accurate[0]} -> {accurate[1]}"
    lost = [float(a["claimed"]) - float(b["claimed"]) for a, b in both]
    if sum(one > 1 for one in lost):
        cell += f", bounds more than a nat lower {sum(one > 1 for one in lost)}"
    if sum(one < -1 for one in lost):
        cell += f", higher {sum(one < -1 for one in lost)}"
    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mechanism", nargs="*", choices=[[], *MECHANISMS], help="all by default")
    parser.add_argument("--anew", action="store_true", help="also fits that the CSV has")
    options = parser.parse_args()
    has = [] if options.anew else pages.read(NAME)
    done = {tuple(row[key] for key in KEYS) for row in has}
    about = f"`python -m benchmarks ablate`, seeds 0 and 1; {describe()}"
    path = pages.ROOT / "docs" / "mechanisms.md"
    opened(1)
    for mechanism in options.mechanism or MECHANISMS:
        part = PARTS.get(mechanism, "newest")
        more = runs.of_draws if part == "part_1" else lambda _: {}
        for entry in chosen(MECHANISMS[mechanism], part):
            fits = product(("", mechanism), [entry.name], PPLS, map(str, SEEDS))
            with runs.enable_x64(True):
                target = Target(entry)
            for name, _, ppl, seed in [one for one in fits if one not in done]:
                done.add((name, entry.name, ppl, seed))
                row = measured(entry, target, name, ppl, int(seed), more, LIMIT)
                print(*row.values(), flush=True)
                pages.replace(NAME, [row], about, KEYS)
            jax.clear_caches()
        cell = worth(mechanism, pages.read(NAME))
        print(mechanism, cell, flush=True)
        if pages.OUT == pages.FOLDER:
            row = re.compile(rf"^(\|.*\| `{mechanism}=?` \|.*\|) [^|]* \|$", re.M)
            path.write_text(row.sub(rf"\1 {cell} |", path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
