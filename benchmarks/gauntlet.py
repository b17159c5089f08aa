"""`fit` on models unlike those it was tuned on: what it claims, and what is so.

    python -m benchmarks gauntlet run --ppl numpyro --out fits.csv
    python -m benchmarks gauntlet check
    python -m benchmarks gauntlet best
    python -m benchmarks gauntlet stock fits.csv --out stock.csv
    python -m benchmarks gauntlet table fits.csv stock.csv

`run` fits models of `gauntlet_models` and writes a line of CSV for each fit, beside what the
fit says the bound of the Gaussian that it returned, from fresh draws and the PPL's own density.
`best` looks for the best bounds by long runs from many starts, which share no code with `fit`
(`gauntlet_models.search`). `stock` runs AutoMultivariateNormal with Adam, at the best
of three rates, for as many gradients as `fit` took. `table` sums up files of `run`, by class.

`--family diagonal` is for mean fields, with best bounds of their own
(`gauntlet_models.mean_field`).

A third of the models are held out: to tune the search on the others keeps the promise honest.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from numpyro_ngvi.tracing.compilation import enable_x64

from .gauntlet_models import ENTRIES, Entry, chosen
from .gauntlet_models.ppl import PPLS, Ppl
from .gauntlet_models.target import Bound, Gaussian, Target

BEST_FILE = Path(__file__).parent / "gauntlet_models" / "best.json"

FIELDS = ("class", "model", "ppl", "dtype", "seed", "family", "dim", "converged", "reason",
          "claimed_bound", "claimed_error", "claimed_gap", "gradients", "steps", "seconds",
          "true_bound", "true_error", "gap", "starts", "exception")  # fmt: skip

#: What the best bounds known are of: Gaussians over all latents as they are.
OPTIONS: dict[str, Any] = {"progress_bar": False, "reparametrize": False}

#: The family that a fit takes unasked: dense, for so few latents.
DEFAULT = "auto"

#: Seconds after which a fit is given up.
TIME_LIMIT = 240

# -- runs ---------------------------------------------------------------------------------


def fit_numpyro(entry: Entry, seed: int, family: str) -> tuple[Any, Gaussian, list[str]]:
    """The result, its Gaussian, and the order of its sites."""
    from numpyro_ngvi import fit

    ppl = Ppl("numpyro")
    key = jax.random.key(seed)
    result = fit(entry.model(ppl), *entry.args(ppl), rng_key=key, family=family, **OPTIONS)
    own = {k: np.asarray(v, float) for k, v in result.params.items() if not hasattr(v, "dim")}
    return result, Gaussian(*moments(result.posterior, np.asarray), own), _sites(result)


def fit_pyro(entry: Entry, seed: int, family: str) -> tuple[Any, Gaussian, list[str]]:
    """The result, its Gaussian, and the order of its sites."""
    import pyro

    from pyro_ngvi import fit

    ppl = Ppl("pyro")
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    result = fit(entry.model(ppl), *entry.args(ppl), family=family, **OPTIONS)
    names = {site.name for site in result.guide.sites}
    own = {
        k: v.numpy(force=True).astype(float)
        for k, v in result.params.items()
        if "." not in k and k not in names
    }
    return (
        result,
        Gaussian(*moments(result.posterior, lambda x: x.numpy(force=True)), own),
        _sites(result),
    )


FITS: dict[str, Callable] = {"numpyro": fit_numpyro, "pyro": fit_pyro}


def moments(posterior: Any, numpy: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Mean and factor of a PPL's Gaussian, in double precision."""
    if hasattr(posterior, "scale_tril"):
        return numpy(posterior.loc).astype(float), numpy(posterior.scale_tril).astype(float)
    mean = numpy(posterior.mean).astype(float)
    if hasattr(posterior, "covariance_matrix"):
        return mean, np.linalg.cholesky(numpy(posterior.covariance_matrix).astype(float))
    return mean, np.diag(numpy(posterior.variance).astype(float) ** 0.5)  # independent


