"""Docstrings that stand once: the page in front, own fields, then those that others have told."""

from __future__ import annotations

import inspect

from ngvi._docs import shared_doc


class Rule:
    """What it is.

    ::

        x <- x + 1
    """


class Base:
    """A base.

    :param lr: of all.
    :param other: of the rest,
        on two lines.
    :raises ValueError: if not.
    """


def test_a_docstring_begins_with_the_page_and_ends_with_the_fields_that_others_have_told():
    @shared_doc(Rule, Base)
    class Described:
        """In this package.

        :param lr: its own,
            on two lines.
        """

    assert inspect.getdoc(Described).splitlines() == [
        "What it is.",
        "",
        "::",
        "",
        "    x <- x + 1",
        "",
        "In this package.",
        "",
        ":param lr: its own,",
        "    on two lines.",
        ":param other: of the rest,",
        "    on two lines.",
        ":raises ValueError: if not.",
    ]


def test_one_that_has_nothing_but_fields_needs_no_prose():
    @shared_doc(Rule)
    def described():
        """:param lr: its own,
        on two lines.
        """

    fields = ":param lr: its own,\n    on two lines."
    assert inspect.getdoc(described).endswith(f"x <- x + 1\n\n{fields}")
