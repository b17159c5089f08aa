"""Docstrings that both packages share.

What an algorithm is stands beside its equations, here; what a package calls its arguments, there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

Described = TypeVar("Described", bound=Callable)


def page(about: Any, *fields: Any) -> Callable[[Described], Described]:
    """Put the docstring of ``about`` in front of that of a class or function.

    :param about: an object that has it.
    :param fields: docstrings, or objects that have one, of which the fields (``:param x:``) follow
        that are not described yet.
    """

    def described(thing: Described) -> Described:
        prose, own = _parts(thing)
        for inherited in fields:
            own = {**own, **{k: v for k, v in _parts(inherited)[1].items() if k not in own}}
        order = sorted(own, key=_rank)
        texts = [*filter(None, (inspect.cleandoc(about.__doc__), prose))]
        thing.__doc__ = "\n\n".join([*texts, "\n".join(own[name] for name in order)])
        return thing

    return described


def _parts(thing: Any) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and its fields by name."""
    text = inspect.cleandoc(thing if isinstance(thing, str) else thing.__doc__ or "")
    prose, *fields = re.split(r"^(?=:\w)", text, flags=re.MULTILINE)
    indented = (re.sub(r"\n\s*", "\n    ", field.rstrip()) for field in fields)
    return prose.strip(), {field.split(":")[1]: field for field in indented}


def _rank(field: str) -> int:
    kinds = ("param", "ivar", "return", "raises")
    return kinds.index(field.split(" ")[0])
