"""What a type checker tells a user: wrong calls are flagged, and right ones are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ngvi.estimators import choice as estimators
from ngvi.inference.options import EFFORTS, Effort
from ngvi.latents.choice import ALIASES, FamilyName

ROOT = Path(__file__).parents[1]
RIGHT = [
    "fit(model, x, family='diagonal', effort='quick', callback=lambda s, b, d: None)",
    "fit(model, x, family=families.LowRankPrecision(rank=3), time_limit=None)",
    "fit(model, x, family=families.Diagonal, num_components='auto', curvature='stein')",
    "FitResult.load('f', model).verdict == 'certified'",
    "SVI(model, guide, BLR(), NaturalELBO(4, 'gauss_newton'))",
    "fit(model, x).plot().savefig('f.png')",
    "families.MatrixNormal()",
]
WRONG = [
    "fit(model, x, effort='fast')",
    "fit(model, x, tolerance='0.1')",
    "fit(model, x, time_limit='1m')",
    "fit(model, x, family='lowrank')",
    "fit(model, x, family=families)",
    "fit(model, x, curvature='mean')",
    "fit(model, x, num_components='3')",
    "fit(x, x)",
    "result.sample('w')",
    "result.summry()",
    "result.diagnostics.khat",
    "result.plot().show_all()",
    "result.verdict == 'converged'",
    "NaturalGaussianGuide(model, 'diag')",
    "NaturalELBO(10, 'hesian')",
    "SVI(model, guide, BLR, NaturalELBO())",
    "families.Diagonaal()",
]
HEAD = """
import numpy as np
from {package} import BLR, SVI, FitResult, NaturalELBO, NaturalGaussianGuide, families, fit
def model(x: np.ndarray) -> None: ...
x = np.zeros(3)
guide, result = NaturalGaussianGuide(model), fit(model, x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["pyro_ngvi", "numpyro_ngvi"])
def test_a_type_checker_tells_wrong_calls_from_right_ones(package, tmp_path):
    pytest.importorskip("mypy")
    head = HEAD.format(package=package)
    (tmp_path / "user.py").write_text("\n".join([head, *RIGHT, *WRONG, ""]))
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--strict-equality"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--disable-error-code=import-untyped", *options, "user.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    flagged = {int(line) for line in re.findall(r"^user\.py:(\d+): error", found.stdout, re.M)}
    first = len(head.splitlines()) + len(RIGHT) + 1
    assert flagged == set(range(first + 1, first + len(WRONG) + 1)), found.stdout + found.stderr


def test_the_words_of_types_are_those_of_the_tables(ppl):
    assert get_args(Effort) == tuple(EFFORTS)
    assert set(get_args(estimators.Curvature)) == set(estimators.CURVATURES)
    assert set(get_args(estimators.CurvatureOfFit)) == set(estimators.CURVATURES_OF_FIT)
    known = ppl.module("families.registry").REGISTRY.families
    assert set(get_args(FamilyName)) == {"auto", *ALIASES, *known}
