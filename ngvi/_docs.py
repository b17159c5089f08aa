"""Docstrings that both packages share.

What an algorithm is stands beside its equations, here; what a package calls its arguments, there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

#: The fields of a docstring, in their order.
FIELDS = ("param", "ivar", "return", "raises")

Described = TypeVar("Described", bound=Callable)


def shared_doc(about: Any, *others: Any) -> Callable[[Described], Described]:
    """Put the docstring of ``about`` in front of that of a class or function.

    :param about: an object that has it; of a class the fields of its bases stand, too.
    :param others: docstrings, or objects that have one, of which the fields (``:param x:``) follow
        that are not described yet.
    """

    def described(thing: Described) -> Described:
        (shared, _), (prose, own) = _parts(about), _parts(thing)
        kinds = reversed(about.__mro__[:-1]) if isinstance(about, type) else (about,)
        fields = {name: field for kind in kinds for name, field in _parts(kind)[1].items()}
        fields.update(own)
        for other in others:
            for name, field in _parts(other)[1].items():
                fields.setdefault(name, field)
        ordered = "\n".join(
            fields[name] for name in sorted(fields, key=lambda one: FIELDS.index(one.split()[0]))
        )
        thing.__doc__ = "\n\n".join(filter(None, (shared, prose, ordered)))
        return thing

    return described


def _parts(thing: Any) -> tuple[str, dict[str, str]]:
    """Return the prose of a docstring, and its fields by name."""
    text = inspect.cleandoc(thing if isinstance(thing, str) else thing.__doc__ or "")
    prose, *fields = re.split(rf"^(?=:(?:{'|'.join(FIELDS)})\b)", text, flags=re.MULTILINE)
    indented = (re.sub(r"\n\s*", "\n    ", field.rstrip()) for field in fields)
    return prose.strip(), {field.split(":")[1]: field for field in indented}
