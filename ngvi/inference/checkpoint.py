"""A checkpoint of ``fit``: the answers of the model, one after another, in a file that only grows.

A fit decides by numbers: what the model answered, and random numbers from its seeds. With the
answers of a run that was killed, a new one takes the same decisions without running the model,
until there are no more; there it goes on. Its way is that of a run that was never killed, bit for
bit where arithmetic is the same, and nothing of the search has to be saved or restored: no state
can be forgotten.

- The file begins with the seeds, the state of the start, and checksums of model, arguments and
  settings (:mod:`~ngvi.inference.fingerprint`): a fit of anything else is refused, and told what
  differs. A record is one answer, with the question that it belongs to.
- What is not whole at its end, because a process was killed or a machine lost power, is dropped.
- The first answer is asked for again. If it is not the same, the model computes something else.
- Where a question is another one than in the file, because ``tolerance`` or ``max_steps`` are,
  the fit leaves the old way: the rest of the file is dropped.
- Where nothing can be written, because the disk is full, the fit goes on and tries again with each
  answer; it keeps in memory what is not written.

It costs the natural gradients of each step on the disk: with ``n`` numbers of a Gaussian, ``n``
for each group of draws and two more. Once the fit is at an optimum, each round of the search for
others begins the file anew, with its optima and what else the rest depends on
(:mod:`~ngvi.inference.progress`): the answers that led there are dropped.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from io import FileIO
from itertools import chain, islice
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.errors import DamagedFileError
from ngvi.inference import files, records
from ngvi.inference.estimate import State
from ngvi.inference.fingerprint import Facts, difference
from ngvi.inference.problem import Cost
from ngvi.inference.records import Arrays

#: The first line of a file.
FIRST, VERSION = b"ngvi checkpoint ", 5
#: In the place of answers: how far the search for other optima is, and of which guide.
NOTED, STAGE = "noted", "stage"
#: Seconds between writes that wait for the disk: a crash of the machine costs so much.
SYNC_EVERY = 1.0


class Checkpoint:
    """One file; a context manager.

    :param path: of the file, which need not exist.
    :param library: the package that fits.
    :param seeds: of the fit, if the file does not have them.
    :param facts: what the fit is of.
    :param keeps_seeds: whether others in the file are an error.
    :ivar seeds: of the fit.
    :ivar stage: which of the guides that a fit tries is searched for now.
    :ivar noted: how far the search for other optima was, if the file begins with that, ...
    :ivar noted_stage: ... and of which guide.
    :raises DamagedFileError: if the file's beginning is not what was written.
    :raises ValueError: if it is of something else, or another process writes it.
    :raises OSError: if it cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        library: str,
        seeds: list[int],
        facts: Facts | None = None,
        keeps_seeds: bool = False,
    ) -> None:
        self.name, self.path = os.fspath(path), files.target(path)
        self.library, self.seeds = library, [int(seed) for seed in seeds]
        self._facts, self._keeps_seeds = facts or {}, keeps_seeds
        self._file: FileIO | None = None
        self._unwritten: deque[bytes] = deque()
        self._old: Iterator[bytes] = iter(())
        self._head: Arrays | None = None
        self._first = b""
        self.stage = self.noted_stage = ""
        self.noted: tuple[dict[str, Any], Arrays] | None = None
        self._is_read, self._has_begun = True, False
        self._is_checked = self._has_warned = False
        self._synced = time.monotonic()
        if not self.path.exists():
            files.write(self.path, b"")  # now, rather than after an hour
        self._load()
        self.close()  # until it is entered: another process may be sooner

    def __enter__(self) -> Checkpoint:
        self._load()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the disk, and leave the file."""
        file, self._file = self._file, None
        if file is not None and not file.closed:  # as in a forked child
            try:
                self._write(file)
                files.on_disk(file)
            except OSError as error:
                self._warn(error)
            finally:
                file.close()

    # -- the beginning ----------------------------------------------------------------

    def _load(self) -> None:
        """Open the file, and read how it begins."""
        self._open()
        if not self.path.stat().st_size:
            return
        try:
            meta, self._head = self._read_head()
            self.seeds = self._checked(meta)
        except BaseException:
            self.close()
            raise
        self._is_read = False

    def _open(self, whence: int = os.SEEK_SET) -> None:
        """Open the file, at its beginning or its end, which no other fit may have open.

        :raises ValueError: if one has.
        """
        while True:
            file = open(self.path, "r+b", buffering=0)  # noqa: SIM115
            try:
                files.lock(file)
            except BlockingIOError as error:
                file.close()
                raise ValueError(
                    f"checkpoint={self.name!r} is being written by another fit, in this or another "
                    "process: two cannot share one. Choose another name, or wait for the other."
                ) from error
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                file.seek(0, whence)  # before anything can be written to it
                old, self._file = self._file, file
                if old is not None:
                    old.close()
                return
            file.close()  # another fit has replaced it meanwhile

    def _read_head(self) -> tuple[dict[str, Any], Arrays]:
        assert self._file is not None
        first = self._file.readline(len(FIRST) + 20)
        if first != b"%s%d\n" % (FIRST, VERSION):
            what = f"of version {first[len(FIRST) : -1].decode(errors='replace')} of the format"
            raise DamagedFileError(
                f"checkpoint={self.name!r} exists and is no checkpoint of this version of "
                f"{self.library}{', but ' + what if first.startswith(FIRST) else ''}. Choose "
                "another name, or delete the file."
            )
        old = records.contents(self._file)
        with self._whole():
            beginning = next(old, b"")
            head, self._first = records.read(beginning), first + records.framed(beginning)
            second = list(islice(old, 1))
            meta, arrays = records.read(second[0]) if second else ({}, {})
        if NOTED in meta:
            self.noted, self.noted_stage, second = (meta[NOTED], arrays), meta[STAGE], []
        self._old = chain(second, old)
        return head

    def _checked(self, meta: dict[str, Any]) -> list[int]:
        """The seeds of the file, if it is one of this fit.

        :raises ValueError: naming what differs.
        """
        with self._whole():
            library, seeds, facts = meta["library"], list(meta["seeds"]), dict(meta["facts"])
            found = difference(facts, self._facts)
        if library != self.library:
            raise ValueError(
                f"checkpoint={self.name!r} is no checkpoint of this version of {self.library}, but "
                f"of {library}. Choose another name, or delete the file."
            )
        if found:
            raise self._other(found)
        if self._keeps_seeds and seeds != self.seeds:
            raise ValueError(
                f"checkpoint={self.name!r} was begun with another rng_key=. Pass that one, or "
                "choose another name for the file."
            )
        return seeds

    def begun(self, space: Any, state: State | None) -> State | None:
        """Let the fit start where it started at first.

        :param space: of the problem; it gets the initial state.
        :param state: where the fit begins, if it has no choice.
        :return: the same of the first run.
        :raises ValueError: if the file holds states of another kind.
        """
        own = {"initial": space.initial} | ({} if state is None else {"state": state})
        arrays = {f"{k}/{i}": a for k, one in own.items() for i, a in enumerate(space.arrays(one))}
        old, self._head = self._head, None
        if self._has_begun:  # a search before this one had no steps
            return state
        self._has_begun = True
        if old is None:
            meta = {"library": self.library, "seeds": self.seeds, "facts": self._facts}
            self._first = b"%s%d\n" % (FIRST, VERSION) + records.record(meta, arrays)
            self._unwritten.append(self._first)
            self._begin()
            return state
        kinds = [{k: (a.shape, a.dtype) for k, a in found.items()} for found in (arrays, old)]
        if kinds[0] != kinds[1]:
            raise self._other("its parameters have other shapes or another precision")
        if all(array.tobytes() == old[name].tobytes() for name, array in arrays.items()):
            return state
        count = range(len(arrays) // len(own))
        starts = {k: space.of_arrays([old[f"{k}/{i}"] for i in count]) for k in own}
        space.initial = starts["initial"]
        return starts.get("state")

    def check_noted(self, difference: str) -> None:
        """Refuse to go on from what is noted, if its way was another.

        :param difference: of the settings, in words; or nothing.
        :raises ValueError: with it.
        """
        if difference:
            raise ValueError(
                f"checkpoint={self.name!r} has come to an optimum, and dropped the answers that "
                f"led there, with other settings: {difference}. Use the same, or another name for "
                "the file; fit(..., init=result) goes on from the result of this one."
            )

    def condense(self, meta: dict[str, Any], arrays: Arrays) -> None:
        """Keep how far the search for other optima is, in the place of all answers so far."""
        if self._is_read:  # else the file knows more
            old = self._unwritten
            record = records.record({NOTED: meta, STAGE: self.stage}, arrays)
            self._unwritten = deque([self._first + record])
            if not self._begin():
                self._unwritten = old

    def _begin(self) -> bool:
        """Let the file be what is not written, never by half; whether it is."""
        assert self._file is not None
        if os.name == "nt":  # where no open file is replaced
            self._file.close()
        try:
            files.write(self.path, b"".join(self._unwritten))
        except (OSError, ValueError) as error:  # the latter if it is no regular file any more
            self._warn(error)
            is_written = False
        else:
            self._unwritten.clear()
            is_written = True
        if is_written or self._file.closed:
            self._open(os.SEEK_END)
        return is_written

    # -- answers ----------------------------------------------------------------------

    def answer(self, question: Arrays, ask: Callable[[], Arrays], cost: Cost) -> Arrays:
        """What the file has for the next question, or what the model says to it now.

        :param question: arrays that are the same, but for rounding, if it is the same.
        :param ask: asks the model.
        :param cost: of all questions so far, which the file knows as well.
        """
        if (content := self._next()) is not None:
            with self._whole():
                meta, arrays = records.read(content)
                old, found = (records.under(arrays, part) for part in ("q/", "a/"))
                then = Cost(**meta)
            if _are_alike(old, question):
                if not self._is_checked and not _are_alike(found, ask()):
                    raise self._other("it answers differently to the first question of the fit")
                self._is_checked = True
                cost.become(then)
                return found
            self._leave(len(content))
        self._is_checked = True
        found = ask()
        both = {f"q/{k}": array for k, array in question.items()}
        both |= {f"a/{k}": array for k, array in found.items()}
        self._keep(records.record(cost.counts, both))
        return found

    def _next(self) -> bytes | None:
        """The next record of the file; behind the last whole one the rest is dropped."""
        content = next(self._old, None)
        if content is None and not self._is_read and self._file is not None:
            self._is_read = True
            if left := os.fstat(self._file.fileno()).st_size - self._file.tell():
                warn(
                    f"The last {left:,} bytes of checkpoint={self.name!r} are not whole, as a "
                    "process leaves them that is killed, or a machine without power. They are "
                    "dropped, and the fit goes on where they begin."
                )
                self._file.truncate()
        return content

    def _leave(self, length: int) -> None:
        """Drop the record that was read last, and all that follow."""
        assert self._file is not None
        self._old, self._is_read = iter(()), True
        self._file.seek(-length - records.HEAD, os.SEEK_CUR)
        self._file.truncate()

    def _keep(self, record: bytes) -> None:
        """Write a record, and those that could not be written before."""
        assert self._file is not None
        self._unwritten.append(record)
        try:
            self._write(self._file)  # survives the process, though not the machine
            if time.monotonic() - self._synced > SYNC_EVERY:
                files.on_disk(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            self._warn(error)

    def _write(self, file: FileIO) -> None:
        """Write what is not written.

        :raises OSError: if the disk is full, for instance; the file ends with a whole record.
        """
        while self._unwritten:
            start, left = file.tell(), memoryview(self._unwritten[0])
            try:
                while left:
                    left = left[file.write(left) :]
            except BaseException:
                file.seek(start)
                file.truncate()
                raise
            self._unwritten.popleft()

    def _warn(self, error: OSError | ValueError) -> None:
        """Say once that the file does not grow."""
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"checkpoint={self.name!r} cannot be written "
                f"({getattr(error, 'strerror', None) or error}). The fit "
                "goes on, keeps its answers in memory, and tries again with each: make room, or a "
                "run that is killed loses what is not written."
            )

    def _whole(self) -> AbstractContextManager:
        words = "is damaged: delete it to begin anew, or take a copy of it"
        return files.whole(self.name, words)

    def _other(self, why: str) -> ValueError:
        return ValueError(
            f"checkpoint={self.name!r} is of another model, of other data, of other settings or of "
            f"another precision: {why}. Choose another name for the file, or delete it to begin "
            "anew."
        )


def _are_alike(old: Arrays, new: Arrays) -> bool:
    """Whether arrays are the same, but for the rounding of another machine."""
    return old.keys() == new.keys() and all(_is_alike(old[name], new[name]) for name in old)


def _is_alike(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    size = np.max(np.abs(one[np.isfinite(one)]), initial=0.0)
    near = float(np.finfo(one.dtype).eps) ** 0.5
    return np.allclose(one, other, near, near * size, equal_nan=True)
