"""Data for the examples of Pyro and NumPyro without downloads: random, of the same shapes."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any
from unittest import mock

import numpy as np


def simulated_dataset(dset: Any) -> dict[str, tuple]:
    """Random numbers of the shapes of NumPyro's data, with fewer rows."""
    rng = np.random.default_rng(0)
    float32 = np.float32
    train: tuple
    if dset.name == "baseball":
        train = (
            np.stack([np.full(18, 45), rng.integers(7, 19, 18)], 1),
            [f"P {i}" for i in range(18)],
        )
        return {"train": train, "test": (train[0] * 8, train[1])}
    if dset.name == "bart":
        return {
            "stations": [f"s{i}" for i in range(5)],
            "counts": rng.poisson(3.0, (500, 5, 5)),
            "start_date": None,
        }  # type: ignore[dict-item]
    if dset.name == "covtype":
        train = (rng.standard_normal((500, 54)).astype(float32), rng.integers(1, 8, 500))
    elif dset.name == "dipper_vole":
        histories = (rng.random((60, 7)) < 0.4).astype(int)
        histories[:, 0] = 1
        return {"dipper": (histories, rng.integers(0, 2, 60)), "vole": (histories,)}
    elif dset.name == "mnist":
        train = (rng.random((256, 28, 28)).astype(float32), rng.integers(0, 10, 256))
    elif dset.name == "SP500":
        dates = [f"{1 + i % 12}/{1 + i % 28}/2008" for i in range(200)]
        train = (dates, 0.01 * rng.standard_normal(200))
    elif dset.name == "ucbadmit":
        applications = rng.integers(20, 800, 12)
        train = (
            np.repeat(np.arange(6), 2),
            np.tile([1, 0], 6),
            applications,
            rng.binomial(applications, 0.4),
        )
    elif dset.name == "lynxhare":
        train = (
            np.arange(1900, 1921),
            np.exp(3 + 0.7 * np.sin(np.arange(21)[:, None] * 0.6 + np.array([0.0, 1.0]))),
        )
    elif dset.name == "jsb_chorales":
        lengths = rng.integers(20, 60, 30)
        train = (lengths, (rng.random((30, 60, 88)) < 0.05).astype("int32"))
        return {name: train for name in ("train", "test", "valid")}
    elif dset.name == "higgs":
        train = (rng.standard_normal((500, 28)), rng.integers(0, 2, 500))
    elif dset.name == "9mers":
        return {aa: rng.uniform(-3, 3, (400, 2)) for aa in "ACDEFGHIKLMNPQRSTVWY"}  # type: ignore[misc]
    elif dset.name == "mortality":
        cells = np.array([(a, s, t) for a in range(4) for s in range(6) for t in range(5)])
        population = rng.integers(100, 1000, len(cells))
        train = (
            cells[:, 0],
            cells[:, 1] // 3,
            cells[:, 1],
            cells[:, 2],
            rng.binomial(population, 0.1),
            population,
        )
    else:
        raise FileNotFoundError(f"no simulated data for {dset.name}")
    return {"train": train, "test": train}