def _sites(result: Any) -> list[str]:
    return [site.name for site in result.guide.sites]


def _give_up(*_: Any) -> None:
    raise TimeoutError(f"more than {TIME_LIMIT} s")


def fit_row(
    entry: Entry,
    target: Target,
    ppl: str,
    dtype: str,
    seed: int,
    keep: Path | None = None,
    family: str = DEFAULT,
) -> dict[str, Any]:
    """One fit and what it was worth.

    :param keep: a folder for the Gaussian, from which `best` may go on.
    """
    row: dict[str, Any] = dict.fromkeys(FIELDS, "")
    row |= {"class": entry.group, "model": entry.name, "ppl": ppl, "dtype": dtype, "seed": seed}
    row["family"] = family
    signal.signal(signal.SIGALRM, _give_up)
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings(), precision(ppl, dtype):
            warnings.simplefilter("ignore")  # that it has not converged is in the table
            signal.alarm(TIME_LIMIT)
            try:
                result, gaussian, names = FITS[ppl](entry, seed, family)
            finally:
                signal.alarm(0)
            starts = str(getattr(result, "starts", ""))
            claimed = re.search(r"(?:within|estimated) ([-+.0-9e]+) nats", result.reason)
            row |= {
                "dim": len(gaussian.mean),
                "converged": bool(result.converged),
                "reason": result.reason,
                "claimed_bound": float(result.bound),
                "claimed_error": float(result.bound_error),
                "claimed_gap": claimed.group(1) if claimed else "",
                "gradients": result.num_evaluations,
                "steps": result.num_steps,
                "seconds": round(result.seconds, 2),
                "starts": re.sub(r"\s+", " ", starts)[:2000],
            }
        with enable_x64(True):
            gaussian = target.in_order(gaussian, names)
            row["true_bound"], row["true_error"] = target.bound(gaussian)
    except Exception as error:  # noqa: BLE001  it goes into the table
        row["exception"] = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:400]
        row["seconds"] = row["seconds"] or round(time.perf_counter() - begin, 2)
        return row
    if (best := read_best(family).get(entry.name)) is not None:
        row["gap"] = best.value - row["true_bound"]
    if keep is not None:
        file = keep / f"{entry.name}-{ppl}-{dtype}-{seed}-{family}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        own = {f"param {n}": v for n, v in gaussian.params.items()}
        np.savez(file, mean=gaussian.mean, factor=gaussian.factor, **own)
    return row


def precision(ppl: str, dtype: str) -> Any:
    """A context in which floats are of this type."""
    if ppl == "numpyro":
        return enable_x64(dtype == "float64")
    import torch

    torch.set_default_dtype(getattr(torch, dtype))
    return enable_x64(True)


def best_file(family: str) -> Path:
    """Where the best bounds known of a family are."""
    return BEST_FILE if family == DEFAULT else BEST_FILE.with_stem(f"best_{family}")


def read_best(family: str = DEFAULT) -> dict[str, Bound]:
    """The best bounds known of a family, by model."""
    file = best_file(family)
    if not file.exists():
        return {}
    return {k: Bound(v["bound"], v["error"]) for k, v in json.loads(file.read_text()).items()}


def run(args: argparse.Namespace) -> None:
    done = {tuple(row[f] for f in FIELDS[1:6]) for row in read([args.out])}
    is_new = not args.out.exists()
    with args.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        for entry in chosen(args.models, args.which):
            target = None
            for seed in args.seeds:
                if (entry.name, args.ppl, args.dtype, str(seed), args.family) in done:
                    continue
                with enable_x64(True):
                    target = target or Target(entry)
                options = args.ppl, args.dtype, seed, args.keep, args.family
                row = fit_row(entry, target, *options)
                writer.writerow(row)
                file.flush()
                print(in_a_line(row), flush=True)
            jax.clear_caches()


