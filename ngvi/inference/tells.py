"""Objects that say what they have, and what a call takes."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeVar

from ngvi._door import Function, check_call, door, written_here

Class = TypeVar("Class", bound=type)


class TellsWhatItHas:
    """An object that says what it has in the place of an attribute, or an item, that it has not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or hasattr(type(self), name):
            return object.__getattribute__(self, name)  # whose error is that of a property, maybe
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{self._meant(name)}")

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no items: it has {', '.join(self._has())}.")

    def _has(self) -> list[str]:
        return [one for one in sorted({*dir(type(self)), *vars(self)}) if not one.startswith("_")]

    def _meant(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._has(), 1)
        if meant := written_here(type(self).__name__, name):
            return f": write {meant}."
        return f". Is {near[0]} meant?" if near else f". It has {', '.join(self._has())}."


def signature_of(function: Callable, follow: bool) -> inspect.Signature | None:
    """What a call takes; None if nobody can tell.

    :param follow: to what a decorator or a handler wraps.
    """
    while follow and callable(getattr(function, "fn", None)):
        function = function.fn  # type: ignore[attr-defined]
    if hasattr(function, "forward") and hasattr(function, "named_parameters"):
        function = function.forward  # of a module of torch
    try:
        return inspect.signature(function, follow_wrapped=follow)
    except (TypeError, ValueError):
        return None


def door_with_options_of(*names: str) -> Callable[[Function], Function]:
    """:func:`door` of a method that passes its other keywords on to others of its object.

    :param names: of these, dotted if they are a part's.
    """

    def with_door(function: Function) -> Function:
        own = inspect.signature(function).parameters.values()
        named = [one for one in own if one.kind is not one.VAR_KEYWORD]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            others = (inspect.signature(operator.attrgetter(one)(args[0])) for one in names)
            taken = (one for other in others for one in other.parameters.values())
            passed = (one for one in taken if one.kind is one.KEYWORD_ONLY)
            check_call(function, inspect.Signature([*named, *passed]), args, kwargs)
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return with_door


def door_of_fields(cls: Class) -> Class:
    """A dataclass that says which fields it has."""
    cls.__init__ = door(cls.__init__)  # type: ignore[misc]
    return cls
