"""The rows of ``ppl_examples`` as CSV, and the page that says what is in them."""

from __future__ import annotations

import csv
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
    if "error" in row["fit"]:
        survives = any(map(is_bound, stock)) or row.get("NUTS") == {}
        return "raises" if survives else "all raise"
    if not any(stock):
        return "not compared"
    difference, error = lead(row)
    if not is_bound(row["fit"]) and any(map(is_bound, stock)):
        return "lower"
    if np.isnan(difference):
        return "alone"
    if abs(difference) <= TOLERANCE + 2 * error:
        return "equal"
    return "higher" if difference > 0 else "lower"


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
            writer.writerow(flat | {"why": fit.get("reason", "")})
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
        if row["converged"] == "False" and said != "not compared":
            said += ", not converged"
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

Generated by `examples/benchmarks/ppl_examples.py`, which says how: scripts and notebooks of both
libraries up to their inference, and their models through `fit` and through stock guides with Adam,
in the PPL's default precision. In `ppl_examples.csv`, beside that script, stand the CPU seconds
that `fit` had for each row (one seed, 0), and the commit it ran at: files were run one by one, on
a machine with other work, so that rows are of several commits. Data are random numbers of the
examples' shapes where those would be downloaded. Where a lead is in the hundreds the stock guides
had time for a few steps only, and it says little; nor does a row in which `fit` had 2.5 s and was
hundreds below: NumPyro's clock had compilation in it, and thousands of latents have barely begun.

`tracking_1d` cannot run unless its discrete latents are enumerated, which NUTS does if told
`max_plate_nesting=2`; `AutoNormal` fails as `fit` does. Of `hmm_enum`'s `model_1` the density that
`fit` has is NUTS's, and that of sums over all states by hand (but for log 2 at each masked step of
two states); whether the stock guide's bound, above `fit`'s, is one was not measured again.
"""

BODY = f"""*higher*, *equal*, *lower*: the bound of `fit` beside the better of `AutoNormal` and
`AutoMultivariateNormal` at as many gradients or in as much CPU time, by more than {TOLERANCE} nats
and twice the standard error of the difference. *alone*: no stock guide gets through. *not
compared*: `fit` took three steps, or had a second, to see whether it raises. *raises*: `fit` does,
where a stock guide or NUTS gets through.
"""

TAIL = """What ended otherwise:
"""
