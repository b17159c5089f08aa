"""Fixtures. Nothing global outlives a test: dtypes, seeds and parameter stores are restored."""

from __future__ import annotations

import random
import resource
import sys

import numpy as np
import pytest

from tests.ppl import PPLS, load
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


#: JAX keeps every program that it compiled; thousands of tests would fill the memory.
MAX_KIB = 3_000_000


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    yield
    if "jax" in sys.modules and _resident_kib() > MAX_KIB:
        import jax

        jax.clear_caches()


def _resident_kib() -> float:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1024
    except OSError:  # no such file outside Linux; the peak will do
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=PPLS)
def ppl(request):
    """The adapter of either PPL, in float64."""
    adapter = load(request.param)
    with adapter.float64():
        yield adapter


#: The older name.
backend = ppl


@pytest.fixture
def numpyro_backend():
    adapter = load("numpyro")
    with adapter.float64():
        yield adapter


@pytest.fixture
def pyro_backend():
    adapter = load("pyro")
    with adapter.float64():
        yield adapter


@pytest.fixture(params=FAMILIES)
def family_name(request):
    return request.param
