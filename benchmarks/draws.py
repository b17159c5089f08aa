"""Draws of ``fit`` as they come, beside careful references.

    python -m benchmarks --publish draws --data-dir DIR [--only 'posteriordb/*'] [--ppl pyro]

fits the posteriors of posteriordb, whose references are Stan's, the models of real data of the set
``everyday``, those of the first part of ``unseen``, and the curved ridges of the gauntlet.
References are chains of NumPyro's NUTS but for the first set, kept in ``references.json``: four of
3,000 draws, normal effects in plates standardised, a dense mass matrix, a target acceptance of
0.95. Models whose chains disagree (R-hat above 1.01, or fewer than 1,000 effective draws) have no
reference, and no row.

Draws are right if every mean is within 0.1 standard deviations and every standard deviation within
10 %, each with two standard errors of the reference. A limit is exceeded where the true error,
less the same, is larger than the 95 % limit that the result states.

Time: half an hour. Data: posteriordb/*.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.lines import Line2D

from benchmarks import pages
from benchmarks.gauntlet import runs
from benchmarks.models import PPLS, Entry, Ppl, chosen, posteriordb
from benchmarks.models.entries import matches
from benchmarks.time_to_posterior import CHAINS, standardised
from benchmarks.unseen import opened
from examples.machine import describe

NAME, SUMMARY, PICTURE = "draws.csv", "draws_summary.csv", "draws.png"
KEYS = ("model", "ppl", "seed")
REFERENCES = Path(__file__).with_name("references.json")
#: Of the reference chains, their least worth, and the seconds that a fit may take.
LONG, WARM_UP, CAREFUL, AGREE, ENOUGH, LIMIT = 3000, 1000, 0.95, 1.01, 1000, 100.0
PATIENT = 200.0  #: CPU seconds of the chains of a reference
NEAR = 0.1
#: Models whose references take more than two minutes.
LEFT_OUT = ("groups/grouseticks", "groups/contraception", "groups/fatalities")
SETS = {"posteriordb": "posteriordb", "ridges": "curved ridges"}  #: Others are of real data.
OPENED = "real data, unseen"  #: By the rule of draws: the part was opened after it.
Moments = dict[str, np.ndarray]  #: By site: means, sds, and standard errors of both, shape (4, k).


def reference(entry: Entry, folder: Path) -> Moments | None:
    """The moments that draws are compared with, or None if chains disagree."""
    if entry.group == "posteriordb":
        return posteriordb.reference(folder, entry.name)
    known = json.loads(REFERENCES.read_text("utf-8")) if REFERENCES.exists() else {}
    if entry.name not in known:
        known[entry.name] = chains(entry)
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(known.items())]
        REFERENCES.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    found = known[entry.name]
    return found and {name: np.array(values) for name, values in found.items()}


def chains(entry: Entry) -> dict[str, list] | None:
    """Moments by long chains of NumPyro's NUTS."""
    import numpyro
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    ppl = Ppl("numpyro")
    with runs.enable_x64(True):
        model = numpyro.handlers.reparam(entry.model(ppl), standardised)
        kernel = NUTS(model, target_accept_prob=CAREFUL, dense_mass=True)
        sizes = {"num_warmup": WARM_UP, "num_samples": LONG, "num_chains": CHAINS}
        mcmc = MCMC(kernel, **sizes, chain_method="sequential", progress_bar=False)
        try:
            with runs.alarm(PATIENT), numpyro.validation_enabled(False):
                mcmc.run(jax.random.key(0), *entry.args(ppl))
        except Exception as error:  # noqa: BLE001  the next one may have a reference
            print(entry.name, runs.in_words(error), flush=True)
            return None
        draws = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    found = {}
    for name, of_site in draws.items():
        flat = of_site.reshape(*of_site.shape[:2], -1)
        flat = flat[..., np.ptp(flat, (0, 1)) > 0]
        mean, sd = flat.mean((0, 1)), flat.std((0, 1))
        squares = np.square((flat - mean) / sd)
        enough = [effective_sample_size(values) for values in (flat, squares)]
        apart = max(split_gelman_rubin(values).max(initial=1.0) for values in (flat, squares))
        if apart > AGREE or min(n.min(initial=ENOUGH) for n in enough) < ENOUGH:
            return None
        errors = enough[0] ** -0.5, 0.5 * squares.std((0, 1)) * enough[1] ** -0.5
        found[name] = [[float(f"{x:.5g}") for x in row] for row in (mean, sd, *errors)]
    return found


def judged(result: Any, moments: Moments) -> dict[str, str]:
    """Errors of a result's draws, and how many are beyond the limits that it states."""
    accuracy = result.diagnostics.accuracy
    draws = {k: np.asarray(v, float) for k, v in result.sample(4000).items()}
    limits: dict[str, list] = {}
    for name, limit in zip(accuracy.names, accuracy.limits.T, strict=True):
        limits.setdefault(name.partition("[")[0], []).append(limit)
    errors, beyond, count = np.zeros((2, 1)), 0, 0
    for name in moments.keys() & draws.keys():
        flat = draws[name].reshape(len(draws[name]), -1)
        mean, sd, *noise = moments[name]
        flat = flat[:, np.ptp(flat, 0) > 0]
        off = np.abs([(flat.mean(0) - mean) / sd, flat.std(0) / sd - 1.0])
        off = np.maximum(off - 2.0 * np.array(noise or np.zeros((2, 1))), 0.0)
        errors = np.concatenate([errors, off], 1)
        if len(limits.get(name, ())) == off.shape[1]:
            # The draws that are compared have noise of their own, which the limits leave out.
            beyond += int((off > np.array(limits[name]).T + 2.0 / 4000**0.5).sum())
            count += off.size
    mean, sd = errors.max(1)
    return {
        "said": accuracy.verdict,
        "right": "yes" if max(mean, sd) <= NEAR else "no",
        "mean": f"{mean:.2f}",
        "sd": f"{sd:.2f}",
        "limits": str(count),
        "beyond": str(beyond),
        "limit": f"{accuracy.worst_limit:.3f}",
    }


