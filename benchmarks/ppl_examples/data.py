"""Data for the examples of Pyro and NumPyro without downloads: random, of the same shapes."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import os
import sys
import urllib.request
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


STATES = ["ME", "VT", "NH", "MA", "RI", "CT", "LA", "MS", "AL", "GA", "SC"]
STATES += [f"S{i}" for i in range(40)]


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
    if name == "collections_email.csv":
        data = {"email": rng.integers(0, 2, 100), "credit_limit": rng.normal(1200, 300, 100)}
        payments = 600 + 10 * data["email"] + 0.1 * data["credit_limit"] + rng.normal(0, 20, 100)
        return pandas.DataFrame({"payments": payments, "risk_score": rng.random(100), **data})
    if name == "snp500.csv.bz2":
        prices = np.exp(5 + np.cumsum(0.01 * rng.standard_t(3, 201)))
        return pandas.DataFrame({"Date": [f"day {i}" for i in range(201)], "Close": prices})
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
        years = {"time": np.arange(300), "sunspot.year": rng.gamma(2.0, 40.0, 300)}
        return pandas.DataFrame(years)
    if name == "guo_qpcr.csv":
        return pandas.DataFrame(
            rng.standard_normal((40, 8)),
            index=rng.choice(
                ["1", "2", "4", "8", "16", "32 TE", "32 ICM", "64 PE", "64 TE", "64 EPI"], 40
            ),
            columns=[f"g{i}" for i in range(8)],
        )
    if name == "electoral_college_votes.pickle":
        return pandas.DataFrame({"votes": rng.integers(3, 20, 51)}, index=STATES)
    if name == "us_presidential_election_data_historical.pickle":
        votes = rng.integers(400, 600, (51, 20))
        names = pandas.MultiIndex.from_product([range(1976, 2016, 4), ("Democrat", "Republican")])
        return pandas.DataFrame(votes, index=STATES, columns=names)
    if name == "us_presidential_election_data_test.pickle":
        return pandas.DataFrame(rng.integers(400, 600, (51, 2)), index=STATES)
    raise FileNotFoundError(f"no simulated data for {name}")


def simulated_music() -> dict[str, dict[str, Any]]:
    """Sequences of chords, as ``polyphonic_data_loader.load_data`` has them."""
    import torch

    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 9, 12)
    notes = (rng.random((12, 8, 88)) < 0.05) * (np.arange(8)[:, None] < lengths[:, None, None])
    split = {
        "sequences": torch.as_tensor(notes, dtype=torch.get_default_dtype()),
        "sequence_lengths": torch.as_tensor(lengths),
    }
    return {name: dict(split) for name in ("train", "test", "valid")}


def simulated_rides() -> dict[str, Any]:
    """Counts by the hour between four stations, as ``load_bart_od`` has them."""
    import datetime

    import torch

    rng = np.random.default_rng(0)
    rate = 20 * np.exp(np.sin(np.arange(24 * 7 * 120) * 2 * np.pi / 24))
    return {
        "stations": ["12TH", "EMBR", "SFIA", "OAKL"],
        "start_date": datetime.datetime(2019, 1, 1),
        "counts": torch.as_tensor(rng.poisson(rate[:, None, None], (len(rate), 4, 4))).float(),
    }


def simulated_lineages() -> dict[str, Any]:
    """Counts of lineages by month and place, as ``load_nextstrain_counts`` has them."""
    import datetime

    import torch

    rng = np.random.default_rng(0)
    lineages = ["B.1.1.7", "Q.1", "B.1.617.2", "AY.1", "AY.2", "B.1"]
    places = ["Massachusetts", "New York", "Connecticut", "New Hampshire", "Vermont"]
    places += ["New Jersey", "Maine", "Rhode Island", "Pennsylvania"]
    growth = np.linspace(-1, 1, 6) * np.arange(26)[:, None, None] / 9
    counts = torch.as_tensor(rng.poisson(20 * np.exp(growth), (26, 9, 6))).float()
    index = counts.nonzero(as_tuple=True)
    return {
        "counts": counts,
        "features": torch.as_tensor(rng.integers(0, 2, (6, 8))).float(),
        "lineages": lineages,
        "locations": [f"USA / {place}" for place in places],
        "mutations": [f"S:{i}" for i in range(8)],
        "start_date": datetime.datetime(2019, 12, 1),
        "time_step_days": 28,
        "sparse_counts": {
            "index": torch.stack(index),
            "value": counts[index],
            "total": counts.sum(-1),
        },
    }


def simulated_news(**options: Any) -> Any:
    """Documents of forty words, as ``sklearn.datasets.fetch_20newsgroups`` has them."""
    import sklearn.utils

    rng = np.random.default_rng(0)
    words = np.array([f"word{i:02d}" for i in range(80)])
    documents = [" ".join(rng.choice(words, 40, replace=False)) for _ in range(60)]
    return sklearn.utils.Bunch(data=documents, filenames=np.arange(60))


def simulated_credit(**options: Any) -> Any:
    """Columns of numbers and of categories, as ``ucimlrepo.fetch_ucirepo`` has them."""
    import pandas

    rng = np.random.default_rng(0)
    numbers = {f"x{i}": rng.standard_normal(100) for i in range(7)}
    kinds = {f"c{i}": np.array(["a", "b", "c"], object)[rng.integers(3, size=100)] for i in (0, 1)}
    targets = pandas.DataFrame({"class": rng.integers(1, 3, 100)})
    features = pandas.DataFrame(numbers | kinds).astype({name: object for name in kinds})
    return mock.MagicMock(data=mock.MagicMock(features=features, targets=targets))


def simulated_array(path: Any, *args: Any, **kwargs: Any) -> np.ndarray:
    """Numbers in place of a file's: faces for the deep exponential family, authors of speeches."""
    rng = np.random.default_rng(0)
    name = os.path.basename(str(path))
    if name == "faces_training.csv":
        return rng.poisson(3.0, (10, 4096)).astype(float)
    if name == "author_indices.npy":
        return np.arange(600) % 12
    if name == "counts.npz":
        import scipy.sparse

        return scipy.sparse.csr_matrix(rng.poisson(0.5, (600, 40)).astype(np.float32))
    raise FileNotFoundError(f"no simulated data for {name}")


