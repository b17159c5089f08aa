"""Arguments of a model that are not numeric arrays, as notes of the model's own errors."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ngvi._warn import LIBRARIES, OURS, package_of
from ngvi.errors import DiscreteLatentError, InvalidStartError, NoLatentsError

#: What arrays hold that neither library computes with, by numpy's kind of dtype.
NO_NUMBERS = {"U": "strings", "S": "strings", "T": "strings", "O": "objects", "M": "dates"}
#: How the note begins.
NOTE = "Some of the model's arguments are not numeric arrays"


@contextlib.contextmanager
def note_foreign_arguments(
    args: tuple, kwargs: dict, convert: str, default: str = "", of_fit: tuple = ((), {})
) -> Iterator[None]:
    """Add to the error of a model which of its arguments may be to blame.

    It is a note: the error and its traceback are the model's own. A model that converts its
    arguments itself does not fail.

    :param convert: what makes an array of the library, for words.
    :param default: the dtype of the library's own numbers, if it does not mix precisions.
    :param of_fit: arguments with which the model has run, which these are compared with.
    """
    try:
        yield
    except (InvalidStartError, DiscreteLatentError, NoLatentsError):
        raise
    except Exception as error:
        named = _named(args, kwargs)
        found = in_arguments(lambda value: _foreign(value, convert), args, kwargs)
        if words := ", ".join(f"{name} {what}" for name, what in found.items()):
            _note(
                error, f"{NOTE} (counted from zero): {words}. Pass {convert}(...) of the numbers."
            )
        for name, value in named.items():
            with contextlib.suppress(Exception):  # of any type
                is_finite = np.isfinite(np.asarray(value, float)) | (value is None)
                if words := where_not(is_finite, "NaN or infinite numbers"):
                    _note(error, f"{name} of the model {words} (counted from zero).")
            dtype = str(getattr(value, "dtype", default))
            is_other = dtype.startswith("torch.") and "float" in dtype and dtype != default
            if default and is_other and re.search("dtype|scalar type", str(error)):
                words = f"{name} is {dtype}, and the model's own numbers are {default}"
                _note(error, f"{words} (counted from zero): write .to({default}) behind it.")
        mistakes = _by_line(error, convert, named), _of_other_ppl(error, convert)
        for words in filter(None, (*mistakes, other_shapes((args, kwargs), of_fit))):
            _note(error, words)
        raise


def _named(args: tuple, kwargs: dict) -> dict[str, Any]:
    return {f"argument {index}": value for index, value in enumerate(args)} | kwargs


def in_arguments(say: Callable[[Any], Any], args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return by name what a function says of arguments of a model, where it says something."""
    found = {name: say(value) for name, value in _named(args, kwargs).items()}
    return {name: words for name, words in found.items() if words}


def other_shapes(run: tuple[tuple, dict], of_fit: tuple[tuple, dict]) -> str:
    """Say which arguments of the model have other types or shapes than in its fit; or nothing."""
    now, fitted = (
        {k: f"{type(v).__name__} of shape {tuple(getattr(v, 'shape', ()))}" for k, v in one.items()}
        for one in (_named(*run), _named(*of_fit))
    )
    both = {name: (value, fitted.get(name, value)) for name, value in now.items()}
    found = [f"{k} is {a}, and was {b} in the fit" for k, (a, b) in both.items() if a != b]
    return f"{'; '.join(found)} (counted from zero)." if found else ""


