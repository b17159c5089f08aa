"""Whatever is public and can be called has an example, which runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

#: In the order of the reference; the examples go on from that of ``fit``.
MAIN = (
    *("fit", "fit_density", "FitOptions", "FitResult", "FitResult.sample_groups"),
    *("FitResult.sample", "FitResult.with_draws", "FitResult.predictive", "FitResult.summary"),
    *("FitResult.to_arviz", "FitResult.loo", "FitResult.influence", "FitResult.sites"),
    *("FitResult.update", "FitResult.without", "FitResult.nuts", "FitResult.whitened_density"),
    *("FitResult.posterior_of", "FitResult.plot", "FitResult.save", "FitResult.load"),
    *("NaturalGaussianGuide", "ReparametrizedGaussianGuide", "conjugate.ConjugateGuide"),
    *("NaturalELBO", "SVI", "tempered"),
    *("BLR", "Snngm", "IVON", "optim.VOGN", "optim.VON", "optim.Nagm"),
    *("families.CovarianceCholesky", "families.PrecisionCholesky", "families.Diagonal"),
    *("families.BlockDiagonal", "families.SparsePrecision", "families.LowRankPrecision"),
    *("families.MatrixNormal", "families.Mixture", "families.Family"),
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _example(package, name):
    """The examples of a public name, with the package's names as their globals."""
    thing = package
    for part in name.split("."):
        thing = getattr(thing, part)
    return doctest.DocTestParser().get_doctest(inspect.getdoc(thing), {}, name, None, None)


def _run(test, names):
    test.globs = names
    outcome = doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False)
    assert not outcome.failed
    assert outcome.attempted


@pytest.fixture(scope="module", params=["numpyro", "pyro"])
def package(request):
    pytest.importorskip(request.param)
    for part in ("conjugate", "optim"):
        importlib.import_module(f"{request.param}_ngvi.{part}")
    return importlib.import_module(f"{request.param}_ngvi")


@pytest.fixture(scope="module")
def names(package):
    """The public names, and what the example of ``fit`` adds to them."""
    names = {key: getattr(package, key) for key in package.__all__}
    _run(_example(package, "fit"), names)
    return names


def test_every_public_name_has_an_example(package):
    parts = {"": package.__all__, "optim.": package.optim.__all__}
    parts["families."] = package.families.__all__
    parts["conjugate."] = package.conjugate.__all__
    found = {part + name for part, listed in parts.items() for name in listed}
    found -= {"families", *(f"optim.{name}" for name in package.__all__)}
    methods = inspect.getmembers(package.FitResult, callable)
    found |= {f"FitResult.{name}" for name, _ in methods if not name.startswith("_")}
    assert found == set(MAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_the_example_of_a_docstring_runs(name, package, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run(_example(package, name), dict(names))
