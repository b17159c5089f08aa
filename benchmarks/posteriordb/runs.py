"""One run of one method on one posterior, and the folder that keeps runs as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .bounds import Bound
from .careful import Best
from .scores import Score


@dataclass(frozen=True)
class Run:
    """One run.

    :param method: `fit` or `Adam RATE`.
    :param evaluations: gradients of one draw until the run ended; a Hessian counts as `d`.
    :param seconds: until the run ended.
    :param mean: in the coordinates of `Target`, as `cov`.
    :param converged: what the run says of itself; None if it says nothing.
    :param steps: when a run with a history was looked at, with its bounds and seconds by then.
    """

    ppl: str
    posterior: str
    method: str
    seed: int
    evaluations: int
    seconds: float
    mean: list[float]
    cov: list[list[float]]
    score: Score
    converged: bool | None = None
    reason: str = ""
    steps: list[int] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)

    def reached(self, bound: float) -> tuple[float, float]:
        """Evaluations and seconds until the run was above a bound for good; or infinity.

        A run without history is looked at when it ends.
        """
        if not self.steps:
            inside = self.score.bound >= bound
            return (self.evaluations, self.seconds) if inside else (np.inf, np.inf)
        below = np.flatnonzero(~(np.array(self.bounds) >= bound))
        first = below[-1] + 1 if len(below) else 0
        if first == len(self.steps):
            return np.inf, np.inf
        return self.steps[first], self.step_seconds[first]


class Cache:
    """Runs and best bounds in a folder, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _run_file(self, ppl: str, posterior: str, method: str, seed: int) -> Path:
        return self.folder / ppl / method.replace(" ", "-") / f"{posterior}-{seed}.json"

    def has_run(self, ppl: str, posterior: str, method: str, seed: int) -> bool:
        return self._run_file(ppl, posterior, method, seed).exists()

    def save_run(self, run: Run) -> None:
        file = self._run_file(run.ppl, run.posterior, run.method, run.seed)
        _write(file, dataclasses.asdict(run))

    def runs(self, ppl: str = "*", posterior: str = "*") -> Iterator[Run]:
        """All runs, or those of one PPL or on one posterior."""
        for file in sorted(self.folder.glob(f"{ppl}/*/{posterior}-*.json")):
            values = json.loads(file.read_text())
            yield Run(**values | {"score": Score(**values["score"])})

    def _best_file(self, posterior: str) -> Path:
        return self.folder / "best" / f"{posterior}.json"

    def save_best(self, posterior: str, best: Best) -> None:
        values = {
            "bound": list(best.bound),
            "mean": best.mean.tolist(),
            "cov": best.cov.tolist(),
            "by_start": best.by_start,
        }
        _write(self._best_file(posterior), values)

    def best(self, posterior: str) -> Best | None:
        """What the careful run found; None if there was none."""
        file = self._best_file(posterior)
        if not file.exists():
            return None
        values = json.loads(file.read_text())
        mean, cov = np.array(values["mean"]), np.array(values["cov"])
        return Best(Bound(*values["bound"]), mean, cov, values["by_start"])


def _write(file: Path, values: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(values))
    partial.replace(file)
