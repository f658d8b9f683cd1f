"""The operators' tests as another chip: `SOFTNPU_SOC=Ascend310P3 pytest tests/ops`.

Most tests are written for the default chip. As another one, a test whose call the chip refuses runs again as the default
chip, if upstream's facts say that the refusal is right (`refusals.py`); the summary counts such tests. All others must pass
as the chip that was asked for, but for those marked with another `family`: they are about its rules, or about infinite
results, which chips in saturation mode never give.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from softnpu import chips, settings
from tests.ops import refusals
from tests.ops.families import as_chip, on

DEFAULT = settings.Settings().soc
_refused: list[str] = []


@pytest.fixture(autouse=True)
def _family(request: pytest.FixtureRequest) -> Iterator[None]:
    marked = request.node.get_closest_marker("family")
    with on(marked.args[0]) if marked and settings.current().soc != DEFAULT else nullcontext():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        refused = refusals.refusal(error)
        if settings.current().soc == DEFAULT or refused is None:
            raise
        if not refusals.is_right(chips.current(), *refused):
            raise AssertionError(
                f"no fact of upstream says that {chips.current().name} refuses this: {error}"
            ) from error
    _refused.append(pyfuncitem.nodeid)
    with as_chip(DEFAULT):
        names = pyfuncitem._fixtureinfo.argnames
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _refused:
        chip = settings.current().soc
        terminalreporter.write_line(f"{len(_refused)} tests that {chip} refuses ran as {DEFAULT}")
