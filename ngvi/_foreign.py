"""Arguments of a model that are not numeric arrays, as notes of the model's own errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ngvi.errors import DiscreteLatentError, InvalidStartError, NoLatentsError

#: Packages whose data frames, columns and matrices neither library computes with.
FRAMES = ("pandas", "polars", "xarray", "pyarrow", "scipy")
#: What arrays hold that neither library computes with, by numpy's kind of dtype.
NO_NUMBERS = {
    "U": "strings",
    "S": "strings",
    "T": "strings",
    "O": "objects",
    "M": "dates",
    "m": "times",
}
#: How the note begins.
NOTE = "Some of the model's arguments are not numeric arrays"


@contextlib.contextmanager
def note_foreign_arguments(
    args: tuple, kwargs: dict, convert: str, others: tuple = (), default: str = ""
) -> Iterator[None]:
    """Add to the error of a model that fails which of its arguments are no arrays, or hold what is
    no number, or are of another precision than its own numbers.

    It is a note: the error and its traceback are the model's own. A model that converts its
    arguments itself does not fail.

    :param convert: what makes an array of the library, for words.
    :param others: types that the library does not take either.
    :param default: the dtype of the library's own numbers, if it does not mix precisions.
    """
    try:
        yield
    except (
        *(TypeError, ValueError, LookupError, AttributeError, RuntimeError, AssertionError),
    ) as error:
        named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
        of_types = isinstance(error, (TypeError, AttributeError, LookupError))
        of_types |= "operand type" in str(error)
        found = {name: _foreign(value, others, convert, of_types) for name, value in named.items()}
        words = [f"{name} {what}" for name, what in found.items() if what]
        is_ours = isinstance(error, (InvalidStartError, DiscreteLatentError, NoLatentsError))
        has_note = any(NOTE in note for note in getattr(error, "__notes__", ()))
        _note_numbers(error, named, default)
        if words and not is_ours and not has_note:
            error.add_note(
                f"{NOTE} (they are counted from zero): {', '.join(words)}. Pass {convert}(...) of "
                "the numbers (of a data frame, of each column; of strings their codes, "
                "np.unique(strings, return_inverse=True)[1])."
            )
        raise


def _note_numbers(error: Exception, named: dict[str, Any], default: str) -> None:
    """Note arguments that hold NaN or infinity, and where the type of numbers is to blame."""
    for name, value in named.items():
        if value is None:  # which numpy takes for NaN
            continue
        with contextlib.suppress(Exception):  # of any type
            if words := where_not(np.isfinite(np.asarray(value, float)), "NaN or infinite numbers"):
                _note(error, f"{name} of the model {words} (arguments are counted from zero).")
    blames = any(word in str(error) for word in ("dtype", "Double", "Half", "type Float"))
    types = {name: str(getattr(value, "dtype", default)) for name, value in named.items()}
    others = [
        f"{name} is {one}" for name, one in types.items() if "float" in one and one != default
    ]
    if default and blames and others:
        _note(
            error,
            f"{', '.join(others)} (counted from zero), and numbers of the model's own are {default}"
            f": convert these arguments, x.to({default}), or torch.set_default_dtype(...).",
        )


def _note(error: Exception, words: str) -> None:
    """Once, whoever else has seen the error."""
    if words not in getattr(error, "__notes__", ()):
        error.add_note(words)


def where_not(good: np.ndarray, what: str) -> str:
    """That an array holds something, and where, in words; nothing if all of it is good."""
    return "" if good.all() else f"holds {what} {places(~good)}"


def places(found: np.ndarray) -> str:
    """Where an array of truth values is true, in words; or nothing."""
    if not found.any():
        return ""
    if not found.ndim:
        return "as its only number"
    first = ", ".join(str(i) for i in np.argwhere(found)[0])
    return f"at {found.sum():,} of {found.size:,} places, the first of which is [{first}]"


def _foreign(value: Any, others: tuple, convert: str, of_types: bool) -> str:
    """What an argument is that is no array of numbers, in words; or nothing.

    :param of_types: whether an error is one of types, for which any object may be to blame.
    """
    holds = NO_NUMBERS.get(getattr(getattr(value, "dtype", None), "kind", ""))
    name = type(value).__name__
    if holds is not None:
        return f"holds {holds} ({name} of {value.dtype})"
    root = type(value).__module__.partition(".")[0]
    is_of_other = root in (("torch",) if convert.startswith("jnp") else ("jax", "jaxlib"))
    is_read_once = hasattr(value, "__next__")
    if isinstance(value, others) or root in FRAMES or is_of_other or is_read_once:
        return f"is of type {name}"
    is_plain = hasattr(value, "dtype") or callable(value) or isinstance(value, (int, float, str))
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
        if isinstance(value, str):
            return f"holds strings ({name})"
        if isinstance(value, (int, float, np.number)):
            return f"is of type {name}"
    return f"is of type {name}" if of_types and not is_plain else ""
