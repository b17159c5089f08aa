"""Arguments of a model as JSON and arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.inference.saved import schema

#: Characters of numpy's types that a PPL has too, and the name of a device.
NUMBERS = "?bBhHiIlLqQefdFD"
PLACE = re.compile(r"(cpu|cuda|gpu|metal|mps|rocm|tpu|xpu|)(:\d{1,3})?", re.IGNORECASE)


def tree_of(value: Any, where: str, arrays: dict[str, np.ndarray], hooks: Any) -> Any:
    """Return a tree of lists, tuples, dicts, numbers, texts and arrays as JSON.

    :param where: it is, in words.
    :param arrays: gets those of the tree.
    :param hooks: the package's :class:`~ngvi.inference.saved.file_hooks.FileHooks`.
    :raises TypeError: for anything that such a file cannot hold.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        parts = [tree_of(v, f"{where}[{i}]", arrays, hooks) for i, v in enumerate(value)]
        return {type(value).__name__: parts}
    if type(value) is dict and all(type(key) is str for key in value):
        found = {k: tree_of(v, f"{where}[{k!r}]", arrays, hooks) for k, v in value.items()}
        return {"dict": found}
    kind, array = "own", hooks.as_array(value)
    if array is None and isinstance(value, (np.ndarray, np.generic)):
        kind, array = "numpy", np.asarray(value)
    if array is None or array.dtype.kind not in schema.KINDS:
        raise TypeError(
            f"The model's {where} is a {type(value).__name__}, which a file cannot hold: write "
            "save(path, data=False), and give the arguments to load(path, model, ...) again."
        )
    name = f"data/{len(arrays)}"
    arrays[name] = array
    return {kind: [name, hooks.place(value)] if kind == "own" else name}


def of_tree(tree: Any, arrays: dict[str, np.ndarray], own: Callable[[np.ndarray, str], Any]) -> Any:
    """Return the value of which :func:`tree_of` made JSON.

    :param own: makes the PPL's array of numpy's, for a device of this name.
    """
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](of_tree(one, arrays, own) for one in content)
    if kind == "dict":
        return {key: of_tree(part, arrays, own) for key, part in content.items()}
    if kind == "numpy":
        return arrays[content]
    name, place = content
    if kind != "own" or arrays[name].dtype.char not in NUMBERS or not PLACE.fullmatch(place):
        raise ValueError(f"an argument is {kind!r} of {arrays[name].dtype} on {place!r}")
    return own(arrays[name], place)
