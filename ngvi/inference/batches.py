"""The user's batches: the model's arguments, read again for each evaluation of all rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


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
        self, batches: Any, args: tuple, kwargs: dict, to_own: Callable = lambda batch: batch
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
                    f"batches= raised this at batch {index}, counted from zero. It is read from "
                    "the beginning for each evaluation of all rows. With checkpoint=, the next "
                    "call starts from the best result so far."
                )
                raise
            if isinstance(batch, Mapping):
                yield (), {**self._kwargs, **batch}
            else:
                own = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
                yield own, self._kwargs

    def _begun(self) -> Iterator[Any]:
        """Begin a new pass.

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
        """Return the arguments of the first batch."""
        found = next(iter(self), None)
        if found is None:
            raise ValueError("batches= holds none.")
        return found