def measured(entry: Entry, moments: Moments, ppl: str, seed: int) -> dict[str, str]:
    """The row of one fit."""
    row = dict(zip(KEYS, (entry.name, ppl, str(seed)), strict=True))
    names = ("verdict", "by", "said", "right", "mean", "sd", "limit", "limits", "beyond", "CPU s")
    row, begin = row | dict.fromkeys(names, ""), time.process_time()
    try:
        with warnings.catch_warnings(), runs.precision(ppl, "float64"), runs.alarm(LIMIT):
            warnings.simplefilter("ignore")
            result = runs.RESULTS[ppl](entry, seed, **runs.DEFAULTS)
            row |= judged(result, moments) | {"verdict": str(result.verdict)}
            row["CPU s"] = f"{time.process_time() - begin:.1f}"
            row["by"] = result.diagnostics.method
    except Exception as error:  # noqa: BLE001  it goes into the table
        row["verdict"] = "exception"
        print(runs.in_words(error))
    return row


def set_of(row: dict[str, str]) -> str:
    """The set of a row, in words."""
    if row["model"] in {one.name for one in chosen(part="part_1")}:
        return OPENED
    return SETS.get(row["model"].partition("/")[0], "real data")


def summary(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Counts by set and package."""
    found = []
    for name, ppl in product(("posteriordb", "real data", OPENED, "curved ridges"), PPLS):
        of = [r for r in rows if r["ppl"] == ppl and set_of(r) == name]
        counts = Counter((r["said"], r["right"]) for r in of)
        limits, beyond = (sum(int(r[k] or 0) for r in of) for k in ("limits", "beyond"))
        found.append(
            {
                "posteriors": name,
                "package": ppl,
                "fits": len(of),
                "right": sum(r["right"] == "yes" for r in of),
                "accurate and right": counts["accurate", "yes"],
                "accurate, wrong": counts["accurate", "no"],
                "doubtful, right": counts["doubtful", "yes"],
                "doubtful, wrong": counts["doubtful", "no"],
                "limits exceeded": f"{beyond} of {limits:,}",
            }
        )
    return found


def picture(rows: list[dict[str, str]]) -> None:
    """The largest true error of each fit by the largest limit that it states."""
    figure, axes = pages.figure(size=(5.5, 4.0))
    axis, top = axes[0, 0], 2.0
    colors = {"posteriordb": "C0", "real data": "C1", OPENED: "C3", "curved ridges": "C2"}
    for row in rows:
        if not row["said"]:
            continue
        error = min(max(float(row["mean"]), float(row["sd"]), 0.005), top)
        of = colors[set_of(row)]
        face = of if row["said"] == "accurate" else "none"
        at = min(float(row["limit"]), top)
        axis.scatter(at, error, 22, marker="os"[row["ppl"] == "pyro"], color=face, edgecolor=of)
    axis.axhline(NEAR, color="0.6", linewidth=0.8)
    axis.axvline(NEAR, color="0.6", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlim=(0.02, 2.5), ylim=(0.004, 2.5))
    axis.set(xlabel="largest 95 % limit that the result states", ylabel="largest true error")
    axis.set_xticks([0.05, 0.1, 0.5, top], ["0.05", "0.1", "0.5", "2, or none"])
    axis.set_yticks([0.01, 0.1, 1.0], ["0.01", "0.1", "1"])
    grey = {"color": "0.4", "linestyle": ""}
    legend = [Line2D([], [], color=of, marker="o", linestyle="") for of in colors.values()]
    legend += [Line2D([], [], marker="os"[i], **grey) for i in (0, 1)]
    legend.append(Line2D([], [], marker="o", markerfacecolor="none", **grey))
    names = [*colors, "NumPyro", "Pyro", "doubtful"]
    figure.legend(legend, names, loc="upper center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.88))
    pages.save(figure, PICTURE)


def entries(folder: Path | None, only: str) -> list[Entry]:
    """Models with a reference, or that may have one."""
    found = posteriordb.entries(folder / "posteriordb") if folder else []
    found += [one for one in chosen("*", "everyday") if one.name not in LEFT_OUT]
    found += [*opened(1), *chosen("ridges/*")]
    return [one for one in found if matches(one.name, only)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="with the folder posteriordb")
    parser.add_argument("--only", default="*", help="patterns of class/model, with commas between")
    parser.add_argument("--ppl", nargs="*", choices=PPLS, default=PPLS)
    parser.add_argument("--seed", nargs="*", type=int, default=[0])
    options = parser.parse_args()
    opened(1)
    if options.data_dir is None:
        print("Without --data-dir: posteriordb is left out; its folder has index.csv, data and")
        print("reference, from github.com/stan-dev/posteriordb.")
    about = f"`python -m benchmarks draws --data-dir DIR`; {describe()}"
    for entry in entries(options.data_dir, options.only):
        moments = reference(entry, options.data_dir and options.data_dir / "posteriordb")
        for ppl, seed in product(options.ppl, options.seed) if moments else ():
            row = measured(entry, moments, ppl, seed)
            print(*row.values(), flush=True)
            pages.replace(NAME, [row], about, KEYS)
        jax.clear_caches()
    rows = pages.read(NAME)
    pages.write(SUMMARY, summary(rows), about)
    picture(rows)


if __name__ == "__main__":
    main()
