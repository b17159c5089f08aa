"""Several of SciPy's searches that share the runs of a model.

Scipy's searches call a function, and cannot be asked for their next point: each has a thread here
that waits for its answers. In Pyro one run at several points costs hardly more than at one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Gives the value and the gradient at a point.
Ask = Callable[[np.ndarray], tuple[float, np.ndarray]]


class _StoppedError(Exception):
    """The model is not run any more."""


def in_lockstep(
    tasks: Sequence[Callable[[Ask], None]],
    answers: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> None:
    """Run tasks that ask one question after another, and answer those of all at once.

    :param tasks: each gets a function that gives the value and the gradient at a point.
    :param answers: those at several points, shape ``(N, d)``; called by this thread alone, with
        the points in the order of the tasks.
    """
    asked: queue.SimpleQueue = queue.SimpleQueue()
    replies = [queue.SimpleQueue[Any]() for _ in tasks]

    def run(index: int) -> None:
        def ask(question: np.ndarray) -> tuple:
            asked.put((index, question))
            answer = replies[index].get()
            if answer is None:
                raise _StoppedError
            return answer

        failure = None
        try:
            tasks[index](ask)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  it is raised where the model runs
            failure = error
        asked.put((index, failure))

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    active = len(tasks)
    try:
        while active:
            round_ = sorted((asked.get() for _ in range(active)), key=lambda pair: pair[0])
            for _, found in round_:
                if isinstance(found, BaseException):
                    raise found
            open_ = [(index, found) for index, found in round_ if found is not None]
            active = len(open_)
            if open_:
                values, gradients = answers(np.stack([found for _, found in open_]))
                for (index, _), value, gradient in zip(open_, values, gradients, strict=True):
                    replies[index].put((float(value), gradient))
    finally:
        for reply in replies:
            reply.put(None)
        for thread in threads:
            thread.join()
