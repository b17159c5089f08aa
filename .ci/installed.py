"""What must hold of the packages where nothing else is installed, neither torch nor jax."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pkgutil
import sys
from pathlib import Path

import ngvi

version = importlib.metadata.version("ngvi")
assert ngvi.__version__ == version, (ngvi.__version__, version)
for module in pkgutil.walk_packages(ngvi.__path__, "ngvi."):
    importlib.import_module(module.name)
assert not {"torch", "jax", "matplotlib", "arviz"} & set(sys.modules)

for package, extra in (("ngvi", ""), ("pyro_ngvi", "pyro"), ("numpyro_ngvi", "numpyro")):
    folder = Path(importlib.util.find_spec(package).origin).parent
    assert (folder / "py.typed").exists(), package
    assert Path(sys.prefix) in folder.parents, f"{folder} is not the installed one"
    words = ""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        words = str(error)
    assert words.endswith(f"pip install 'ngvi[{extra}]'" if extra else ""), words
    assert bool(words) == bool(extra), f"{package}: {words or 'imported without its PPL'}"
print(f"ngvi {version}: installed, and imported without torch and jax")