def simulated_images() -> type:
    """A class in place of torchvision's ``MNIST``: noise, of which few are visited."""
    import torch

    class MNIST(torch.utils.data.Dataset):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            generator = torch.Generator().manual_seed(0)
            # The semi-supervised VAE sets 10,000 aside.
            self.data = torch.randint(256, (10_100, 28, 28), generator=generator).byte()
            self.targets = torch.arange(10_100) % 10

        def __len__(self) -> int:
            return min(16, len(self.data))

        def __getitem__(self, index: int) -> tuple:
            return self.data[index, None].float() / 255, int(self.targets[index])

    return MNIST


def bessel(spec: Any) -> Any:
    """What the examples take from TensorFlow Probability, as all of its modules."""
    import jax.numpy as jnp

    def bessel_ive(order: Any, z: Any) -> Any:
        angle = (jnp.arange(256) + 0.5) * np.pi / 256
        order, z = jnp.asarray(order)[..., None], jnp.asarray(z)[..., None]
        return jnp.mean(jnp.exp(z * jnp.cos(angle) - jnp.abs(z)) * jnp.cos(order * angle), -1)

    module = mock.MagicMock(name=spec.name)
    module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
    module.math.bessel_ive, module.jax = bessel_ive, module
    return module


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
        "visdom",
        "wget",
        "tensorflow_probability",
        "scanpy",
        "scvi",
        "ucimlrepo",
        "corner",
        "music21",
    )

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        if spec.name.startswith("tensorflow_probability"):
            return bessel(spec)
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        module.fetch_ucirepo = simulated_credit
        return module

    def exec_module(self, module: Any) -> None:
        pass


class Address(io.BytesIO):
    """What ``urlopen`` returns: nothing, with a name."""

    def __init__(self, url: Any) -> None:
        super().__init__(b"")
        self.url = str(url)

    def __str__(self) -> str:
        return self.url


def loader(*args: Any, batch_size: int = 1, **kwargs: Any) -> Any:
    """In place of ``get_data_loader``."""
    import torch
    from pyro.contrib.examples import util

    return torch.utils.data.DataLoader(util.MNIST(), batch_size=min(batch_size, 16))


def is_filled(path: Any) -> bool:
    return os.path.exists(str(path)) and os.path.getsize(str(path)) > 0


def without_downloads(ppl: str) -> None:
    """Replace what reads data from afar, and what draws."""
    os.environ["MPLBACKEND"] = "Agg"
    sys.meta_path.append(Absent())
    if ppl == "numpyro":
        from numpyro.examples import datasets

        datasets._load = lambda dset, num_datapoints=-1: simulated_dataset(dset)
        if hasattr(datasets, "load_bart_od"):
            datasets.load_bart_od = lambda: simulated_dataset(datasets.BART)
        import jax

        devices = jax.devices
        jax.numpy.load = simulated_array
        jax.devices = lambda kind=None: devices()  # one tutorial asks for a GPU by name
        with contextlib.suppress(ImportError):
            import scipy.sparse

            scipy.sparse.load_npz = simulated_array
    else:
        import torchvision
        from pyro.contrib.examples import bart, nextstrain, polyphonic_data_loader, util

        util.MNIST = torchvision.datasets.MNIST = simulated_images()
        util.transforms = None
        util.get_data_loader = loader
        bart.load_bart_od = simulated_rides
        nextstrain.load_nextstrain_counts = simulated_lineages
        polyphonic_data_loader.load_data = lambda dataset: simulated_music()
    with contextlib.suppress(ImportError):
        import sklearn.datasets

        sklearn.datasets.fetch_20newsgroups = simulated_news
    np.loadtxt = simulated_array
    urllib.request.urlretrieve = lambda url, path=None, *args: (path, None)
    urllib.request.urlopen = lambda url, *args, **kwargs: Address(url)
    with contextlib.suppress(ImportError):
        import pandas

        local = pandas.read_csv

        def read_csv(path: Any, *args: Any, **kwargs: Any) -> Any:
            return local(path, *args, **kwargs) if is_filled(path) else simulated_frame(path)

        pandas.read_csv = read_csv
        pandas.read_pickle = simulated_frame
        pandas.read_stata = lambda path, *args, **kwargs: simulated_frame(path)
