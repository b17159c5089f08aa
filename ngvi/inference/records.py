"""Records of a file that only grows: numbers with their names, a length and a checksum.

What follows the first record that is not whole is no record: a process was killed in it, or the
machine lost power, which leaves half of it, zeros, or anything.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from ngvi.inference.files import KINDS, check_kinds, checksum

Arrays = dict[str, np.ndarray]

#: Bytes before the content: 8 of its length, 4 of the length's checksum, 16 of the content's.
HEAD = 28


def record(meta: Any, arrays: Arrays) -> bytes:
    """A record: its length, checksums of length and content, and the content.

    :param meta: what JSON can hold, and infinities and NaN.
    :param arrays: of numbers and texts.
    :raises TypeError: for arrays of objects.
    """
    check_kinds(arrays)
    kinds = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps([meta, kinds]).encode()
    return framed(b"".join([text, b"\n", *(array.tobytes() for array in arrays.values())]))


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers as Python's own, for JSON."""
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}


def under(arrays: Arrays, folder: str) -> Arrays:
    """The arrays whose names begin so, by the rest of their names."""
    return {k.removeprefix(folder): a for k, a in arrays.items() if k.startswith(folder)}


def framed(content: bytes) -> bytes:
    """The record that holds a content."""
    length = len(content).to_bytes(8, "little")
    return length + _check(length) + checksum(content) + content


def contents(file: BinaryIO) -> Iterator[bytes]:
    """What whole records hold, up to the first that is not; the file is left at its beginning."""
    size = os.fstat(file.fileno()).st_size
    while True:
        start = file.tell()
        head = file.read(HEAD)
        length, check, digest = head[:8], head[8:12], head[12:]
        count = int.from_bytes(length, "little")
        is_whole = len(head) == HEAD and check == _check(length)
        content = file.read(count) if is_whole and count <= size - file.tell() else b""
        if not content or checksum(content) != digest:
            file.seek(start)
            return
        yield content


def read(content: bytes) -> tuple[Any, Arrays]:
    """What :func:`record` was given; it takes no more memory than the content has bytes.

    :raises Exception: of any kind, if it was given nothing: call it inside of
        :func:`ngvi.inference.files.whole`.
    """
    text, _, numbers = content.partition(b"\n")
    meta, kinds = json.loads(text)
    arrays, start = {}, 0
    for name, kind, shape in kinds:
        dtype, count = np.dtype(kind), math.prod(shape)
        if dtype.kind not in KINDS or not 0 <= count * dtype.itemsize <= len(numbers) - start:
            raise ValueError(f"the array '{name}' claims to be {kind} {shape}, and is not")
        arrays[name] = np.frombuffer(numbers, dtype, count, start).reshape(shape).copy()
        start += count * dtype.itemsize
    return meta, arrays


def _check(length: bytes) -> bytes:
    return zlib.crc32(length, 1).to_bytes(4, "little")  # not zero for zeros
