"""A checkpoint of ``fit``: the answers of the model, one after another, in a file that only grows.

A fit decides by numbers: what the model answered, and random numbers from its seeds. With the
answers of a run that was killed, a new one takes the same decisions without running the model,
until there are no more; there it goes on. Its way is that of a run that was never killed, bit for
bit where arithmetic is the same, and nothing of the search has to be saved or restored: no state
can be forgotten.

- The file begins with the seeds and the state of the start. A record is one answer, with the
  question that it belongs to.
- A record that is not whole, because the process was killed in it, is dropped.
- The first answer is asked for again. If it is not the same, model, data or precision are not.
- Where a question is another one than in the file, because ``tolerance`` or ``max_steps`` are,
  the fit leaves the old way: the rest of the file is dropped.

It costs the natural gradients of each step on the disk: with ``n`` numbers of a Gaussian, ``n``
for each group of draws and two more.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ngvi.inference import files
from ngvi.inference.data_passes import parts_of, set_cost
from ngvi.inference.estimate import Direction, Estimate, Sample, State
from ngvi.inference.problem import Cost, Forwarding, Problem

FORMAT, VERSION = "ngvi.checkpoint", 2
#: Seconds between writes that wait for the disk: a crash of the machine costs so much.
SYNC_EVERY = 1.0

Arrays = dict[str, np.ndarray]


class Checkpoint:
    """One file; a context manager.

    :param path: of the file, which need not exist.
    :param library: the package that fits.
    :param seeds: of the fit, if the file does not have them.
    :param keeps_seeds: whether others in the file are an error.
    :ivar seeds: of the fit.
    :raises ValueError: if the file is none of these.
    :raises OSError: if it cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        library: str,
        seeds: list[int],
        keeps_seeds: bool = False,
    ) -> None:
        self.path, self.library, self.seeds = Path(path), library, [int(seed) for seed in seeds]
        self._file: BinaryIO | None = None
        self._old: Iterator[bytes] = iter(())
        self._head: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._synced, self._is_checked = time.monotonic(), False
        if self.path.is_dir() or not self.path.exists() or not self.path.stat().st_size:
            files.write(self.path, b"")  # now, rather than after an hour
            return
        self._file = open(self.path, "r+b")  # noqa: SIM115
        self._old = _records(self._file)
        try:
            self._head = files.unpacked(next(self._old))
            meta = self._head[0]
            is_ours = (meta["format"], meta["version"]) == (FORMAT, VERSION)
        except (StopIteration, *files.UNREADABLE):
            meta, is_ours = {}, False
        if not is_ours or meta["library"] != library:
            self.close()
            what = f", but {meta['format']} {meta['version']} of {meta['library']}" if meta else ""
            raise ValueError(
                f"checkpoint={str(path)!r} exists and is no checkpoint of this version of "
                f"{library}{what}. Choose another name, or delete the file."
            )
        if keeps_seeds and meta["seeds"] != self.seeds:
            self.close()
            raise ValueError(
                f"checkpoint={str(path)!r} was begun with another rng_key=. Pass that one, or "
                "choose another name for the file."
            )
        self.seeds = meta["seeds"]

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the disk, and leave the file."""
        if self._file is not None:
            files.on_disk(self._file)
            self._file.close()
            self._file = None

    def begun(self, space: Any, state: State | None) -> State | None:
        """Let the fit start where it started at first.

        :param space: of the problem; it gets the initial state.
        :param state: where the fit begins, if it has no choice.
        :return: the same of the first run.
        :raises ValueError: if the file holds states of another kind.
        """
        own = {"initial": space.initial} | ({} if state is None else {"state": state})
        arrays = {f"{k}/{i}": a for k, one in own.items() for i, a in enumerate(space.arrays(one))}
        if self._head is None:
            meta = {"format": FORMAT, "version": VERSION, "library": self.library}
            content = files.packed({**meta, "seeds": self.seeds}, arrays)
            files.write(self.path, _framed(content))
            self._file = open(self.path, "r+b")  # noqa: SIM115
            self._file.seek(0, os.SEEK_END)
            return state
        old = self._head[1]
        kinds = [{k: (a.shape, a.dtype) for k, a in found.items()} for found in (arrays, old)]
        if kinds[0] != kinds[1]:
            raise self._other("its parameters have other shapes or another precision")
        if all(array.tobytes() == old[name].tobytes() for name, array in arrays.items()):
            return state
        count = range(len(arrays) // len(own))
        starts = {k: space.of_arrays([old[f"{k}/{i}"] for i in count]) for k in own}
        space.initial = starts["initial"]
        return starts.get("state")

    def answer(self, question: Arrays, ask: Callable[[], Arrays], cost: Cost) -> Arrays:
        """What the file has for the next question, or what the model says to it now.

        :param question: arrays that are the same, but for rounding, if it is the same.
        :param ask: asks the model.
        :param cost: of all questions so far, which the file knows as well.
        """
        assert self._file is not None
        start = self._file.tell()
        if (content := next(self._old, None)) is not None:
            meta, arrays = files.unpacked(content)
            old, found = (
                {k[2:]: array for k, array in arrays.items() if k.startswith(part)}
                for part in ("q/", "a/")
            )
            if _are_alike(old, question):
                if not self._is_checked and not _are_alike(found, ask()):
                    raise self._other("it answers differently to the first question of the fit")
                self._is_checked = True
                set_cost(cost, Cost(**meta))
                return found
            self._old = iter(())
            self._file.seek(start)
        self._is_checked = True
        found = ask()
        both = {f"q/{k}": array for k, array in question.items()}
        both |= {f"a/{k}": array for k, array in found.items()}
        self._file.truncate()
        counts = {name: int(count) for name, count in vars(cost).items()}
        self._file.write(_framed(files.packed(counts, both)))
        self._file.flush()  # survives the process, though not the machine
        if time.monotonic() - self._synced > SYNC_EVERY:
            files.on_disk(self._file)
            self._synced = time.monotonic()
        return found

    def _other(self, why: str) -> ValueError:
        return ValueError(
            f"checkpoint={str(self.path)!r} is of another model, of other data or of another "
            f"precision: {why}. Choose another name for the file, or delete it to begin anew."
        )


def recorded(problem: Problem, checkpoint: Checkpoint) -> Problem:
    """A problem whose answers are in the file, or get there."""
    return problem.replace(objective=_Recorded(problem, checkpoint))


class _Recorded(Forwarding):
    """An objective that looks into the file first."""

    def __init__(self, problem: Problem, checkpoint: Checkpoint) -> None:
        super().__init__(problem.objective)
        self._space, self._checkpoint = problem.space, checkpoint

    def bound(self, state: State, sample: Sample) -> Estimate:
        return self._estimate("bound", state, sample)

    def score(self, state: State, sample: Sample) -> Estimate:
        return self._estimate("score", state, sample)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._parts("gradient", {"theta": theta}, state, theta)
        return values, gradients

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        question = {"count": np.array(len(theta)), "first": theta[0]}
        question["mean"] = self._space.mean(state)
        return self._parts("log_density", question, state, theta)[0]

    def _estimate(self, name: str, state: State, sample: Sample) -> Estimate:
        question = {"seeds": np.array([group.seed for group in sample])}
        question["mean"] = self._space.mean(state)
        values, naturals, natural, gradient, *own = self._parts(name, question, state, sample)
        return Estimate(values, naturals, Direction(natural, gradient, own))

    def _parts(self, name: str, question: Arrays, *arguments: Any) -> list[np.ndarray]:
        """The arrays of an answer."""

        def ask() -> Arrays:
            found = parts_of(getattr(self.inner, name)(*arguments))
            return {str(i): np.asarray(part, order="C") for i, part in enumerate(found)}

        question = {"name": np.array(name), **question}
        return list(self._checkpoint.answer(question, ask, self.cost).values())


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


# -- records -------------------------------------------------------------------------------


def _framed(content: bytes) -> bytes:
    """A record: its length, its checksum, and it."""
    head = len(content).to_bytes(8, "little") + zlib.crc32(content).to_bytes(4, "little")
    return head + content


def _records(file: BinaryIO) -> Iterator[bytes]:
    """The records of a file, up to the first that is not whole; the file is left at its end."""
    while True:
        start = file.tell()
        head = file.read(12)
        length = int.from_bytes(head[:8], "little")
        left = os.fstat(file.fileno()).st_size - file.tell()
        content = file.read(length) if len(head) == 12 and length <= left else b""
        checksum = zlib.crc32(content).to_bytes(4, "little")
        if len(head) < 12 or len(content) < length or checksum != head[8:]:
            file.seek(start)
            return
        yield content
