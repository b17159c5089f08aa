"""What it costs until every mean is within 0.1 sd and every sd within 10 %.

By what: the Gaussian of ``fit``, ``result.sample()`` as it comes, corrected draws, NUTS on from the
fit (``result.nuts``), and stock NUTS, which begins as NumPyro begins it. Of all numbers of the
sites that are named, as the model has them, and of posteriordb all that the reference has. Errors
are those of 8,000 draws of the Gaussian, 4,000 others, and four chains of NUTS of 2,000 draws each,
of posteriordb 1,000. Of NUTS the table has the gradients after which the errors stay within both
limits, those of fit and warm-up among them, and that part of the processor's seconds; three values
of the log density count as a gradient. The truth is exact where the model has it, in posteriordb
its own draws, and otherwise stock NUTS, four chains of 10,000 draws with effects that are
standardised and a target acceptance of 0.95.

    python -m benchmarks posterior_accuracy [--data-dir DIR] [--models funnel]

writes ``docs/benchmarks/posterior_accuracy.csv`` and its picture: rows that are asked for, and
keeps the others. Without a folder those of posteriordb are left out.

Time: 40 minutes. Data: posteriordb.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np

from benchmarks import pages
from examples.machine import describe

from .models import NAMES, SMALL
from .ways import FIT_AND_NUTS, NEVER, STOCK, WAYS, Rows

TABLE, PICTURE = "posterior_accuracy.csv", "posterior_accuracy.png"


def costs(part: str | None = None) -> dict[str, dict[str, float]]:
    """Gradients by way and posterior; infinite where it is never right.

    :param part: of the table; all of it by default.
    """
    found: dict[str, dict[str, float]] = {by: {} for by in WAYS}
    for row in pages.read(TABLE):
        if part in (None, row["set"]):
            text = row["gradients"].replace(",", "")
            found[row["by"]][row["posterior"]] = np.inf if text == NEVER else float(text)
    return found


def picture() -> None:
    """Which part of the posteriors is right after so many gradients, by way."""
    figure, axes = pages.figure(size=(6.4, 3.6))
    ax = axes[0, 0]
    for by, found in costs().items():
        values = np.array(list(found.values()))
        right = np.sort(values[np.isfinite(values)])
        heights = np.arange(1, len(right) + 1) / max(len(values), 1)
        ax.step(right, heights, where="post", label=f"{by} ({len(right)} of {len(values)})")
    ax.set_xscale("log")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("gradients until means are within 0.1 sd and sds within 10 %")
    ax.set_ylabel("part of the posteriors")
    ax.legend(frameon=False, loc="upper left", fontsize=7)
    pages.save(figure, PICTURE)


def summary(part: str) -> list[str]:
    """How many are right, how many wrong in silence, and the cost beside stock NUTS's."""
    rows, found = pages.read(TABLE), costs(part)
    lines = []
    for by in WAYS[:-1]:
        own = found[by]
        right = sum(np.isfinite(list(own.values())))
        silent = sum(
            row["by"] == by
            and row["set"] == part
            and row["gradients"] == NEVER
            and "warns" not in row["remark"]
            and "not trusted" not in row["remark"]
            for row in rows
        )
        # A chain that never gets there counts as infinite.
        both = [(own[k], v) for k, v in found[STOCK].items() if k in own]
        parts = [mine / v if np.isfinite(mine) else np.inf for mine, v in both]
        median = float(np.median(parts)) if parts else np.nan
        lines.append(
            f"{part}, {by}: {right} of {len(own)} right, {silent} wrong in silence, "
            f"{median:.3f} of stock NUTS's gradients in the median"
        )
    slowest: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["set"] == part and row["effective of 1,000 gradients"]:
            value = float(row["effective of 1,000 gradients"])
            slowest.setdefault(row["posterior"], {})[row["by"]] = value
    ratios = [v[FIT_AND_NUTS] / v[STOCK] for v in slowest.values() if len(v) == 2]
    if ratios:
        lines.append(
            f"{part}: effective draws per gradient, {FIT_AND_NUTS} by {STOCK}: median "
            f"{np.median(ratios):.1f}, least {min(ratios):.2f}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models", nargs="*", choices=NAMES)
    parser.add_argument("--by", nargs="*", default=list(WAYS), choices=WAYS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    command = "python -m benchmarks posterior_accuracy --data-dir DIR"
    about = f"`{command}`, seed 0, double precision, {describe()}"
    for name in options.models or (NAMES if options.data_dir else SMALL):
        of_one = Rows(name, options.data_dir)
        if set(options.by) != {STOCK}:
            of_one.of_fit(options.by)
        if STOCK in options.by:
            of_one.of_stock()
        for row in of_one.rows:
            print(row, flush=True)
        pages.replace(TABLE, of_one.rows, about, ("posterior", "by"))
    picture()
    print("\n".join(line for part in ("small", "posteriordb") for line in summary(part)))


if __name__ == "__main__":
    main()