def in_a_line(row: dict[str, Any]) -> str:
    head = f"{row['model']:34s} {row['ppl']:8s}{row['dtype']:8s}{row['seed']:>2}"
    if row["exception"]:
        return f"{head}  {row['seconds']}s EXCEPTION {row['exception'][:200]}"
    gap = f"{row['gap']:.3f}" if row["gap"] != "" else "?"
    return (
        f"{head} d={row['dim']:<3} {'conv' if row['converged'] else 'NOT '} "
        f"claimed {row['claimed_bound']:.3f} true {row['true_bound']:.3f}±{row['true_error']:.3f} "
        f"gap {gap} grads {row['gradients']} steps {row['steps']} {row['seconds']}s "
        f"| {row['reason'][:110]}"
    )


# -- the best bounds known ----------------------------------------------------------------


def best(args: argparse.Namespace) -> None:
    from .gauntlet_models import mean_field, search

    searched = {DEFAULT: search.best, "diagonal": mean_field.best}.get(args.family)
    file = best_file(args.family)
    for entry in chosen(args.models, args.which):
        known = read_best(args.family).get(entry.name)
        if known is not None and not args.again and args.keep is None:
            continue
        begin = time.perf_counter()
        with enable_x64(True):
            target = Target(entry)
            others = list(kept(entry, args.keep, args.family)) if args.keep else []
            if searched is None or (known is not None and not args.again):
                found = [(target.bound(g), "fit") for g in others]
            else:
                try:
                    found = [searched(target, others, args.seed)[:2]]
                except Exception as error:  # noqa: BLE001  the next one may be found
                    print(f"{entry.name:34s} {type(error).__name__}: {str(error)[:300]}")
                    continue
        if known is not None:
            found.append((known, json.loads(file.read_text())[entry.name]["by"]))
        if not found:
            continue
        bound, by = max(found, key=lambda f: f[0].value)
        seconds = time.perf_counter() - begin
        print(f"{entry.name:34s} {bound.value:.3f}±{bound.error:.3f} by {by}, {seconds:.0f} s")
        all_known = json.loads(file.read_text()) if file.exists() else {}
        rounded = {"bound": round(bound.value, 4), "error": round(bound.error, 4), "by": by}
        all_known[entry.name] = rounded
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(all_known.items())]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        jax.clear_caches()


def kept(entry: Entry, folder: Path, family: str) -> Iterator[Gaussian]:
    """Where runs of `fit` ended."""
    for file in sorted(folder.glob(f"{entry.name}-*-{family}.npz")):
        with np.load(file) as arrays:
            own = {n.partition(" ")[2]: v for n, v in arrays.items() if n.startswith("param ")}
            yield Gaussian(arrays["mean"], arrays["factor"], own)


# -- the baseline -------------------------------------------------------------------------


def stock(args: argparse.Namespace) -> None:
    from .gauntlet_models.stock import stock_runs

    entries = {entry.name: entry for entry in chosen(args.models, args.which)}
    done = {(row["model"], row["seed"]) for row in read([args.out])}
    is_new = not args.out.exists()
    with args.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        for fitted in read([args.file]):
            entry = entries.get(fitted["model"])
            key = fitted["model"], fitted["seed"]
            if entry is None or key in done or not fitted["gradients"]:
                continue
            done.add(key)
            row: dict[str, Any] = dict.fromkeys(FIELDS, "")
            row |= {"class": entry.group, "model": entry.name, "ppl": "stock", "dtype": "float64"}
            row["seed"] = fitted["seed"]
            begin = time.perf_counter()
            with enable_x64(True):
                try:
                    ends = stock_runs(entry, int(fitted["gradients"]), int(fitted["seed"]))
                    target = Target(entry)
                    bounds = [(target.bound(gaussian), rate) for rate, gaussian in ends]
                    bound, rate = max(bounds, key=lambda b: b[0].value)
                    row |= {"true_bound": bound.value, "true_error": bound.error}
                    row |= {"gradients": fitted["gradients"], "reason": f"Adam {rate:g}"}
                except Exception as error:  # noqa: BLE001  it goes into the table
                    row["exception"] = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:400]
            row["seconds"] = round(time.perf_counter() - begin, 2)
            writer.writerow(row)
            file.flush()
            print(
                f"{entry.name:34s}{row['seed']:>2} fit {float(fitted['true_bound'] or 'nan'):.3f} "
                f"stock {row['true_bound']} {row['reason']}{row['exception']}",
                flush=True,
            )
            jax.clear_caches()


