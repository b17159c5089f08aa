"""Several of SciPy's searches that share the runs of a model.

Scipy's searches call a function, and cannot be asked for their next point: each has a thread here
that waits for its answers. In Pyro one run at several points costs hardly more than at one.

A process that is out of memory can start a thread that ends before it has run a line, and of which
nobody hears: ``threading.Thread.start`` waits for it for ever. Threads are started without it, and
whoever waits for one looks, now and then, whether it is still there.
"""

from __future__ import annotations

import _thread
import queue
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Gives the value and the gradient at a point.
Ask = Callable[[np.ndarray], tuple[float, np.ndarray]]
#: Seconds between looks at threads of which nothing is heard.
LOOK_EVERY = 1.0


class _StoppedError(Exception):
    """The model is not run any more."""


class _Alive:
    """Is there as long as the thread that was given it."""


def in_lockstep(
    tasks: Sequence[Callable[[Ask], None]],
    answers: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> None:
    """Run tasks that ask one question after another, and answer those of all at once.

    :param tasks: each gets a function that gives the value and the gradient at a point.
    :param answers: those at several points, shape ``(N, d)``; called by this thread alone, with
        the points in the order of the tasks.
    :raises MemoryError: where there is none for the threads of the tasks.
    """
    threads = _Threads(tasks)
    try:
        while threads.active:
            round_ = sorted(threads.next_round(), key=lambda pair: pair[0])
            for _, found in round_:
                if isinstance(found, BaseException):
                    raise found
            open_ = [(index, found) for index, found in round_ if found is not None]
            if open_:
                values, gradients = answers(np.stack([found for _, found in open_]))
                for (index, _), value, gradient in zip(open_, values, gradients, strict=True):
                    threads.replies[index].put((float(value), gradient))
    finally:
        threads.end()


class _Threads:
    """A thread for each task.

    :ivar active: by the task's number, what is there as long as its thread is.
    :ivar replies: by the task's number.
    :raises MemoryError: if they cannot be started.
    """

    def __init__(self, tasks: Sequence[Callable[[Ask], None]]) -> None:
        self.active: dict[int, weakref.ref] = {}
        self.replies = [queue.SimpleQueue[Any]() for _ in tasks]
        self._asked: queue.SimpleQueue = queue.SimpleQueue()
        for index, task in enumerate(tasks):
            alive = _Alive()
            self.active[index] = weakref.ref(alive)
            try:
                _thread.start_new_thread(self._run, (index, task, alive))
            except RuntimeError as error:  # so Python says it
                del self.active[index]
                self.end()
                raise MemoryError(
                    f"There is no memory for a thread, or the process may have no more: {error}."
                ) from error
            del alive

    def next_round(self) -> list[tuple[int, Any]]:
        """A question, an error or None, for its end, of each that is active.

        :raises MemoryError: if one has ended without a word.
        """
        found: dict[int, Any] = {}
        while len(found) < len(self.active):
            try:
                index, what = self._asked.get(timeout=LOOK_EVERY)
            except queue.Empty:
                silent = {k: is_there for k, is_there in self.active.items() if k not in found}
                lost = [k for k, is_there in silent.items() if is_there() is None]
                if lost and self._asked.empty():
                    for k in lost:
                        del self.active[k]
                    raise MemoryError("There is no memory for a thread, which ended.") from None
            else:
                found[index] = what
        for index, what in found.items():
            if what is None or isinstance(what, BaseException):
                del self.active[index]
        return list(found.items())

    def end(self) -> None:
        """Wait for the end of those that are active, none of which gets another answer."""
        for index in self.active:
            self.replies[index].put(None)
        while self.active:
            try:
                self.next_round()
            except MemoryError:
                continue

    def _run(self, index: int, task: Callable[[Ask], None], alive: _Alive) -> None:
        def ask(question: np.ndarray) -> tuple:
            self._asked.put((index, question))
            answer = self.replies[index].get()
            if answer is None:
                raise _StoppedError
            return answer

        failure = None
        try:
            task(ask)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  it is raised where the model runs
            failure = error
        self._asked.put((index, failure))
