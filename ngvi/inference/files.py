"""Files of results and checkpoints: arrays as in a ``.npz``, everything else as JSON, no pickle.

A file is written beside the old one and takes its place when it is on the disk: whatever ends the
process, one of the two is there, and whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
import zipfile
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
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            file.write(content)
            on_disk(file)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
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
