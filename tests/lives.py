"""Processes that tell line by line how far they are, and may be killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def life(module: str, *args: object, seconds: float | None = None) -> list[list[str]]:
    """The words of the lines that ``python -m MODULE ARGS`` has told.

    :param seconds: it is killed so long after its first line; by default it comes to its end.
    """
    command = [sys.executable, "-m", module, *map(str, args)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline()]
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        lines += process.stdout.readlines()
    return [line.split() for line in lines]
