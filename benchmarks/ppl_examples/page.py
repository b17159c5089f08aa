"""The rows of ``ppl_examples`` as CSV, and the page that says what is in them."""

from __future__ import annotations

import csv
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("fit", "AutoNormal", "AutoMultivariateNormal")
FIELDS = ("ppl", "file", "model", "latents", "gradients", "converged")
FIELDS += (*(f"{name}{part}" for name in COLUMNS for part in ("", "_error")), "NUTS", "why")
FIELDS += ("seconds", "commit", "claimed")

#: A bound above this is rounding: a Gaussian that ran away in float32, or a stock ELBO that counts
#: the elements of a minibatch's plate for a latent that is outside of it.
NO_BOUND = 1e6

#: Lower or higher is what differs by more nats than these and twice its standard error.
TOLERANCE = 0.1


def lead(row: dict[str, Any]) -> tuple[float, float]:
    """By how much ``fit`` is above the better stock guide, in nats, and the standard error.

    NaN without both.
    """
    stock = [row[n] for n in COLUMNS[1:] if is_bound(row.get(n, {}))]
    best = max(stock, key=lambda cell: cell["bound"], default={"bound": np.nan, "bound_error": 0})
    error = np.hypot(row["fit"].get("bound_error", np.nan), best["bound_error"])
    return row["fit"].get("bound", np.nan) - best["bound"], float(error)


def is_bound(cell: dict[str, Any]) -> bool:
    """Whether a cell holds a bound."""
    return bool(-np.inf < cell.get("bound", np.nan) < NO_BOUND)


def verdict(row: dict[str, Any]) -> str:
    """What a row says of ``fit``."""
    stock = [row.get(name, {}) for name in COLUMNS[1:]]
    survives = any(map(is_bound, stock)) or row.get("NUTS") == {}
    if "error" in row["fit"]:
        return "raises" if survives else "all raise"
    if not any(stock):
        return "not compared"
    difference, error = lead(row)
    if not is_bound(row["fit"]):
        return "lower" if survives else "all raise"
    if np.isnan(difference):
        return "alone"
    if abs(difference) <= TOLERANCE + 2 * error:
        return "equal"
    return "higher" if difference > 0 else "lower"


def why_alone(row: dict[str, Any]) -> str:
    """What kept the stock guides from a bound, in a few words."""
    error = row["AutoNormal"].get("error", "its bound is not finite")
    words = textwrap.shorten(error.replace("|", "/"), 80, placeholder=" ...")
    return f" (AutoNormal: {words})"


def append(
    path: Path, ppl: str, file: str, rows: list[dict[str, Any]], end: list[str], commit: str
) -> None:
    """Write the rows of a file of examples in place of older ones, and what ended it if not its
    ordinary end.
    """
    kept = _lines(path) if path.exists() else []
    kept = [old for old in kept if (old["ppl"], old["file"]) != (ppl, file)]
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
        for row in rows:
            flat: dict[str, Any] = {"ppl": ppl, "file": file, "model": row["model"]}
            for name in COLUMNS:
                cell = row.get(name, {})
                flat[name] = f"{cell['bound']:.2f}" if "bound" in cell else cell.get("error", "")
                flat[f"{name}_error"] = f"{cell.get('bound_error', 0):.3f}"
            fit = row["fit"]
            flat |= {key: fit.get(key, "") for key in ("latents", "gradients", "converged")}
            flat["NUTS"] = row["NUTS"].get("error", "runs") if "NUTS" in row else ""
            flat |= {"seconds": fit.get("seconds", ""), "commit": commit}
            flat["claimed"] = f"{fit['claimed']:.2f}" if "claimed" in fit else ""
            why = " ".join(fit.get("reason", "").split())[:400]  # it may hold a tensor
            writer.writerow(flat | {"why": why})
        for text in end:
            about = {"ppl": ppl, "file": file, "commit": commit}
            writer.writerow(about | {"model": "", "why": text[:250]})


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV as :func:`append` was given them."""
    rows: list[dict[str, Any]] = []
    for flat in _lines(path):
        row: dict[str, Any] = dict(flat)
        for name in COLUMNS:
            try:
                error = float(flat[f"{name}_error"] or 0)
                row[name] = {"bound": float(flat[name]), "bound_error": error}
            except ValueError:
                row[name] = {"error": flat[name]} if flat[name] else {}
        row["NUTS"] = {} if flat["NUTS"] == "runs" else {"error": flat["NUTS"]}
        rows.append(row)
    return rows


def page(path: Path, left_out: dict[str, tuple[str, ...]]) -> str:
    """``docs/ppl_examples.md``.

    :param left_out: patterns of files that are not run, by the reason.
    """
    rows = [row for row in read(path) if row["model"]]
    verdicts = ("higher", "equal", "lower", "alone", "not compared", "raises", "all raise")
    lines = [HEAD, "| | rows | " + " | ".join(verdicts) + " |", "|---" * 9 + "|"]
    for ppl in ("numpyro", "pyro"):
        own = [verdict(row) for row in rows if row["ppl"] == ppl]
        counts = " | ".join(str(own.count(name)) for name in verdicts)
        lines.append(f"| {ppl} | {len(own)} | {counts} |")
    lines += ["", BODY, "| example | model | latents | `fit` | lead | |", "|---" * 6 + "|"]
    for row in rows:
        bound, difference, said = row["fit"].get("bound"), lead(row)[0], verdict(row)
        if row["converged"] == "False" and said not in ("not compared", "all raise"):
            said += ", not converged"
        said += why_alone(row) if said.startswith(("alone", "all raise")) else ""
        lines.append(
            f"| {row['ppl']} {row['file'].removeprefix('examples/')} | `{row['model']}` "
            f"| {row['latents']} | {'' if bound is None else f'{bound:.2f}'} "
            f"| {'' if np.isnan(difference) else f'{difference:+.2f}'} | {said} |"
        )
    ended = [row for row in read(path) if not row["model"]]
    lines += ["", TAIL, "| example | why |", "|---|---|"]
    lines += [f"| {r['ppl']} {r['file'].removeprefix('examples/')} | {r['why']} |" for r in ended]
    lines += ["", "Not run:", "", "| why | files |", "|---|---|"]
    lines += [f"| {why} | {', '.join(sorted(names))} |" for why, names in left_out.items()]
    return "\n".join(lines)


HEAD = """# The examples of Pyro and NumPyro