# -- both PPLs ----------------------------------------------------------------------------


def check(args: argparse.Namespace) -> None:
    from .gauntlet_models.check import log_densities

    for entry in chosen(args.models, args.which):
        try:
            with precision("pyro", "float64"):
                pairs = [log_densities(entry, seed) for seed in range(3)]
        except Exception as error:  # noqa: BLE001  the next one may be right
            print(f"{entry.name:34s} {type(error).__name__}: {str(error)[:300]}")
            continue
        furthest = max(abs(a - b) / (1 + abs(a)) for a, b in pairs)
        print(f"{entry.name:34s} {'agree' if furthest < 1e-6 else f'DIFFER: {pairs}'}")


# -- the table ----------------------------------------------------------------------------


def read(files: Iterable[Path]) -> Iterator[dict[str, str]]:
    """Rows of files of `run`."""
    for file in files:
        if file.exists():
            with file.open(newline="") as opened:
                yield from csv.DictReader(opened)


def with_gaps(rows: Iterable[dict[str, str]]) -> list[dict[str, Any]]:
    """Rows of `fit` with their gaps: to the best that is known, from the list or from the rows
    themselves, and to the stock run of the same number of gradients.
    """
    rows = list(rows)
    families = {_family(row) for row in rows}
    best = {(f, name): bound.value for f in families for name, bound in read_best(f).items()}
    for row in rows:
        if row["true_bound"]:
            key = _family(row), row["model"]
            best[key] = max(best.get(key, -np.inf), float(row["true_bound"]))
    stock_bounds = {
        (row["model"], row["seed"]): float(row["true_bound"])
        for row in rows
        if row["ppl"] == "stock" and row["true_bound"]
    }
    found = []
    for row in rows:
        if row["ppl"] == "stock":
            continue
        bound = float(row["true_bound"] or -np.inf)
        key = _family(row), row["model"]
        of_stock = stock_bounds.get((row["model"], row["seed"]), -np.inf)
        if key[0] != DEFAULT:
            of_stock = -np.inf  # it is dense
        listed = [float(x) for x in re.findall(r"bound=(-?[0-9][0-9.e+-]*),", row["starts"])]
        gap = best.get(key, -np.inf) - bound
        unsaid = gap - max([0, *(x - float(row["claimed_bound"]) for x in listed)])
        gaps = {"gap": gap, "unsaid": unsaid, "below_stock": of_stock - bound}
        found.append({**row, **gaps, "claims": row["converged"] == "True"})
    return found


def _family(row: dict[str, str]) -> str:
    return row.get("family") or DEFAULT


def is_covered(row: dict[str, Any]) -> bool:
    """Whether the true bound is within two standard errors of the one that the fit says."""
    claimed, error = float(row["claimed_bound"]), float(row["claimed_error"])
    allowed = 1.96 * np.hypot(error, float(row["true_error"]))
    return bool(abs(claimed - float(row["true_bound"])) <= allowed + 1e-6 * abs(claimed))


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """One line of the table."""
    ended = [row for row in rows if not row["exception"]]
    claims = [row for row in ended if row["claims"]]

    def median(field: str) -> str:
        return f"{np.median([float(row[field]) for row in ended]):,.0f}" if ended else "-"

    return [
        str(len({row["model"] for row in rows})),
        str(len(rows)),
        str(len(claims)),
        str(sum(row["gap"] > 0.1 for row in claims)),
        str(sum(row["gap"] > 1 and row["unsaid"] > 1 for row in claims)),
        str(sum(row["gap"] > 1 for row in ended)),
        str(sum(row["below_stock"] > 0.1 for row in ended)),
        str(len(rows) - len(ended)),
        f"{sum(map(is_covered, ended))}/{len(ended)}",
        median("gradients"),
        median("seconds"),
    ]


