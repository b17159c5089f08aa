"""Reading posteriordb from a directory, and what an entry of the two registries holds.

The directory has `index.csv` (one row a posterior, columns `name`, `data_name`, `min_ess`),
`data/DATA.json.gz` (the data block of a Stan program) and `reference/POSTERIOR.npz` (names
of the parameters as Stan prints them, `beta[1]`; mean and covariance over all reference
draws; every tenth draw).
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Data = dict[str, Any]
Draws = dict[str, np.ndarray]


def unchanged(draws: Draws, data: Data) -> Draws:
    """The model's sites are the parameters that the reference has."""
    return draws


@dataclass(frozen=True)
class Conversion:
    """From the reference's parameters to a model's sites and back.

    Both take draws (by name, the draws along the first axis, then the shape in Stan) and
    the data, and return draws.
    """

    to_sites: Callable[[Draws, Data], Draws] = unchanged
    to_reference: Callable[[Draws, Data], Draws] = unchanged


@dataclass(frozen=True)
class Posterior:
    """A posterior as a model of one PPL.

    :param name: the name in the index, `DATA-MODEL`.
    :param build: the model and its arguments from the data, `build(data) -> (model, args)`.
    :param conversion: from reference draws to draws of the model's sites and back.
    """

    name: str
    build: Callable[[Data], tuple[Callable, tuple]]
    conversion: Conversion = Conversion()

    @property
    def data_name(self) -> str:
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Reference:
    """Reference draws of a posterior, on the scale on which Stan prints them.

    `mean` and `cov` are over all draws, worth `ess` independent ones; `draws` is every tenth.
    """

    parameters: list[str]
    mean: np.ndarray
    cov: np.ndarray
    draws: np.ndarray
    ess: float

    def by_name(self) -> Draws:
        """The draws of each parameter, indexed by draw, then as in Stan."""
        return unflatten(self.parameters, self.draws)


def load_index(data_dir: str | Path) -> dict[str, dict[str, str]]:
    """The rows of the index by name of the posterior."""
    with open(Path(data_dir) / "index.csv", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def load_data(data_dir: str | Path, data_name: str) -> Data:
    """The data of a Stan program, lists as arrays."""
    with gzip.open(Path(data_dir) / "data" / f"{data_name}.json.gz", "rt") as file:
        data = json.load(file)
    return {key: np.asarray(value) for key, value in data.items()}


def load_reference(data_dir: str | Path, name: str) -> Reference:
    """The reference draws of a posterior."""
    with np.load(Path(data_dir) / "reference" / f"{name}.npz") as file:
        return Reference(
            parameters=[str(parameter) for parameter in file["parameters"]],
            mean=file["mean"],
            cov=file["cov"],
            draws=file["draws_thin10"].astype(np.float64),
            ess=float(load_index(data_dir)[name]["min_ess"]),
        )


def unflatten(parameters: list[str], draws: np.ndarray) -> Draws:
    """Columns `beta[1]`, `beta[2]`, ... as one array `beta`."""
    columns: dict[str, dict[tuple[int, ...], int]] = {}
    for column, parameter in enumerate(parameters):
        stem, *indices = re.split(r"[\[\],]+", parameter.rstrip("]"))
        columns.setdefault(stem, {})[tuple(int(index) - 1 for index in indices)] = column
    result = {}
    for stem, by_index in columns.items():
        shape = tuple(max(index) + 1 for index in zip(*by_index, strict=True))
        values = np.empty((len(draws), *shape))
        for index, column in by_index.items():
            values[:, *index] = draws[:, column]
        result[stem] = values
    return result


def flatten(parameters: list[str], draws: Draws) -> np.ndarray:
    """Inverse of `unflatten`: one column for each of `parameters`."""
    columns = []
    for parameter in parameters:
        stem, *indices = re.split(r"[\[\],]+", parameter.rstrip("]"))
        columns.append(draws[stem][:, *(int(index) - 1 for index in indices)])
    return np.stack(columns, axis=1)
