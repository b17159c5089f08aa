"""Handlers of the PPL around a call, ``with handlers.scale(scale=4.0): fit(...)``.

``fit`` takes them as if they were around the model, as the stock ``SVI`` does. A result has the
model of its fit for good, and its methods refuse others.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Handlers that leave the model as it is; those that ``fit`` cannot give to it; and methods of a
#: result that leave its model as it is.
WATCHING = {"trace", "seed", "block"}
NOT_OF_A_MODEL = {"plate", "replay", "block", "collapse"}
OF_DRAWS = {"sample", "summary", "diagnostics"}


class Around:
    """The handlers around a call.

    :param stack: the PPL's, the outermost first.
    :param module: where the user has them from, such as ``"poutine"``.
    """

    def __init__(self, stack: list[Any], module: str) -> None:
        self._stack, self._module = stack, module

    @contextmanager
    def given_to(self, model: Callable, guide: Any) -> Iterator[Callable]:
        """Yield the model with the handlers, none of which are around what runs inside.

        :param guide: the user's, or None.
        :raises ValueError: naming a handler that would have to be around the model and its guide.
        """
        with self._aside() as found:
            for one in reversed(found):
                name = self._name(one)
                if guide is not None or name in NOT_OF_A_MODEL:
                    raise ValueError(
                        f"{self._module}.{name} is around fit: apply it to the model, before the "
                        "guide= is made from it, or leave it out."
                    )
                own = copy.copy(one)
                if hasattr(own, "fn"):
                    own.fn = None  # what calls fit
                model = own(model)
            yield model

    @contextmanager
    def left_out(self, method: str) -> Iterator[None]:
        """Run a result's method without them.

        :raises ValueError: naming one, if the method runs the model.
        """
        with self._aside() as found:
            if found and method not in OF_DRAWS:
                raise ValueError(
                    f"{self._module}.{self._name(found[-1])} is around result.{method}, which "
                    "runs the model as it was fitted: call it outside, or fit with the handler "
                    "around the model."
                )
            yield

    @contextmanager
    def _aside(self) -> Iterator[list[Any]]:
        """Take all handlers off, and yield those that count."""
        before = list(self._stack)
        found: list[Any] = []
        for one in before:
            if self._hides_all(one):
                found.clear()
            elif self._name(one) not in WATCHING or (found and self._name(one) == "block"):
                found.append(one)  # a block that hides some sites from those around it
        self._stack.clear()
        try:
            yield found
        finally:
            self._stack[:] = before

    def _hides_all(self, handler: Any) -> bool:
        if self._name(handler) == "block":
            with suppress(Exception):  # a user's function, which wants more of a site
                sites = [
                    {"type": "sample", "name": "", "is_observed": yes} for yes in (True, False)
                ]
                return all(map(handler.hide_fn, sites))
        return False

    @staticmethod
    def _name(handler: Any) -> str:
        """Return what the user calls a handler, by the first of its classes that has a name."""
        kinds = [kind.__name__.removesuffix("Messenger") for kind in type(handler).__mro__]
        names = [re.sub("(?<!^)(?=[A-Z])", "_", kind).lower() for kind in kinds]
        return next((name for name in names if name in WATCHING | NOT_OF_A_MODEL), names[0])