#: False claims of more than a nat are those of which ``result.starts`` says nothing; intervals are
#: those of the bound that hold, at 95%.
COLUMNS = ("class", "models", "runs", "claims", "false > 0.1", "false > 1", "miss > 1",
           "below stock", "exceptions", "intervals", "gradients", "seconds")  # fmt: skip


def table(args: argparse.Namespace) -> None:
    names = {entry.name for entry in chosen(args.models, args.which)}
    rows = with_gaps(row for row in read(args.files) if row["model"] in names)
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * (len(COLUMNS) - 1))
    groups = list(dict.fromkeys(entry.group for entry in ENTRIES.values()))
    for group in sorted(groups, key=lambda g: g == "plain"):
        if some := [row for row in rows if row["class"] == group]:
            print("| " + " | ".join([group, *summary(some)]) + " |")
    print("| " + " | ".join(["all", *summary(rows)]) + " |")
    for held_out in (False, True):
        if some := [row for row in rows if ENTRIES[row["model"]].held_out == held_out]:
            name = "held out" if held_out else "visible"
            print("| " + " | ".join([name, *summary(some)]) + " |")
    if args.failures:
        for row in rows:
            if row["exception"] or row["gap"] > 1 or (row["claims"] and row["gap"] > 0.1):
                print(failure(row))


def failure(row: dict[str, Any]) -> str:
    head = f"{row['model']} {row['ppl']} {row['dtype']} {row['seed']}:"
    if row["exception"]:
        return f"{head} {row['exception']}"
    said = "CLAIMS" if row["claims"] else "says"
    return (
        f"{head} {row['gap']:.2f} nats below, {row['gradients']} gradients; {said}: {row['reason']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--models", default="*", help="patterns of class/model, by commas")
    common.add_argument(
        "--which",
        choices=("visible", "held_out", "all", "later", "latest", "reread"),
        default="visible",
    )
    of_family = argparse.ArgumentParser(add_help=False)
    of_family.add_argument("--family", default=DEFAULT, help="of the Gaussians, by name")
    one = commands.add_parser("run", parents=[common, of_family], help="fit models")
    one.add_argument("--ppl", choices=PPLS, default="numpyro")
    one.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    one.add_argument("--seeds", type=int, nargs="+", default=[0])
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--keep", type=Path, help="a folder for the Gaussians")
    one.set_defaults(function=run)
    three = commands.add_parser(
        "best", parents=[common, of_family], help="search for the best bounds"
    )
    three.add_argument("--keep", type=Path, help="a folder with Gaussians of `run`")
    three.add_argument(
        "--again", action="store_true", help="also where one is known: the better of both is kept"
    )
    three.add_argument("--seed", type=int, default=0)
    three.set_defaults(function=best)
    four = commands.add_parser("stock", parents=[common], help="run the stock guide with Adam")
    four.add_argument("file", type=Path, help="of `run`: gives the numbers of gradients")
    four.add_argument("--out", type=Path, required=True)
    four.set_defaults(function=stock)
    five = commands.add_parser(
        "check", parents=[common], help="compare Pyro's models and NumPyro's"
    )
    five.set_defaults(function=check)
    two = commands.add_parser("table", parents=[common], help="sum up files of `run`")
    two.add_argument("files", type=Path, nargs="+")
    two.add_argument("--failures", action="store_true", help="also list what went wrong")
    two.set_defaults(function=table)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
