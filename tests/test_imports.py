"""Importing a package: what it needs, what it leaves alone, what it says when it fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def _run(code, blocked=()):
    """Run ``code`` in a fresh interpreter that cannot import ``blocked``."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=set(blocked) or "()") + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_ngvi_needs_neither_torch_nor_jax():
    every_module = """
import pkgutil, ngvi
for module in pkgutil.walk_packages(ngvi.__path__, "ngvi."):
    __import__(module.name)
"""
    ppls = {"torch", "pyro", "pyro_ngvi", "jax", "jaxlib", "numpyro", "optax", "numpyro_ngvi"}
    result = _run(every_module, {*ppls, "matplotlib", "arviz"})
    assert result.returncode == 0, result.stderr


def test_pyro_ngvi_needs_no_jax():
    pytest.importorskip("pyro")
    result = _run("import pyro_ngvi", {"jax", "jaxlib", "numpyro", "optax", "numpyro_ngvi"})
    assert result.returncode == 0, result.stderr


def test_numpyro_ngvi_needs_no_torch():
    pytest.importorskip("numpyro")
    result = _run("import numpyro_ngvi", {"torch", "pyro", "pyro_ngvi"})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("missing", ["pyro", "torch"])
def test_without_its_ppl_pyro_ngvi_names_the_extra(missing):
    pytest.importorskip("pyro")
    result = _run("import pyro_ngvi", {missing})
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError")
    assert f"needs {missing}" in last
    assert "ngvi[pyro]" in last


@pytest.mark.parametrize("missing", ["numpyro", "jax", "optax"])
def test_without_its_ppl_numpyro_ngvi_names_the_extra(missing):
    pytest.importorskip("numpyro")
    result = _run("import numpyro_ngvi", {missing})
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError")
    assert f"needs {missing}" in last
    assert "ngvi[numpyro]" in last


def test_importing_numpyro_ngvi_starts_no_jax_backend_and_changes_no_default():
    pytest.importorskip("numpyro")
    result = _run(
        """
import numpy
import numpyro, optax, jax
before = numpy.random.get_state()[1].tolist()
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "numpyro itself started a backend"
import numpyro_ngvi
assert not xla_bridge.backends_are_initialized(), "a backend was started"
assert numpy.random.get_state()[1].tolist() == before
assert jax.numpy.zeros(1).dtype == "float32"
assert xla_bridge.backends_are_initialized()  # so the check above can fail
"""
    )
    assert result.returncode == 0, result.stderr


def test_importing_pyro_ngvi_changes_no_default_and_no_seed():
    pytest.importorskip("pyro")
    result = _run(
        """
import pyro, torch
state, dtype, validation = torch.get_rng_state(), torch.get_default_dtype(), pyro.settings.get()
import pyro_ngvi
assert torch.equal(torch.get_rng_state(), state)
assert torch.get_default_dtype() == dtype
assert pyro.settings.get() == validation
assert len(pyro.get_param_store()) == 0
"""
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["pyro", "numpyro"])
def test_imports_are_free_of_warnings_of_our_own(name):
    pytest.importorskip(name)
    result = _run(
        f"""
import warnings
import {name}
with warnings.catch_warnings():
    warnings.simplefilter("error")
    import {name}_ngvi
""".replace("import numpyro\n", "import numpyro, optax\n")
    )
    assert result.returncode == 0, result.stderr
