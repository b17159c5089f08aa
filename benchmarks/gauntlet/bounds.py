"""The best bounds known, ``best.json``, and the command that looks for better ones."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from numpyro_ngvi.tracing.compilation import enable_x64

from .models import Entry, chosen
from .rows import DEFAULT, in_words
from .target import Bound, Gaussian, Target

BEST_FILE = Path(__file__).parent / "best.json"
#: Those of models on which the search was not developed; written by a command of their own.
UNSEEN_FILE = Path(__file__).parents[1] / "unseen_models" / "best.json"


def best_file(family: str) -> Path:
    """Where the best bounds known of a family are."""
    return BEST_FILE if family == DEFAULT else BEST_FILE.with_stem(f"best_{family}")


def read_best(family: str = DEFAULT) -> dict[str, Bound]:
    """The best bounds known of a family, by model."""
    known = _known(best_file(family))
    if family == DEFAULT:
        known |= _known(UNSEEN_FILE)
    return {name: Bound(v["bound"], v["error"]) for name, v in known.items()}


def _known(file: Path) -> dict[str, dict[str, Any]]:
    return json.loads(file.read_text()) if file.exists() else {}


def best(args: argparse.Namespace) -> None:
    """The command: search, and write down what is better than what was known."""
    from . import mean_field, search

    find = {DEFAULT: search.best, "diagonal": mean_field.best}.get(args.family)
    for entry in chosen(args.models, args.which):
        known = _known(best_file(args.family)).get(entry.name)
        if known is not None and not args.again and args.keep is None:
            continue
        begin = time.perf_counter()
        with enable_x64(True):
            target = Target(entry)
            others = list(kept(entry, args.keep, args.family)) if args.keep else []
            if find is None or (known is not None and not args.again):
                found = [(target.bound(gaussian), "fit") for gaussian in others]
            else:
                try:
                    found = [find(target, others, args.seed)[:2]]
                except Exception as error:  # noqa: BLE001  the next one may be found
                    print(f"{entry.name:34s} {in_words(error)}")
                    continue
        if known is not None:
            found.append((Bound(known["bound"], known["error"]), known["by"]))
        if not found:
            continue
        bound, by = max(found, key=lambda f: f[0].value)
        seconds = time.perf_counter() - begin
        print(f"{entry.name:34s} {bound.value:.3f}±{bound.error:.3f} by {by}, {seconds:.0f} s")
        _write_down(args.family, entry.name, bound, by)
        jax.clear_caches()


def _write_down(family: str, name: str, bound: Bound, by: str) -> None:
    known = _known(best_file(family))  # which another process may have changed
    known[name] = {"bound": round(bound.value, 4), "error": round(bound.error, 4), "by": by}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(known.items())]
    best_file(family).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def keep(folder: Path, row: dict[str, Any], gaussian: Gaussian) -> None:
    """Save where a fit ended, for :func:`kept`."""
    names = (row[name] for name in ("model", "ppl", "dtype", "seed", "family"))
    file = folder / f"{'-'.join(map(str, names))}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    params = {f"param {name}": value for name, value in gaussian.params.items()}
    np.savez(file, mean=gaussian.mean, factor=gaussian.factor, **params)


def kept(entry: Entry, folder: Path, family: str) -> Iterator[Gaussian]:
    """Where fits of a model ended."""
    for file in sorted(folder.glob(f"{entry.name}-*-{family}.npz")):
        with np.load(file) as arrays:
            params = {n.partition(" ")[2]: v for n, v in arrays.items() if n.startswith("param ")}
            yield Gaussian(arrays["mean"], arrays["factor"], params)
