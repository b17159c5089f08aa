"""Fixtures. Nothing global outlives a test: dtypes, seeds and parameter stores are restored."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests import backends
from tests.reference import FAMILIES


@pytest.fixture(autouse=True)
def _fresh_state():
    """Seeds, and an empty parameter store if the test may use Pyro."""
    random.seed(0)
    np.random.seed(0)
    try:
        import pyro
    except ImportError:
        yield
        return
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=backends.BACKENDS)
def backend(request):
    """Either package, in float64."""
    adapter = backends.load(request.param)
    with adapter.float64():
        yield adapter


@pytest.fixture
def numpyro_backend():
    adapter = backends.load("numpyro")
    with adapter.float64():
        yield adapter


@pytest.fixture
def pyro_backend():
    adapter = backends.load("pyro")
    with adapter.float64():
        yield adapter


@pytest.fixture(params=FAMILIES)
def family_name(request):
    return request.param