#: What a line of a model does that fails, and the way out, by words of the error.
MISTAKES = {
    "size of plate should be positive|size cannot be zero": (
        "has a plate without elements ({at}): give it data, which have no rows here"
    ),
    "to satisfy the constraint| distribution got invalid ": (
        "has an argument of a distribution outside its support ({at}): give its latents priors "
        "that keep it there, HalfNormal for a scale say"
    ),
    "Linearization failed to produce known values|callbacks do not support JVP": (
        "calls a function that JAX has no derivative of, as of a custom_vmap or a callback ({at}): "
        "wrap it in a jax.custom_jvp or a jax.custom_vjp with a rule of its own"
    ),
    "^ConcretizationTypeError|^Tracer|^NonConcreteBooleanIndex|sequences of concrete values|"
    r"truth value of an array|Boolean value of Tensor|arange\(\)|Can't call numpy\(\) on Tensor": (
        "takes an array, such as a latent or a maximum of data, for a plain number ({at}): compute "
        "with {own}, choose by {own}.where(...), and give sizes as int(numpy.max(...))"
    ),
    "shape|size of tensor|size mismatch|tensor size": (
        "computes with shapes that do not fit ({at}): compare the sizes of its priors and plates "
        "with those of the data, {shapes}"
    ),
}


def _by_line(error: Exception, convert: str, named: dict[str, Any]) -> str:
    """Say what a line of the model does that no program or distribution allows; or nothing."""
    at, plate, package = "", "", ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        path, package = frame.f_code.co_filename, package_of(frame)
        if frame.f_code.co_qualname in ("plate.__init__", "SubsampleMessenger.__init__"):
            plate = f", at plate '{frame.f_locals.get('name')}'"
        elif package not in LIBRARIES:
            at = f"{Path(path).name}:{number}, {linecache.getline(path, number).strip()!r}"
    said, own = f"{type(error).__name__}: {error}", convert.partition(".")[0]
    shapes = [f"{k} of shape {tuple(v.shape)}" for k, v in named.items() if hasattr(v, "shape")]
    for words, row in MISTAKES.items() if at and package not in OURS else ():
        if re.search(words, said):
            told = row.format(at=at + plate, own=own, shapes=", ".join(shapes))
            return f"The model {told}."
    return ""


def _of_other_ppl(error: Exception, convert: str) -> str:
    """Say that what has failed is a model of the other PPL, going by names in its lines."""
    own, other = ("pyro", "numpyro") if convert.startswith("torch") else ("numpyro", "pyro")
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = [*frame.f_locals.values(), *map(frame.f_globals.get, frame.f_code.co_names)]
        names = (getattr(x, "__module__", None) or getattr(x, "__name__", "") for x in found)
        roots = {str(name).partition(".")[0] for name in names}
        if other in roots and own not in roots and package_of(frame) not in LIBRARIES:
            return f"The model is one of {other}, and this is {own}_ngvi: import {other}_ngvi."
    return ""


def _note(error: Exception, words: str) -> None:
    """Add a note once, whoever else has seen the error."""
    if words not in getattr(error, "__notes__", ()):
        error.add_note(words)


def where_not(good: np.ndarray, what: str) -> str:
    """Say that an array holds something, and where; nothing if all of it is good."""
    return "" if good.all() else f"holds {what} {places(~good)}"


def places(found: np.ndarray) -> str:
    """Say where an array of truth values is true; nothing if it is nowhere."""
    if not found.any():
        return ""
    if not found.ndim:
        return "as its only number"
    first = ", ".join(str(i) for i in np.argwhere(found)[0])
    return f"at {found.sum():,} of {found.size:,} places, the first of which is [{first}]"


def _foreign(value: Any, convert: str) -> str:
    """Return what an argument is that is no array of numbers, in words; or nothing."""
    holds = NO_NUMBERS.get(getattr(getattr(value, "dtype", None), "kind", ""))
    if holds is not None:
        return f"holds {holds} ({type(value).__name__} of {value.dtype})"
    root = type(value).__module__.partition(".")[0]
    own = ("jax", "numpy") if convert.startswith("jnp") else "torch"
    is_plain = callable(value) or isinstance(value, (int, float, str, type(None)))
    is_array = hasattr(value, "dtype") and root.startswith(own)
    return "" if is_plain or is_array else f"is of type {type(value).__name__}"
