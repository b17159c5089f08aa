"""Models that stay unseen: sealed parts, and the command that opens one (``docs/unseen.md``)."""

import importlib
import sys
from pathlib import Path

from benchmarks.models import Entry, chosen

FOLDER = Path(__file__).parent


def opened(number: int, folder: Path = FOLDER) -> list[Entry]:
    """The models of a part."""
    sys.path.insert(0, str(folder / f"part_{number}.zip"))
    importlib.import_module(f"part_{number}")
    return chosen(part=f"part_{number}")
