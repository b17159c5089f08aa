"""What must hold of the packages where nothing else is installed, neither torch nor jax."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pkgutil
import sys
from pathlib import Path

import ngvi

#: What needs a library of an extra, and says so.
EXTRAS = {
    "ngvi.torch": "torch",
    "ngvi.networks.torch": "torch",
    "ngvi.optax": "optax",
    "ngvi.networks.optax": "optax",
    "pyro_ngvi": "pyro",
    "numpyro_ngvi": "numpyro",
}


def words(module: str) -> str:
    """What its import says, nothing if it succeeds."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return str(error)
    return ""


version = importlib.metadata.version("ngvi")
assert ngvi.__version__ == version, (ngvi.__version__, version)
names = [module.name for module in pkgutil.walk_packages(ngvi.__path__, "ngvi.")]
assert len(names) > 100, names
assert {"ngvi.torch", "ngvi.optax"} <= set(names), names
for name in [*names, "pyro_ngvi", "numpyro_ngvi"]:
    said, extra = words(name), EXTRAS.get(name)
    assert said.endswith(f"pip install 'ngvi[{extra}]'") if extra else not said, f"{name}: {said}"
assert not {"torch", "jax", "matplotlib", "arviz"} & set(sys.modules)

for package in ("ngvi", "pyro_ngvi", "numpyro_ngvi"):
    folder = Path(importlib.util.find_spec(package).origin).parent
    assert (folder / "py.typed").exists(), package
    assert Path(sys.prefix) in folder.parents, f"{folder} is not the installed one"
print(f"ngvi {version}: installed, and imported without torch and jax")
