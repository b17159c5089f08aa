"""The content of a result's file as types, which are checked before anything is built.

A key more of a file is a line of :data:`META`; arrays in a folder of their own are a line of
:data:`FOLDERS`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import numpy as np

from ngvi.inference.change import Change
from ngvi.inference.problem import Cost
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import VERDICTS, FoundOptimum, Restart
from ngvi.inference.verdict.validation import Validation

#: Kinds of numpy's arrays that are numbers, and those that are numbers, texts or times.
NUMBERS = "biufc"
KINDS = f"{NUMBERS}SUmM"
#: Folders of arrays, and the kinds of numpy's that each may hold.
FOLDERS = {**dict.fromkeys(("params", "optima"), NUMBERS), "data": KINDS}
FOLDERS |= {"trace": "iuf", "change": "iuf", "draws": "biuf"}
#: The text of a file: types; in a list the one of all its elements, in a tuple one for each. Keys
#: of :data:`MAY_BE` need not be there, and arguments of a model are checked as they are read.
META = {
    **dict.fromkeys(("format", "library", "reason"), str),
    **dict.fromkeys(("version", "structure"), int),
    "seconds": float,
    "verdict": frozenset(VERDICTS),
    "cost": Cost,
    "change": Change | None,
    "validation": Validation | None,
    "restarts": [Restart],
    "optima": [FoundOptimum],
    "sites": [[(str, [int], float | None)]],
    "arguments": object,
    "asked_draws": str,
    "draws": {"names": [str], **dict.fromkeys(("method", "how", "fault"), str)}
    | {"chain_gradients": int | None},
    "guide": {"name": str, "family": str | None, **dict.fromkeys(("options", "others"), dict)}
    | {"is_auto": bool, "start": [float]},
    "rng_key": (str, [int]),
}
MAY_BE = {"is_auto", "start", "rng_key", "draws"}


def printable(text: str) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def check_text(text: bytes, size: int) -> None:
    """Refuse a text that takes much more memory than its file has bytes.

    :param size: of the file, in bytes.
    """
    needs = 64 * text.count(b"[") + 232 * text.count(b"{")  # in Python
    if needs > 10 * size + 2**24:
        raise ValueError(f"its text would take {needs:,} bytes of memory")


def check(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Refuse what is no content of a result's file.

    :raises ValueError: naming the first that is none.
    """
    for name in {**META, **meta}:
        is_left_out = name in MAY_BE and meta.get(name) is None
        if not is_left_out and not (name in meta and fits(meta[name], META.get(name, set()))):
            raise ValueError(f"{name!r} has a value that no result has")
    for name, array in arrays.items():
        kinds, is_trace = FOLDERS.get(name.partition("/")[0], ""), name.startswith("trace/")
        if array.dtype.kind not in kinds or (is_trace and array.ndim != 1):
            raise ValueError(f"no result has an array {name!r} of {array.dtype} {array.shape}")
    if len({arrays[f"trace/{field.name}"].size for field in dataclasses.fields(Trace)}) > 1:
        raise ValueError("the columns of its trace have different lengths")


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value of JSON is of a type.

    Texts have to be printable, and whole numbers to have 63 bits. Of a dataclass it holds fields
    that are numbers, texts or dataclasses, by name; of a named tuple all of them, in their order.
    """
    if isinstance(kind, frozenset):
        return type(value) is str and value in kind
    if isinstance(kind, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(kind))
    if isinstance(kind, list):
        return type(value) is list and all(fits(one, kind[0]) for one in value)
    if isinstance(kind, tuple):
        return type(value) is list and len(value) == len(kind) and all(map(fits, value, kind))
    if isinstance(kind, dict):
        names = value.keys() if type(value) is dict else set()
        is_whole = kind.keys() - MAY_BE <= names <= kind.keys()
        return is_whole and all(fits(one, kind[name]) for name, one in value.items())
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        return fits(value, tuple(typing.get_type_hints(kind).values()))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind).items()
        scalars = {k: v for k, v in hints if v in _SCALARS or dataclasses.is_dataclass(v)}
        return fits(value, scalars)
    if kind in (int, float) and type(value) is int:
        return -(2**63) * (kind is float) <= value < 2**63
    return kind is object or (type(value) is kind and (kind is not str or value.isprintable()))


_SCALARS = bool, int, float, str
