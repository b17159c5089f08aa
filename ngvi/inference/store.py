"""Files of results and checkpoints: arrays as in a ``.npz``, everything else as JSON, no pickle.

A file that is written anew is written beside the old one and takes its place when it is on the
disk: whatever ends the process, one of the two is there, and whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

#: The entry of the JSON text, whose bytes are an array as well.
META = "meta.json"
#: What cannot be read as such a file.
UNREADABLE = (zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError)


def packed(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """One file's content.

    :param meta: what JSON can hold, and infinities and NaN.
    :param arrays: of numbers and texts.
    :raises TypeError: for arrays of objects.
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:  # NumPy 1 would pickle it
            raise TypeError(f"The array '{name}' holds objects, which are not saved.")
    text = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **{META: text, **arrays})  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What :func:`packed` was given.

    :raises ValueError: and the others of :data:`UNREADABLE`, if it was given nothing.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop(META).tobytes()), arrays


def write(path: str | os.PathLike, content: bytes) -> None:
    """Write a file whose place it takes only when it is whole, and on the disk.

    :raises FileNotFoundError: without a folder to write to.
    :raises OSError: if it cannot be written to; the old file is as it was.
    """
    path = Path(path)
    if not path.parent.is_dir() or path.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise FileNotFoundError(f"The file {str(path)!r} {what}.")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            on_disk(file)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    with contextlib.suppress(OSError, AttributeError):  # a folder cannot be opened on Windows
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def on_disk(file: BinaryIO) -> None:
    """Wait until a file's content has left the process and the machine's memory."""
    file.flush()
    os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# -- arguments of a model ---------------------------------------------------------------


class Written:
    """A tree of lists, tuples, dicts, numbers, texts and arrays, as JSON and named arrays.

    :param as_array: the numpy array of one of the PPL's own arrays, or None for anything else.
    """

    def __init__(self, as_array: Callable[[Any], np.ndarray | None]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._as_array = as_array

    def of(self, value: Any, where: str) -> Any:
        """The JSON of one value.

        :param where: it is, in words.
        :raises TypeError: for anything that such a file cannot hold.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (list, tuple):
            parts = [self.of(part, f"{where}[{index}]") for index, part in enumerate(value)]
            return {type(value).__name__: parts}
        if type(value) is dict and all(type(key) is str for key in value):
            return {
                "dict": {key: self.of(part, f"{where}[{key!r}]") for key, part in value.items()}
            }
        kind, array = "own", self._as_array(value)
        if array is None and isinstance(value, (np.ndarray, np.generic)):
            kind, array = "numpy", np.asarray(value)
        if array is None or array.dtype.kind not in "biufcSUmM":
            raise TypeError(
                f"The model's {where} is a {type(value).__name__}, which a file of arrays, numbers "
                "and texts cannot hold. Save without the model's arguments, save(path, "
                "data=False), and give them to load(path, model, ...) again."
            )
        name = f"data/{len(self.arrays)}"
        self.arrays[name] = array
        return {kind: name}


def read(tree: Any, arrays: dict[str, np.ndarray], own: Callable[[np.ndarray], Any]) -> Any:
    """The value of which :class:`Written` made JSON.

    :param own: makes the PPL's array of numpy's.
    """
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "list" | "tuple":
            parts = [read(part, arrays, own) for part in content]
            return parts if kind == "list" else tuple(parts)
        case "dict":
            return {key: read(part, arrays, own) for key, part in content.items()}
        case "own":
            return own(arrays[content])
        case _:
            return arrays[content]


# -- records one after another ------------------------------------------------------------


def framed(content: bytes) -> bytes:
    """A record: its length, its checksum, and it."""
    head = len(content).to_bytes(8, "little") + zlib.crc32(content).to_bytes(4, "little")
    return head + content


def records(file: BinaryIO) -> Iterator[bytes]:
    """The records of a file, up to the first that is not whole; the file is left at its end."""
    while True:
        start = file.tell()
        head = file.read(12)
        length = int.from_bytes(head[:8], "little")
        left = os.fstat(file.fileno()).st_size - file.tell()
        content = file.read(length) if len(head) == 12 and length <= left else b""
        if (
            len(head) < 12
            or len(content) < length
            or zlib.crc32(content) != int.from_bytes(head[8:], "little")
        ):
            file.seek(start)
            return
        yield content
