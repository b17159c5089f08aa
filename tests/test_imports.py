"""Importing a package: what it needs, what it leaves alone, what it says when it fails.

An interpreter takes seconds to import a PPL: there is one for each set of modules that it may not
import, and it prints all that is claimed of it, by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PYRO = {"torch", "pyro", "pyro_ngvi"}
NUMPYRO = {"jax", "jaxlib", "numpyro", "optax", "numpyro_ngvi"}

PROLOGUE = """
import json, sys, warnings
class Blocker:
    blocked = {blocked}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
found = {{}}
def imported_without_warnings(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        __import__(name)
    found["warnings"] = [str(warning.message) for warning in caught]
    found["slow"] = sorted(set(sys.modules) & {{"arviz", "matplotlib", "scipy.stats"}})
"""


def _found(code, blocked=()):
    """What ``code`` puts into ``found``, in an interpreter that cannot import ``blocked``."""
    code = PROLOGUE.format(blocked=set(blocked) or "set()") + code + "\nprint(json.dumps(found))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_ngvi_needs_neither_torch_nor_jax():
    """Except ``ngvi.torch`` and ``ngvi.optax``, each of which says what it is for."""
    every_module = """
import pkgutil, ngvi
plain = ("ngvi.torch", "ngvi.optax", "ngvi.networks.torch", "ngvi.networks.optax")
for module in pkgutil.walk_packages(ngvi.__path__, "ngvi.", onerror=lambda name: None):
    if not module.name.startswith(plain):
        __import__(module.name)
found["modules"] = sum(name.startswith("ngvi.") for name in sys.modules)
"""
    assert _found(every_module, {*PYRO, *NUMPYRO, "matplotlib", "arviz"})["modules"] > 10


def test_pyro_ngvi_needs_no_jax_and_changes_nothing():
    """Without warnings of our own, and without the slow imports of a report."""
    pytest.importorskip("pyro")
    found = _found(
        """
import pyro, torch
def state():
    return (torch.get_rng_state().tolist(), str(torch.get_default_dtype()),
            repr(pyro.settings.get()), len(pyro.get_param_store()))
before = state()
imported_without_warnings("pyro_ngvi")
found["changed"] = state() != before
""",
        NUMPYRO,
    )
    assert found == {"warnings": [], "slow": [], "changed": False}


def test_numpyro_ngvi_needs_no_torch_starts_no_backend_and_changes_nothing():
    """Without warnings of our own, and without optax or the slow imports of a report."""
    pytest.importorskip("numpyro")
    found = _found(
        """
import numpy
import numpyro, jax
from jax._src import xla_bridge
before = numpy.random.get_state()[1].tolist()
found["started by numpyro"] = xla_bridge.backends_are_initialized()
imported_without_warnings("numpyro_ngvi")
found["optax"] = "optax" in sys.modules
found["started"] = xla_bridge.backends_are_initialized()
found["changed"] = numpy.random.get_state()[1].tolist() != before
found["dtype"] = str(jax.numpy.zeros(1).dtype)
found["can be started"] = xla_bridge.backends_are_initialized()  # so the check can fail
""",
        PYRO,
    )
    assert found == {
        "started by numpyro": False,
        "started": False,
        "can be started": True,
        "changed": False,
        "dtype": "float32",
        "warnings": [],
        "slow": [],
        "optax": False,
    }


def test_without_its_ppl_a_package_names_the_extra():
    pytest.importorskip("pyro")
    pytest.importorskip("numpyro")
    missing = {"pyro": ["pyro", "torch"], "numpyro": ["numpyro", "jax", "optax"]}
    found = _found(
        f"""
for ppl, missing in {missing}.items():
    for name in missing:
        Blocker.blocked = {{name}}
        try:
            __import__(f"{{ppl}}_ngvi")
        except ModuleNotFoundError as error:
            found[name] = str(error)
"""
    )
    assert found == {
        name: f"{ppl}_ngvi needs {name}: pip install 'ngvi[{ppl}]'"
        for ppl, names in missing.items()
        for name in names
    }


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("ngvi.torch", ["torch"], {"pyro", "pyro_ngvi", *NUMPYRO}),
        ("ngvi.optax", ["jax", "optax"], {"numpyro", "numpyro_ngvi", *PYRO}),
    ],
)
def test_a_plain_training_loop_needs_no_ppl(name, own, others):
    for library in own:
        pytest.importorskip(library)
    found = _found(
        f"""
for missing in {own}:
    Blocker.blocked = {{missing}}
    try:
        __import__("{name}")
    except ModuleNotFoundError as error:
        found[missing] = str(error)
    for module in [one for one in sys.modules if one.startswith("{name}")]:
        del sys.modules[module]
Blocker.blocked = {others}
imported_without_warnings("{name}")
"""
    )
    extra = name.removeprefix("ngvi.")
    expected = {one: f"{name} needs {one}: pip install 'ngvi[{extra}]'" for one in own}
    assert found == {**expected, "warnings": [], "slow": []}


# -- the wheel ------------------------------------------------------------------------


def _packages():
    return {path.parent.name for path in ROOT.glob("*ngvi/__init__.py")}


def test_the_wheel_is_told_of_all_three_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert _packages() == {"ngvi", "numpyro_ngvi", "pyro_ngvi"}
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == _packages()
    assert all((ROOT / name / "py.typed").exists() for name in _packages())
