"""A warning that points to the user's line, through however many of ours and the PPL's it comes."""

from __future__ import annotations

import sys
import warnings
from typing import Any

#: Packages whose lines are not the user's, nor the model's.
OURS = "ngvi", "pyro_ngvi", "numpyro_ngvi"
LIBRARIES = *OURS, "contextlib", "functools", "jax", "numpyro", "optax", "pandas", "pyro", "torch"


class UsageWarning(UserWarning):
    """The category of all warnings of ``ngvi``, ``pyro_ngvi`` and ``numpyro_ngvi``.

    Where warnings are errors, one line lets these pass:

    >>> import ngvi, warnings
    >>> warnings.filterwarnings("default", category=ngvi.UsageWarning)

    Of pytest that line is ``filterwarnings = ["error", "default::ngvi.UsageWarning"]``.
    """


def warn(words: str) -> None:
    """Warn, and name the innermost line that is the user's."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and package_of(frame) in LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(words, UsageWarning, stacklevel=level)


def package_of(frame: Any) -> str:
    """Return the name of the package whose function a frame runs."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]
