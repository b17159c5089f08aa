"""How the pages read: long sentences, many numbers and history are found, and there are none."""

from __future__ import annotations

import pytest

from docs.prose import faults, pages

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_no_fault(path):
    assert not faults(path.read_text("utf-8"))
