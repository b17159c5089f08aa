"""Data that come in batches: all rows at every question, without all of them in memory.

A batch's plate says how many rows there are in all, so that its bound is one of all rows, with the
prior in it once. Every answer of an evaluator is linear in the log density: the mean over the
batches of a pass, weighted by the rows in each, is the answer of all rows, and the fit is that of a
model which sees them at once. It reads all batches once for each question of the search, some
hundreds of times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ngvi.inference.engine import Around, Direction, Draws, Engine, Measured, Place
from ngvi.inference.sweep import Rows

COUNTERS = ("num_gradients", "num_hessian_products", "num_values")


class Batches:
    """The model's arguments, a batch at a time.

    :param batches: an iterable that can be read many times, such as a ``DataLoader`` or a list, or
        a function of no arguments that gives an iterator, such as a generator function. A batch is
        a tuple or list of the model's arguments, a dictionary of them by name, or one argument.
    :param args: must be none.
    :param kwargs: of the model, which every batch gets.
    :param to_own: from an element of a batch to what the model expects.
    :raises TypeError: if ``batches`` can be read only once, or not at all.
    :raises ValueError: if they are none, or there are ``args``.
    """

    def __init__(
        self,
        batches: Any,
        args: tuple,
        kwargs: dict[str, Any],
        to_own: Callable[[Any], Any] = lambda batch: batch,
    ) -> None:
        if args:
            raise ValueError(
                "batches= give the model's arguments by place: pass others by their names, "
                "fit(model, batches=..., name=value)."
            )
        if isinstance(batches, Iterator):
            raise TypeError(
                f"batches= is read many times, and a {type(batches).__name__} only once: pass the "
                "function that makes it, or something that can be read again, such as a list or a "
                "DataLoader."
            )
        if not isinstance(batches, Iterable) and not callable(batches):
            raise TypeError(f"batches= must be an iterable of batches, got {batches!r}.")
        self._batches, self._kwargs, self._to_own = batches, kwargs, to_own

    def __iter__(self) -> Iterator[tuple[tuple, dict[str, Any]]]:
        for index in itertools.count():
            try:
                if not index:
                    found = self._begun()
                batch = self._to_own(next(found))
            except StopIteration:
                return
            except Exception as error:
                error.add_note(
                    f"batches= raised this where batch {index}, counted from zero, was to come: it "
                    "is read again, from the beginning, for each question of the search. With "
                    "checkpoint= a fit that is lost goes on in the next call."
                )
                raise
            if isinstance(batch, Mapping):
                yield (), {**self._kwargs, **batch}
            else:
                own = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
                yield own, self._kwargs

    def _begun(self) -> Iterator[Any]:
        """A new pass.

        :raises TypeError: if there is nothing to be read.
        """
        batches: Any = self._batches
        if not isinstance(batches, Iterable):
            batches = batches()
            if not isinstance(batches, Iterable):
                raise TypeError(
                    f"batches= is a function that returned {batches!r}: it must return batches, "
                    "one after another, as a generator function or a list."
                )
        return iter(batches)

    def first(self) -> tuple[tuple, dict[str, Any]]:
        """The arguments of the first batch with rows: one without is told by number later."""
        empty = None
        for args, kwargs in self:
            if not _is_empty(args, kwargs):
                return args, kwargs
            empty = empty or (args, kwargs)
        if empty is None:
            raise ValueError("batches= holds none.")
        return empty  # arrays without elements are none of rows, maybe


def _is_empty(args: tuple, kwargs: Mapping[str, Any]) -> bool:
    return any(0 in getattr(value, "shape", ()) for value in (*args, *kwargs.values()))


def averaging(engine: Engine, batches: Batches) -> Engine:
    """An engine that sees all batches for each question."""
    return engine._replace(evaluator=_Evaluator(engine.evaluator, batches))


class _Evaluator(Around):
    """An evaluator that averages over the batches of a pass.

    :param inner: has a method ``see(args, kwargs)``, which returns the part of the rows that a
        batch holds.
    :ivar fault: of the last pass, which batch had no finite log density, in words; or nothing.
    """

    fault = ""

    is_subsampled = False
    rows: Rows | None = None

    def __init__(self, inner: Any, batches: Batches) -> None:
        super().__init__(inner)
        self._batches = batches

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        return self._mean(lambda: self._inner.measure(place, draws))

    def measure_values(self, place: Place, draws: list[Draws]) -> Measured:
        return self._mean(lambda: self._inner.measure_values(place, draws))

    def values_and_gradients(
        self, place: Place, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._mean(lambda: self._inner.values_and_gradients(place, theta))
        return values, gradients

    def values(self, place: Place, theta: np.ndarray) -> np.ndarray:
        return self._mean(lambda: self._inner.values(place, theta))[0]

    def values_in_double(self, place: Place, theta: np.ndarray) -> None:
        """Not of all batches."""

    def _mean(self, ask: Callable[[], Any]) -> Any:
        inner, covered, total, answer = self._inner, 0.0, None, None
        self.fault = ""
        counted: dict[str, int] = {}
        before = {name: getattr(inner, name) for name in COUNTERS}
        for index, (args, kwargs) in enumerate(self._batches):
            try:
                part = inner.see(args, kwargs)
                answer = ask()
            except Exception as error:
                if _is_empty(args, kwargs):
                    # Pyro adds its table of shapes to what was said.
                    why = next(iter(str(error).splitlines()), type(error).__name__)
                    raise ValueError(
                        f"Batch {index} of batches=, counted from zero, has an array without "
                        f"elements, and the model fails: {why} Leave an empty batch out."
                    ) from error
                error.add_note(f"It is batch {index} of batches=, counted from zero.")
                raise
            counted = counted or {name: getattr(inner, name) for name in COUNTERS}
            found = [part * np.asarray(own, float) for own in parts_of(answer)]
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
            if not self.fault and not np.isfinite(found[0]).all():
                self.fault = f"batch {index}, counted from zero, has log densities that are not"
            covered += part
        for name, count in (counted or before).items():
            setattr(inner, name, count)  # a pass over all rows is one evaluation
        if not math.isclose(covered, 1.0, rel_tol=1e-6):
            raise ValueError(
                f"batches= cover {100 * covered:.6g}% of the rows that the plate is said to have: "
                "fit wants every row once in each pass (a DataLoader without drop_last=)."
            )
        assert total is not None
        return of_parts(answer, total)


def parts_of(answer: Any) -> list[Any]:
    """The arrays of an evaluator's answer, each linear in the log density."""
    if isinstance(answer, Measured):
        mean = answer.mean
        return [answer.values, answer.vectors, mean.vector, mean.covector, *mean.ordinary]
    return list(answer) if isinstance(answer, tuple) else [answer]


def of_parts(answer: Any, parts: list[np.ndarray]) -> Any:
    """The answer of the kind of another one, of which :func:`parts_of` gives these."""
    if isinstance(answer, Measured):
        values, vectors, vector, covector, *ordinary = parts
        return Measured(values, vectors, Direction(vector, covector, ordinary))
    return parts


def fraction(plates: dict[str, tuple[int, int]], batch: str) -> float:
    """Which part of all rows a batch has.

    :param plates: for each that is seen in parts, how many rows are seen, and how many there are.
    :param batch: an example for words.
    :raises ValueError: if the model sees all rows of its plates, or plates say different things.
    """
    found = {name: visited / size for name, (visited, size) in plates.items()}
    if not found:
        raise ValueError(
            "The model takes every batch for all rows: say how many there are in all, by "
            f"{batch}, where y has the rows of the batch."
        )
    first = next(iter(found.values()))
    if not all(math.isclose(part, first) for part in found.values()):
        words = ", ".join(f"{100 * part:.4g}% of '{name}'" for name, part in found.items())
        raise ValueError(f"A batch has {words}: all plates must have the same part of their rows.")
    return first
