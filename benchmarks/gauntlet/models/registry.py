"""The list of the gauntlet's models."""

from __future__ import annotations

import fnmatch
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .ppl import Ppl


@dataclass(frozen=True)
class Entry:
    """One model with its data.

    :param name: ``class/model``.
    :param function: of a :class:`Ppl` and the data.
    :param make_data: gives numpy arrays, the model's arguments.
    :param held_out: never looked at while the search is developed.
    :param batch: how many rows a minibatch has; the function takes ``batch=`` then, and None
        is all of them.
    :param enumerated: whether there are discrete latents to sum out.
    :param later: written after the search had last been changed, in this of the :data:`ROUNDS`, and
        in no sum of the others; 0 for the rest.
    """

    name: str
    function: Callable
    make_data: Callable[[], tuple]
    held_out: bool = False
    batch: int | None = None
    enumerated: bool = False
    later: int = 0

    @property
    def group(self) -> str:
        """The class."""
        return self.name.partition("/")[0]

    @functools.cached_property
    def data(self) -> tuple:
        return self.make_data()

    def model(self, ppl: Ppl, *, full: bool = False) -> Callable:
        """The model of one PPL, a function of :meth:`args`.

        :param full: without minibatches.
        """
        options = {} if self.batch is None else {"batch": None if full else self.batch}

        def model(*args: Any) -> Any:
            return self.function(ppl, *args, **options)

        model.__name__ = self.function.__name__
        return model

    def args(self, ppl: Ppl) -> tuple:
        """The data as arrays of the PPL."""
        return tuple(ppl.array(value) for value in self.data)


ENTRIES: dict[str, Entry] = {}


def entry(group: str, data: Callable[[], tuple], name: str = "", **options: Any) -> Callable:
    """Put a function into the list, with its own name or another.

    :param group: the class.
    :param data: gives numpy arrays, the model's arguments.
    :param options: of :class:`Entry`.
    """

    def add(function: Callable) -> Callable:
        full_name = f"{group}/{name or function.__name__}"
        ENTRIES[full_name] = Entry(full_name, function, data, **options)
        return function

    return add


ROUNDS = {"later": 1, "latest": 2, "reread": 3}
later, latest, reread = (functools.partial(entry, later=number) for number in ROUNDS.values())


#: What ``--which`` takes: ``all`` are those of before the rounds, ``every`` has the rounds as well,
#: ``unseen`` and ``everyday`` are in ``benchmarks/unseen_models``, and in none of the others.
WHICH = ("visible", "held_out", "all", *ROUNDS, "every", "unseen", "everyday")


def chosen(pattern: str = "*", which: str = "visible") -> list[Entry]:
    """Entries by a pattern of their names.

    :param pattern: of ``class/model``, or several with commas between them.
    :param which: one of :data:`WHICH`.
    """
    if which in ROUNDS:
        parts = [e for e in ENTRIES.values() if e.later == ROUNDS[which]]
    elif which == "every":
        parts = list(ENTRIES.values())
    elif which in ("unseen", "everyday"):
        module = importlib.import_module("benchmarks.unseen_models")
        parts = list(getattr(module, which.upper()).values())
    else:
        wanted = {"visible": (False,), "held_out": (True,), "all": (False, True)}[which]
        parts = [e for e in ENTRIES.values() if not e.later and e.held_out in wanted]
    return [entry for entry in parts if matches(entry.name, pattern)]


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, or one of several with commas between them."""
    return any(fnmatch.fnmatch(name, one) for one in pattern.split(","))