*Figures of `fit` on this page are of the search before the redesign.*

Generated by `python -m benchmarks ppl_examples`, which says how: scripts and notebooks of both
libraries up to their inference, and their models through `fit` and through stock guides with Adam,
in the PPL's default precision. Data are random numbers of the examples' shapes where those would be
downloaded. In `benchmarks/ppl_examples/rows.csv` stand the bounds with their standard errors,
the bound that `fit` claims, the CPU seconds that it had (one seed, 0), and the commit it ran at.

Of rows with a commit from `6220013` on `fit` was stopped 5 s after its first step (a few rows that
ended lower had 10 to 15 s), the three rates of a stock guide had as long together, at least 4 s,
and all bounds are means over up to 1000 fresh draws of the PPL's own ELBO, or of the density that
NUTS has where latents are enumerated. In other rows `fit` had from 2.5 to 30 s and the bound is
the one that it claims. Where a lead is in the hundreds, both have barely begun, and it says who
is faster.

`tracking_1d` cannot run unless its discrete latents are enumerated, which NUTS does if told
`max_plate_nesting=2`; `AutoNormal` fails as `fit` does. Of `hmm_enum`'s `model_1` the density that
`fit` has is NUTS's, and that of sums over all states by hand (but for log 2 at each masked step of
two states). `gaussian_shells` has rings, and optima on them at -4.90 and -5.25: an earlier run
claimed the lower; in 20 fits since (seeds 0 to 16, single and double) none ended there.

A network's weights moved once in 40 draws (`nnx_example`, `model_5` and `model_7` of `hmm`: 143 to
979 nats lower) before they came first, with a step for each pair of draws on one minibatch.
`model_6` of `hmm` has model parameters only, hundreds of logits that begin at random: stock
guides have the best of three such starts, and Adam at a rate of 0.1, where `fit` has 0.03; with
15 s for both it was 40 nats lower as well (standard error 9).
`stable`, `jit`, `lda`, `FactorMuE` and `prodlda`, one group of whose `2 d + 1` gradients is tens of
steps of a stock guide, were 256 to 6,317 nats lower before independent latents and few fresh draws
came first there. Rows of commit `18b4093` were measured on a loaded machine, where `fit` and stock
guides both come less far in 5 s of CPU time: on a quiet one `easyguide` was 25 nats lower, with the
same bound of `fit`.

Of rows with a commit from `b7e968b` on, all who fit a model of Pyro begin with the same weights of
its torch modules. In rows before that, stock guides went on from those that `fit`, and Adam at the
rates before, had left there.
"""

BODY = f"""*higher*, *equal*, *lower*: the bound of `fit` beside the better of `AutoNormal` and
`AutoMultivariateNormal` (which is left out beyond 2,000 latents) in as much CPU time, by more than
{TOLERANCE} nats and twice the standard error of the difference. *alone*: no stock guide gets
through, and why. *all raise*: nothing does, NUTS included; a bound that is not finite counts as
raised. *not compared*: an old row, to see whether `fit` raises. *raises*: `fit` does, where a stock
guide or NUTS gets through.
"""

TAIL = """What ended otherwise:
"""
