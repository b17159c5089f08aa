"""What the two plugins share: respellings and an honest count.

A test *has our guide inserted* if it builds an instance of a replaced class; that is
recorded while the test runs, so the summary cannot count tests that never saw the guide.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections import Counter
from collections.abc import Iterable
from types import CodeType
from typing import Any

import pytest

INSERTED = "ngvi_inserted"

#: With ``NGVI_STOCK=1`` the same selection of tests runs with the stock guides: the baseline.
STOCK = os.environ.get("NGVI_STOCK") == "1"


class Insertion:
    """A pytest plugin around a PPL whose Gaussian autoguides have been replaced.

    :param replaced: names of the replaced classes.
    :param respellings: by test, pairs of source text, what the test says and what it is to
        say. A test is the end of its node id, ``"test_file.py::test_name"`` or
        ``"test_file.py::test_name[parameters]"``.
    """

    def __init__(
        self, replaced: Iterable[str], respellings: dict[str, list[tuple[str, str]]]
    ) -> None:
        self.replaced = tuple(replaced)
        self.respellings = respellings
        self._current: pytest.Item | None = None
        self._outcomes: Counter[str] = Counter()

    def built(self) -> None:
        """To be called by the constructor of a replacement."""
        if self._current is not None and (INSERTED, True) not in self._current.user_properties:
            self._current.user_properties.append((INSERTED, True))

    # -- pytest hooks -----------------------------------------------------------------

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if config.getoption("--only-inserted"):
            kept = [item for item in items if self._mentions_replaced(item)]
            config.hook.pytest_deselected(items=[item for item in items if item not in kept])
            items[:] = kept
        for item in [] if STOCK else items:
            pairs = _lookup(self.respellings, item)
            if pairs is not None:
                item.obj = _respelled(item.function, pairs)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._current = item
        try:
            return (yield)
        finally:
            self._current = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (INSERTED, True) in map(tuple, report.user_properties) and report.when == "call":
            xfail = "x" if hasattr(report, "wasxfail") else ""
            outcome = "failed" if xfail and report.skipped else report.outcome
            self._outcomes[xfail + outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self._outcomes.items()))
        terminalreporter.write_line(
            f"ngvi: tests that built our guide in place of {' or '.join(self.replaced)}: "
            f"{counts or 'none'}"
        )

    # -- which tests ------------------------------------------------------------------

    def _mentions_replaced(self, item: pytest.Item) -> bool:
        parameters = getattr(item, "callspec", None)
        values = list(parameters.params.values()) if parameters else []
        # A unittest method may build the guide in a helper of its class.
        called = _names(item.function.__code__)
        helpers = [value for name, value in vars(item.cls or object).items() if name in called]
        return any(self._uses(value) for value in [item.function, *values, *helpers])

    def _uses(self, value: Any) -> bool:
        if isinstance(value, tuple | list):
            return any(self._uses(element) for element in value)
        if isinstance(value, functools.partial):
            return self._uses(value.func)
        if isinstance(value, type):
            return value.__name__ in self.replaced
        return inspect.isfunction(value) and not _names(value.__code__).isdisjoint(self.replaced)


def add_option(parser: pytest.Parser) -> None:
    """The option that both plugins have."""
    parser.addoption(
        "--only-inserted", action="store_true", help="run only tests that mention a replaced guide"
    )


def _lookup(table: dict[str, Any], item: pytest.Item) -> Any:
    # The whole id first: parameters that need no respelling are left alone.
    for test in (item.nodeid, item.nodeid.split("[")[0]):
        for key, value in table.items():
            if test.endswith(key):
                return value
    return None


def _respelled(function: Any, pairs: list[tuple[str, str]]) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    for stock, ours in pairs:
        if stock not in source:
            raise pytest.UsageError(
                f"{function.__name__} no longer contains {stock!r}: update the respellings."
            )
        source = source.replace(stock, ours)
    source = source[source.index("def ") :]
    namespace: dict[str, Any] = {}
    exec(compile(source, inspect.getsourcefile(function), "exec"), function.__globals__, namespace)  # noqa: S102
    return namespace[function.__name__]


def _names(code: CodeType) -> set[str]:
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, nested))
