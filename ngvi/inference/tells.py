"""Signatures of functions, and names of attributes in other libraries."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ngvi._door import Function, check_call, door, written_here
from ngvi._lock import serialised


class TellsWhatItHas:
    """An object that knows what other libraries call its attributes."""

    if not TYPE_CHECKING:  # which knows all attributes

        def __getattr__(self, name: str) -> Any:
            own = type(self).__name__
            if meant := written_here(own, name):
                raise AttributeError(f"{own} has no attribute {name!r}: write {meant}.")
            return object.__getattribute__(self, name)  # whose error is Python's own


def signature_of(function: Callable, follow: bool) -> inspect.Signature | None:
    """Return the signature of a function, or None if it has none.

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


def alone(function: Function) -> Function:
    """Check the call of a result's method, which waits as in :func:`unhandled`."""
    return door(unhandled(function))


def unhandled(function: Function) -> Function:
    """Run a result's method while no other thread is in one, and no handler is around it."""

    @functools.wraps(function)
    def apart(result: Any, *args: Any, **kwargs: Any) -> Any:
        with result._ppl.around.left_out(function.__name__):
            return function(result, *args, **kwargs)

    return serialised(apart)  # type: ignore[return-value]


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
