"""Files of results: arrays as in a ``.npz``, everything else as JSON in it, no pickle.

A model's arguments are a tree in JSON, whose leaves are numbers, texts and names of arrays.

A new file is written next to the old one, and replaces it once it is on disk. Whatever ends the
process, one of the two is complete. The new file keeps the old one's mode, and a link is followed
to its target. Only regular files are replaced.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ngvi.errors import DamagedFileError
from ngvi.inference.saved import schema
from ngvi.inference.saved.schema import KINDS, check_text, printable

#: The entry of the JSON text, whose bytes are an array as well.
META = "meta.json"


def packed(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Return the content of a file.

    :param meta: what JSON can hold, numbers of numpy, and infinities and NaN.
    :param arrays: numbers and texts.
    :raises TypeError: for arrays of objects.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            raise TypeError(f"The array '{name}' holds objects ({array.dtype}), which no file has.")
    text = np.frombuffer(json.dumps(meta, default=lambda one: one.item()).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **{META: text, **arrays})  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(file: BinaryIO | bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what :func:`packed` was given; it takes no more memory than the file has bytes.

    :raises Exception: of any kind, for any other file: call it inside of :func:`whole`.
    """
    file = io.BytesIO(file) if isinstance(file, bytes) else file
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        is_plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not is_plain or sum(entry.file_size for entry in entries) > size:
            raise ValueError("it claims to hold more than it has bytes")
        arrays = {one.filename.removesuffix(".npy"): _array(archive.read(one)) for one in entries}
    text = arrays.pop(META).tobytes()
    check_text(text, size)
    return json.loads(text), arrays


def _array(content: bytes) -> np.ndarray:
    """Return the array of an entry, whose shape is checked before it is made."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except MemoryError:  # Python's, of a text of many brackets
        raise ValueError("an array has no header") from None
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in KINDS or size != len(content) - file.tell():
        raise ValueError(f"an array claims to be {dtype} {shape}, and is not")
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False), dtype.newbyteorder("="))


@contextlib.contextmanager
def whole(path: str | os.PathLike, words: str, *passed: type[Exception]) -> Iterator[None]:
    """Blame the file for whatever fails inside.

    :param words: what the file is then, behind its name.
    :param passed: errors that are raised as they are, besides those of memory.
    :raises DamagedFileError: for any other error.
    """
    try:
        yield
    except (DamagedFileError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, passed):
            if type(error) is ValueError:  # also of the model, which knows no file
                raise ValueError(f"The file {os.fspath(path)!r} is not loaded: {error}") from error
            raise
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        why = printable(why.partition("\n")[0]) or type(error).__name__
        raise DamagedFileError(f"The file {os.fspath(path)!r} {words}: {why}.") from error


def target(path: str | os.PathLike) -> Path:
    """Return the file that a path means, links followed, which need not be there.

    :raises FileNotFoundError: without a folder to write to.
    :raises IsADirectoryError: for a folder.
    :raises PermissionError: for a file that may not be written.
    :raises ValueError: for a device, a pipe or a socket.
    """
    real, name = Path(os.path.realpath(path)), f"The file {os.fspath(path)!r}"
    if not real.parent.is_dir():
        raise FileNotFoundError(f"{name} is in a folder that does not exist.")
    if real.is_dir():
        raise IsADirectoryError(f"{name} is a folder.")
    if real.exists():
        mode = real.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ValueError(f"{name} is a device, a pipe or a socket. Choose another name.")
        if not os.access(real, os.W_OK):
            raise PermissionError(f"{name} may not be written: its mode is {stat.filemode(mode)}.")
    return real


def write(path: str | os.PathLike, content: bytes) -> None:
    """Write a file that takes its place when it is whole, and on the disk.

    :raises OSError: if it cannot be written; the old file is as it was.
    :raises ValueError: for a device, a pipe or a socket.
    """
    path = target(path)
    part, is_new = path.with_name(f".ngvi.{secrets.token_hex(8)}.part"), not path.exists()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(part, flags, 0o666 if is_new else 0o600), "wb") as file:
            if not is_new:
                shutil.copymode(path, part)
            file.write(content)
            on_disk(file)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def on_disk(file: BinaryIO) -> None:
    """Wait until a file's content has left the process and the machine's memory."""
    file.flush()
    os.fsync(file.fileno())


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
