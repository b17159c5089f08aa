"""Fixtures. Nothing global outlives a test: dtypes, seeds and parameter stores are restored."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import gc
import importlib.metadata
import os
import random
import re
import resource
import sys
import tempfile

import numpy as np
import pytest

from tests.ppl import PPLS, load
from tests.reference import FAMILIES

#: Most of the time of JAX's tests is the compiler's, for problems too small to notice how well it
#: does. With these flags it takes half as long. A flag that a version of XLA does not know ends the
#: process, so that they are given only to a version that they were tried with.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
)
XLA_FLAGS_OF = {
    "0.7.": (*XLA_FLAGS, "--xla_cpu_use_fusion_emitters=false"),
    "0.10.": (*XLA_FLAGS, "--xla_cpu_use_fusion_emitters=false"),
    "0.12.": XLA_FLAGS,  # there is one kind of emitters
}

#: Every third program is one that another test, or another process, has compiled already. They
#: share a directory, which the process that made it removes at its end; workers find its name in
#: their environment. ``JAX_COMPILATION_CACHE_DIR=.cache/jax make test`` keeps it for the next run.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _programs = tempfile.TemporaryDirectory(prefix="ngvi-jax-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

#: Where in the source each operation of a program was written, which only a profiler asks for.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

#: The compiler's threads each keep memory of their own; workers, which begin after this, do not.
os.environ.setdefault("MALLOC_ARENA_MAX", "1")


def jaxlib() -> str:
    """Its minor version, as ``0.10.``; nothing where it is not installed."""
    try:
        return re.match(r"\d+\.\d+\.", importlib.metadata.version("jaxlib"))[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


if jaxlib() in XLA_FLAGS_OF:
    _flags = *XLA_FLAGS_OF[jaxlib()], os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys(" ".join(_flags).split()))


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(config, items):
    """``@pytest.mark.fast_in_numpyro("auto-*", ...)``: of a claim on both packages, each case of
    which JAX compiles for a second, the cases that NumPyro's fast tests have, or none. The others
    are slow ones there; Pyro's fast tests have them all. Names are without the PPL's.
    """
    names, found = {}, {}
    for item in items:
        mark = item.get_closest_marker("fast_in_numpyro")
        case, is_numpyro = re.subn("^numpyro(-|$)|-numpyro$", "", item.callspec.id if mark else "")
        if is_numpyro:
            test = f"{item.path}::{item.originalname}"
            fast = {name for name in mark.args if fnmatch.fnmatchcase(case, name)}
            names[test] = set(mark.args)
            found.setdefault(test, set()).update(fast)
            if not fast:
                item.add_marker(pytest.mark.slow)
    are_some = any("::" in argument for argument in config.args)
    if not are_some and not config.getoption("lf", False):
        unknown = {test: names[test] - found[test] for test in names if names[test] - found[test]}
        if unknown:
            raise pytest.UsageError(f"fast_in_numpyro names cases that are not there: {unknown}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Imports make objects by the hundred thousand and no garbage: looking for it took a third."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """A garbage collection goes over all modules and every program that JAX has traced."""
    if "jax" in sys.modules and jaxlib() == "0.10.":  # later ones do so themselves
        _share_compiler_context()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def _share_compiler_context():
    """One MLIR context for the programs of a process, where JAX sets up a new one for each.

    That takes 5 ms, of the 23 that a program of one operation takes in all, as most of the tests'
    are. It changes no program.
    """
    from jax._src.interpreters import mlir

    new = getattr(mlir, "make_ir_context", None)
    if new is None:  # it is not a public name
        return

    def make():
        global _context
        if mlir.ir.Context.current is not None:
            return new()  # an operation runs while another program is lowered
        _context = _context or new()
        return _context

    mlir.make_ir_context = make


_context = None


@pytest.fixture(autouse=True)
def _fresh_state():
    """Seeds, and an empty parameter store if the test may use Pyro."""
    random.seed(0)
    np.random.seed(0)
    try:
        import pyro
        import torch
    except ImportError:
        yield
        return
    # torch.manual_seed keeps a picture of the stack for devices that are not there, a millisecond.
    torch.manual_seed(0) if torch.cuda.is_available() else torch.default_generator.manual_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


#: JAX keeps every program that it compiled, of two megabytes or so; thousands of tests would fill
#: the memory. A process forgets them beyond this size, or if that does not help, in larger steps.
MAX_BYTES, GROWTH = 1_450_000_000, 300_000_000

_limit = MAX_BYTES


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    global _limit, _context
    yield
    if "jax" in sys.modules and _resident_bytes() > _limit:
        import jax

        jax.clear_caches()
        _context = None  # it keeps the constants of all programs
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # the C library of Linux
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        _limit = max(MAX_BYTES, _resident_bytes() + GROWTH)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # no such file outside Linux; the peak will do
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


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