def simulated_frame(path: str) -> Any:
    """A table with the columns that the tutorials read from addresses."""
    import pandas

    rng, name = np.random.default_rng(0), os.path.basename(str(path))

    def normal(*names: str, rows: int = 80) -> dict[str, np.ndarray]:
        return {name: rng.standard_normal(rows) for name in names}

    if name == "rugged_data.csv":
        data = {
            **normal("rugged"),
            "cont_africa": rng.integers(0, 2, 80),
            "rgdppc_2000": np.exp(8 + rng.standard_normal(80)),
        }
        return pandas.DataFrame({"isocode": ["x"] * 80, "country": ["x"] * 80, **data})
    if name == "WaffleDivorce.csv":
        data = normal("Marriage", "MedianAgeMarriage", "Divorce", rows=50)
        return pandas.DataFrame(
            {
                "Location": ["x"] * 50,
                "Loc": ["x"] * 50,
                "Marriage SE": np.ones(50),
                "Divorce SE": np.ones(50),
                **data,
                "WaffleHouses": rng.integers(0, 300, 50),
                "South": rng.integers(0, 2, 50),
            }
        )
    if name == "train.csv":
        age = np.where(rng.random(200) < 0.2, np.nan, rng.uniform(1, 80, 200))
        return pandas.DataFrame(
            {
                "PassengerId": np.arange(200),
                "Survived": rng.integers(0, 2, 200),
                "Pclass": rng.integers(1, 4, 200),
                "Name": rng.choice(["A, Mr. B", "A, Mrs. B", "A, Miss. B", "A, Master. B"], 200),
                "Sex": rng.choice(["male", "female"], 200),
                "Age": age,
                "SibSp": rng.integers(0, 3, 200),
                "Parch": rng.integers(0, 3, 200),
                "Fare": rng.uniform(5, 100, 200),
                "Embarked": rng.choice(["S", "C", "Q"], 200),
                "Cabin": ["c"] * 200,
                "Ticket": ["t"] * 200,
            }
        )
    if name == "lynx.csv":
        return pandas.DataFrame(
            {"time": np.arange(1821, 1935), "value": np.exp(6 + np.sin(np.arange(114) * 0.65))}
        )
    if name == "births_usa_1969.csv":
        dates = pandas.date_range("1969-01-01", periods=400)
        return pandas.DataFrame(
            {
                "year": dates.year,
                "month": dates.month,
                "day": dates.day,
                "births": rng.normal(9000, 500, 400),
                "day_of_year": dates.dayofyear,
                "day_of_week": dates.dayofweek,
                "id": np.arange(400),
                "day_of_year2": dates.dayofyear,
            }
        )
    if name == "osic_pulmonary_fibrosis.csv":
        rows, weeks = 90, np.tile(np.arange(0, 54, 6), 10)
        return pandas.DataFrame(
            {
                "Patient": np.repeat([f"P{i}" for i in range(10)], 9),
                "Weeks": weeks,
                "FVC": 2500
                + 300 * np.repeat(rng.standard_normal(10), 9)
                - 4 * weeks
                + 100 * rng.standard_normal(rows),
                "Percent": 70.0,
                "Age": 65,
                "Sex": "Male",
                "SmokingStatus": "Ex-smoker",
            }
        )
    if name == "wells.dat":
        return pandas.DataFrame(
            {
                "switch": rng.integers(0, 2, 200),
                "arsenic": rng.gamma(2.0, 0.8, 200),
                "dist": rng.gamma(1.5, 30.0, 200),
                "assoc": rng.integers(0, 2, 200),
                "educ": rng.integers(0, 17, 200),
            }
        )
    if name == "fish.dta":
        return pandas.DataFrame(
            {
                "count": rng.poisson(1.0, 100),
                "livebait": rng.integers(0, 2, 100),
                "camper": rng.integers(0, 2, 100),
                "persons": rng.integers(1, 5, 100),
                "child": rng.integers(0, 4, 100),
            }
        )
    if name == "EfronMorrisBB.txt":
        return pandas.DataFrame(
            {
                "FirstName": ["A"] * 18,
                "LastName": [f"B{i}" for i in range(18)],
                "At-Bats": 45,
                "Hits": rng.integers(7, 19, 18),
                "BattingAverage": 0.3,
                "SeasonAt-Bats": 360,
                "SeasonHits": rng.integers(60, 150, 18),
                "SeasonAverage": 0.3,
            }
        )
    if name == "prep_seal_data.csv":
        rows = 120
        data = normal("x", rows=rows)
        return pandas.DataFrame(
            {
                "ID": np.repeat([1, 2, 3], 40),
                "sex": np.repeat(["M", "F", "M"], 40),
                "step": rng.gamma(2.0, 1.0, rows),
                "angle": rng.uniform(-3, 3, rows),
                "omega": rng.beta(2, 2, rows),
                **data,
            }
        )
    if name == "SN_y_tot_V2.0.csv":
        return pandas.DataFrame({0: np.arange(300), 1: rng.gamma(2.0, 40.0, 300)})
    if name == "guo_qpcr.csv":
        return pandas.DataFrame(
            rng.standard_normal((40, 8)),
            index=rng.choice(
                ["1", "2", "4", "8", "16", "32 TE", "32 ICM", "64 PE", "64 TE", "64 EPI"], 40
            ),
            columns=[f"g{i}" for i in range(8)],
        )
    raise FileNotFoundError(f"no simulated data for {name}")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that draw or load, where they are not installed: anything can be had from them."""

    NAMES = (
        "matplotlib",
        "seaborn",
        "arviz",
        "jaxns",
        "torchvision",
        "graphviz",
        "sklearn",
        "skimage",
        "PIL",
        "observations",
        "IPython",
        "ipywidgets",
        "matplotlib_inline",
        "tqdm",
        "preliz",
        "wordcloud",
        "flowMC",
        "blackjax",
        "tabulate",
    )

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module: Any) -> None:
        pass


def without_downloads(ppl: str) -> None:
    """Replace what reads data from afar, and what draws."""
    os.environ["MPLBACKEND"] = "Agg"
    sys.meta_path.append(Absent())
    if ppl == "numpyro":
        from numpyro.examples import datasets

        datasets._load = lambda dset, num_datapoints=-1: simulated_dataset(dset)
        if hasattr(datasets, "load_bart_od"):
            datasets.load_bart_od = lambda: simulated_dataset(datasets.BART)
    with contextlib.suppress(ImportError):
        import pandas

        local = pandas.read_csv

        def read_csv(path: Any, *args: Any, **kwargs: Any) -> Any:
            return (
                local(path, *args, **kwargs) if os.path.exists(str(path)) else simulated_frame(path)
            )

        pandas.read_csv = read_csv
        pandas.read_stata = lambda path, *args, **kwargs: simulated_frame(path)
