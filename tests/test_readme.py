"""Every ```python block of the README runs as printed, with the names that it imports itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"

#: ```python, but not ```python no-run: fragments that are shown only.
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks():
    text = README.read_text(encoding="utf-8") if README.exists() else ""
    return [
        pytest.param(match[1], id=f"line {text[: match.start()].count(chr(10)) + 1}")
        for match in BLOCK.finditer(text)
    ]


def test_the_readme_has_an_example_for_each_package():
    code = "\n".join(block.values[0] for block in _blocks())
    for package in ("pyro_ngvi", "numpyro_ngvi"):
        assert re.search(rf"^from {package} import|^import {package}", code, re.MULTILINE)


@pytest.mark.parametrize("code", _blocks())
def test_a_block_of_the_readme_runs_as_printed(code, tmp_path, monkeypatch):
    for ppl in ("numpyro", "pyro"):
        if re.search(rf"^(from|import) {ppl}\b", code, re.MULTILINE):
            pytest.importorskip(ppl)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
