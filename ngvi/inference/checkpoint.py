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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ngvi.inference import store
from ngvi.inference.data_passes import set_cost
from ngvi.inference.problem import (
    Cost,
    Direction,
    Estimate,
    Forwarding,
    Problem,
    Sample,
    State,
)

FORMAT, VERSION = "ngvi.checkpoint", 1
#: Seconds between writes that wait for the disk: a crash of the machine costs so much.
SYNC_EVERY = 1.0


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
        self._synced = time.monotonic()
        self._is_checked, self._depth = False, 0
        if self.path.is_dir() or not self.path.exists() or not self.path.stat().st_size:
            store.write(self.path, b"")  # now, rather than after an hour
            return
        self._file = open(self.path, "r+b")  # noqa: SIM115
        self._old = store.records(self._file)
        try:
            self._head = store.unpacked(next(self._old))
            meta = self._head[0]
            is_ours = (meta["format"], meta["version"]) == (FORMAT, VERSION)
        except (StopIteration, *store.UNREADABLE):
            meta, is_ours = {}, False
        if not is_ours or meta["library"] != library:
            self.close()
            raise ValueError(
                f"checkpoint={str(path)!r} exists and is no checkpoint of this version of "
                f"{library}{_what(meta)}. Choose another name, or delete the file."
            )
        if keeps_seeds and meta["seeds"] != self.seeds:
            self.close()
            raise ValueError(
                f"checkpoint={str(path)!r} was begun with another rng_key=. Pass that one, or "
                "choose another name for the file."
            )
        self.seeds = meta["seeds"]

    def __enter__(self) -> Checkpoint:
        self._depth += 1  # one search after another writes to it
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.close()

    def close(self) -> None:
        """Wait for the disk, and leave the file."""
        if self._file is not None:
            store.on_disk(self._file)
            self._file.close()
            self._file = None

    def begun(self, space: Any, state: State | None) -> State | None:
        """Let the fit start where it started at first.

        :param space: of the problem; it gets the initial state.
        :param state: where the fit begins, if it has no choice.
        :return: the same of the first run.
        :raises ValueError: if the file holds states of another kind.
        """
        own = {"initial": space.initial}
        if state is not None:
            own["state"] = state
        arrays = {
            f"{name}/{index}": array
            for name, one in own.items()
            for index, array in enumerate(space.arrays(one))
        }
        if self._head is None:
            meta = {
                "format": FORMAT,
                "version": VERSION,
                "library": self.library,
                "seeds": self.seeds,
            }
            store.write(self.path, store.framed(store.packed(meta, arrays)))
            self._file = open(self.path, "r+b")  # noqa: SIM115
            self._file.seek(0, os.SEEK_END)
            return state
        old = self._head[1]
        kinds = [{k: (a.shape, a.dtype) for k, a in found.items()} for found in (arrays, old)]
        if kinds[0] != kinds[1]:
            raise self._other("its parameters have other shapes or another precision")
        if all(array.tobytes() == old[name].tobytes() for name, array in arrays.items()):
            return state
        count = len(space.arrays(space.initial))
        starts = {
            name: space.of_arrays([old[f"{name}/{index}"] for index in range(count)])
            for name in own
        }
        space.initial = starts["initial"]
        return starts.get("state")

    def answer(
        self,
        question: dict[str, np.ndarray],
        ask: Callable[[], dict[str, np.ndarray]],
        counters: Callable[[], dict[str, int]],
        restore: Callable[[dict[str, int]], None],
    ) -> dict[str, np.ndarray]:
        """What the file has for the next question, or what the model says to it now.

        :param question: arrays that are the same, but for rounding, if it is the same.
        :param ask: asks the model.
        :param counters: of what has been asked.
        :param restore: sets them.
        """
        assert self._file is not None
        start = self._file.tell()
        content = next(self._old, None)
        if content is not None:
            meta, arrays = store.unpacked(content)
            old = {k[2:]: array for k, array in arrays.items() if k.startswith("q/")}
            found = {k[2:]: array for k, array in arrays.items() if k.startswith("a/")}
            if _are_alike(old, question):
                if not self._is_checked and not _are_alike(found, ask()):
                    raise self._other("it answers differently to the first question of the fit")
                self._is_checked = True
                restore(meta)
                return found
            self._old = iter(())
            self._file.seek(start)
        self._is_checked = True
        found = {name: np.asarray(array, order="C") for name, array in ask().items()}
        both = {f"q/{name}": array for name, array in question.items()}
        both |= {f"a/{name}": array for name, array in found.items()}
        self._file.truncate()
        self._file.write(store.framed(store.packed(counters(), both)))
        self._file.flush()  # survives the process, though not the machine
        if time.monotonic() - self._synced > SYNC_EVERY:
            store.on_disk(self._file)
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
        return self._estimate(self.inner.bound, state, sample)

    def score(self, state: State, sample: Sample) -> Estimate:
        return self._estimate(self.inner.score, state, sample)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def ask() -> dict[str, np.ndarray]:
            values, gradients = self.inner.gradient(state, theta)
            return {"values": np.asarray(values, float), "gradients": np.asarray(gradients, float)}

        found = self._answer("gradient", {"theta": theta}, ask)
        return found["values"], found["gradients"]

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        question = {"mean": self._space.mean(state), "count": np.array(len(theta))}
        question["first"] = theta[0]

        def ask() -> dict[str, np.ndarray]:
            return {"values": self.inner.log_density(state, theta)}

        return self._answer("log_density", question, ask)["values"]

    def _estimate(self, evaluate: Callable, state: State, sample: Sample) -> Estimate:
        question = {
            "mean": self._space.mean(state),
            "seeds": np.array([group.seed for group in sample]),
        }

        def ask() -> dict[str, np.ndarray]:
            values, naturals, mean = evaluate(state, sample)
            own = {f"parameters/{i}": np.asarray(g) for i, g in enumerate(mean.parameters)}
            return {
                "values": values,
                "naturals": naturals,
                "natural": mean.natural,
                "gradient": mean.gradient,
                **own,
            }

        found = self._answer(evaluate.__name__, question, ask)
        own = [found[f"parameters/{index}"] for index in range(len(found) - 4)]
        mean = Direction(found["natural"], found["gradient"], own)
        return Estimate(found["values"], found["naturals"], mean)

    def _answer(
        self, kind: str, question: dict[str, np.ndarray], ask: Callable[[], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        def counters() -> dict[str, int]:
            return {name: int(count) for name, count in vars(self.cost).items()}

        def restore(counters: dict[str, int]) -> None:
            set_cost(self.cost, Cost(**counters))

        question = {"kind": np.array(kind), **question}
        return self._checkpoint.answer(question, ask, counters, restore)


def _are_alike(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> bool:
    """Whether arrays are the same, but for the rounding of another machine."""
    if old.keys() != new.keys():
        return False
    for name, array in old.items():
        other = np.asarray(new[name])
        if array.shape != other.shape or array.dtype != other.dtype:
            return False
        if array.dtype.kind != "f":
            if not np.array_equal(array, other):
                return False
            continue
        size = np.max(np.abs(array[np.isfinite(array)]), initial=0.0)
        near = float(np.finfo(array.dtype).eps) ** 0.5
        if not np.allclose(array, other, near, near * size, equal_nan=True):
            return False
    return True


def _what(meta: dict[str, Any]) -> str:
    """Of a file's first record, what it is of, in words."""
    return f", but {meta['format']} {meta['version']} of {meta['library']}" if meta else ""
