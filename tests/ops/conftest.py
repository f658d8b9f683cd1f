"""The operators' tests as another chip: `SOFTNPU_SOC=Ascend310P3 pytest tests/ops`.

Most tests are written for the default chip. As another one, a test whose call the chip refuses by name (it lacks the
operator, the dtype or the size) runs again as the default chip; the summary counts such tests. All others must pass as
the chip that was asked for.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from softnpu import _C, settings
from torch_npu._errors import BadArgument
from torch_npu.npu._overflow import inf_nan_mode

DEFAULT = settings.Settings().soc
_refused: list[str] = []


def _refusal(error: BaseException | None) -> bool:
    """Whether an operator's check is the reason of an error, be it that a test expected other words."""
    while error is not None:
        if isinstance(error, BadArgument):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        if settings.current().soc == DEFAULT or not _refusal(error):
            raise
    _refused.append(pyfuncitem.nodeid)
    _C.set_saturate(False)
    try:
        with settings.override(soc=DEFAULT):
            names = pyfuncitem._fixtureinfo.argnames
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    finally:
        _C.set_saturate(not inf_nan_mode())
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _refused:
        chip = settings.current().soc
        terminalreporter.write_line(f"{len(_refused)} tests that {chip} refuses ran as {DEFAULT}")
