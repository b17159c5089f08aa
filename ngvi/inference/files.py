"""Files of results and checkpoints: arrays as in a ``.npz``, everything else as JSON, no pickle.

A file is written beside the old one and takes its place when it is on the disk: whatever ends the
process, one of the two is there, and whole. It has the old one's mode and owner, and is where a
link points to. Only regular files are replaced. What a killed process has left beside it is removed
by the next one, which sees that nobody has a lock on it any more.

A result is a ``.npz`` that numpy reads by itself. A checksum of all of it is the comment of the zip
archive, and is looked at before anything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from ngvi.errors import DamagedFileError

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where no lock says that a file is abandoned
    fcntl = None  # type: ignore[assignment]

#: The entry of the JSON text, whose bytes are an array as well.
META = "meta.json"
#: Bytes of a name from which it has no room for more: folders take names of 255.
LONG_NAME = 200
#: Before the checksum of a result, and what is said without it.
SEAL, UNSEALED = b"ngvi ", "its checksum is missing or wrong"
#: Kinds of arrays that are numbers, texts or times.
KINDS = "biufcSUmM"


def checksum(content: bytes | memoryview) -> bytes:
    """Of what a file has to say, 128 bits."""
    return hashlib.blake2b(content, digest_size=16).digest()


# -- results -------------------------------------------------------------------------------


def packed(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """One file's content.

    :param meta: what JSON can hold, and infinities and NaN.
    :param arrays: of numbers and texts.
    :raises TypeError: for arrays of objects.
    """
    check_kinds(arrays)
    text = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **{META: text, **arrays})  # type: ignore[arg-type]
    body = file.getvalue()[:-2]  # the length of the comment, which is none
    return body + _comment(body)


def check_kinds(arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays of objects.

    :raises TypeError: naming the first.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            raise TypeError(f"The array '{name}' holds objects ({array.dtype}), which no file has.")


def _comment(body: bytes | memoryview) -> bytes:
    text = SEAL + checksum(body).hex().encode()
    return len(text).to_bytes(2, "little") + text


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What :func:`packed` was given; it takes no more memory than the content has bytes.

    :raises Exception: of any kind, if it was given nothing: call it inside of :func:`whole`.
    """
    body = memoryview(content)[: -len(_comment(b""))]
    if content[len(body) :] != _comment(body):
        raise ValueError(UNSEALED)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        is_plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not is_plain or sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("it claims to hold more than it has bytes")
        arrays = {one.filename.removesuffix(".npy"): _array(archive.read(one)) for one in entries}
    return json.loads(arrays.pop(META).tobytes()), arrays


def _array(content: bytes) -> np.ndarray:
    """The array of an entry of the archive."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in KINDS or size != len(content) - file.tell():
        raise ValueError(f"an array claims to be {dtype} {shape}, and is not")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def whole(path: str | os.PathLike, words: str) -> Iterator[None]:
    """Whatever fails inside is the file's fault.

    :param words: what the file is then, behind its name.
    :raises DamagedFileError: for any error but of memory.
    """
    try:
        yield
    except (DamagedFileError, MemoryError):
        raise
    except Exception as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        why = why.partition("\n")[0] or type(error).__name__
        raise DamagedFileError(f"The file {os.fspath(path)!r} {words}: {why}.") from error


# -- reading and writing -------------------------------------------------------------------


def target(path: str | os.PathLike) -> Path:
    """The file that a path means, links followed, which may be written and need not be there.

    :raises FileNotFoundError: without a folder to write to.
    :raises IsADirectoryError: for a folder.
    :raises PermissionError: for a file that may not be written.
    :raises ValueError: for a device, a pipe or a socket.
    """
    real, name = Path(os.path.realpath(path)), f"The file {os.fspath(path)!r}"
    if not real.parent.is_dir():
        raise FileNotFoundError(f"{name} is in a folder that does not exist.")
    try:
        mode = real.stat().st_mode
    except FileNotFoundError:
        return real
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{name} is a folder.")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name} is a device, a pipe or a socket. Choose another name.")
    if not os.access(real, os.W_OK):
        raise PermissionError(f"{name} may not be written: its mode is {stat.filemode(mode)}.")
    return real


def beginning(path: str | os.PathLike, size: int) -> tuple[bytes, bool]:
    """The first bytes of a regular file, and whether it ends as :func:`packed` lets it.

    It is read before all of a file is, which may be far larger than a result.

    :raises ValueError: for anything else, which may have no end.
    :raises OSError: if it cannot be read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{os.fspath(path)!r} is no regular file.")
    with open(path, "rb") as file:
        first = file.read(size)
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(_comment(b""))))
        return first, file.read()[2:].startswith(SEAL)


def write(path: str | os.PathLike, content: bytes) -> None:
    """Write a file whose place it takes only when it is whole, and on the disk.

    :raises OSError: if it cannot be written to, with its name; the old file is as it was.
    :raises ValueError: and others of :func:`target`.
    """
    path = target(path)
    part: Path | None = None
    try:
        part, file = _beside(path)
        with file:
            file.write(content)
            on_disk(file)
            if fcntl is None:
                file.close()  # Windows moves no open file
            os.replace(part, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)
        raise
    _remove_abandoned(path)
    with contextlib.suppress(OSError, AttributeError):  # a folder cannot be opened on Windows
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def on_disk(file: IO[bytes]) -> None:
    """Wait until a file's content has left the process and the machine's memory."""
    file.flush()
    os.fsync(file.fileno())


def lock(file: IO[bytes]) -> None:
    """Keep others from locking a file, until it is closed or the process ends.

    :raises BlockingIOError: if another process has, or this one by opening it before.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            return
        _locked.add(file)


#: A forked child would keep them locked, also when its parent is no more.
_locked: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def _in_child() -> None:
    for file in list(_locked):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _beside(path: Path) -> tuple[Path, BinaryIO]:
    """A new file with the mode and owner of another, locked: it is not abandoned."""
    old = path.stat() if path.exists() else None
    while True:
        part = path.with_name(f"{_stem(path)}{secrets.token_hex(8)}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(part, flags, 0o600 if old else 0o666), "r+b")
        if fcntl is not None:
            with contextlib.suppress(OSError):  # of a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:  # taken for one that is, before the lock
                file.close()
                continue
        if old is not None:
            if hasattr(os, "fchown"):
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            shutil.copystat(path, part)
            if os.fstat(file.fileno()).st_gid != old.st_gid:  # what one group may, another may not
                part.chmod(stat.S_IMODE(old.st_mode) & ~stat.S_IRWXG)
        return part, file


def _stem(path: Path) -> str:
    """How names of files beside one begin, which a folder must take as well."""
    name = os.fsencode(path.name)
    return f".{path.name if len(name) <= LONG_NAME else checksum(name).hex()}."


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes have left beside a file."""
    if fcntl is None:
        return
    ours = re.compile(re.escape(_stem(path)) + r"[0-9a-f]{16}\.part")
    for name in filter(ours.fullmatch, os.listdir(path.parent)):
        with contextlib.suppress(OSError):
            other = os.open(path.with_name(name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path.with_name(name))
            finally:
                os.close(other)
