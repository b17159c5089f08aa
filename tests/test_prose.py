"""How the pages read: long sentences, many numbers and history are found, and there are none."""

from __future__ import annotations

import pytest

from docs.prose import HISTORY, LIMITS, faults, pages, sentences

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_no_fault(path):
    assert not faults(path.read_text("utf-8"))


def test_code_tables_equations_and_targets_of_links_are_no_prose():
    page = """# A title

One `two three`, and $x = 1$ of [a link](page_4.md). A *second* sentence!

| 1 | 2 |
|---|---|

```python
print(5)
```

$$ 6 = 6 $$

![](7.png)

- An item
  of two lines
- Another (Khan and Rue, 2023)
"""
    assert list(sentences(page)) == [
        "A title",
        "One Code, and Code of a link.",
        "A *second* sentence!",
        "An item of two lines",
        "Another (Khan and Rue, 2023)",
    ]
    assert not faults(page)


def test_long_sentences_numbers_and_history_are_found():
    long = "some words " * (LIMITS.words // 2) + "end."
    assert "41 words" in faults(long)[0]
    assert not faults("some words " * 10 + "end: " + "some words " * 9)
    assert "4.0 numbers per hundred words" in faults("It took 1, 2.5, 3e4 and 4 s.")[0]
    assert not faults("It took 1, 2.5 and 3 s.")
    assert "'the the'" in faults("This is the the end.")[0]
    assert "history" in faults("Today it is fast.")[0] and not HISTORY.search("todays")
