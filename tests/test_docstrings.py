"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

#: Whose docstring has an example. They go on from that of ``fit``.
MAIN = (
    "BLR",
    "FitResult.load",
    "IVON",
    "NaturalELBO",
    "NaturalGaussianGuide",
    "ReparametrizedGaussianGuide",
    "Snngm",
    "optim.VOGN",
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _example(package, name):
    """The examples of a public name, with the package's names as their globals."""
    thing = package
    for part in name.split("."):
        thing = getattr(thing, part)
    return doctest.DocTestParser().get_doctest(thing.__doc__, {}, name, None, None)


def _run(test, names):
    test.globs = names
    outcome = doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False)
    assert not outcome.failed
    assert outcome.attempted > 2


@pytest.fixture(scope="module", params=["numpyro", "pyro"])
def package(request):
    pytest.importorskip(request.param)
    return importlib.import_module(f"{request.param}_ngvi")


@pytest.fixture(scope="module")
def names(package):
    """The public names, and what the example of ``fit`` adds to them."""
    names = {key: getattr(package, key) for key in package.__all__}
    _run(_example(package, "fit"), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_the_example_of_a_docstring_runs(name, package, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run(_example(package, name), dict(names))
