"""The pytest plugin: a device for each test, faults, ranks and profiles as fixtures, a summary. docs/pytest.md.

Nothing here imports torch before a test, a fixture or --npu-summary needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest

from softnpu import settings
from softnpu.testing import _fixtures, _sanitize, _settings
from softnpu.testing._fixtures import npu, npu_faults, npu_profile, npu_ranks
from softnpu.testing._processes import Processes
from softnpu.testing._ranks import Done

__all__ = ["npu", "npu_faults", "npu_profile", "npu_ranks"]

_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    _settings.options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest imports torch_npu, which reads the settings."""
    _settings.apply(early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _settings.MARK)
    config.addinivalue_line("markers", _sanitize.MARK)
    _settings.apply(config.option)
    config.pluginmanager.register(_Tests(config), "softnpu tests")


class _Tests:
    """The hooks that need the state of a session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.processes = Processes(config)
        self.summary: Any = None
        self.recorder: Any = None
        if config.getoption("npu_summary"):
            from softnpu.testing import _summary

            self.summary = _summary.Summary()
            self.attach = _summary.attach
            if not config.getoption("numprocesses", None):  # else the workers record
                self.recorder = _summary.SummaryRecorder()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            _settings.differing(item)  # wrong marks are told before anything runs
            _sanitize.reason(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        variables = _settings.differing(item)
        if not variables:
            return None
        self.processes.protocol(item, nextitem, variables, _settings.differing)
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool | None:
        """As pytest-timeout does with its method "thread", but by a daemon. A wait for an event that nobody has recorded
        is an error once no other thread can record it, and an ordinary thread could: it would be told a minute later.
        """
        if settings.method != "thread":
            return None
        from pytest_timeout import timeout_timer

        timer = threading.Timer(settings.timeout, timeout_timer, (item, settings))
        timer.name, timer.daemon = f"pytest_timeout {item.nodeid}", True

        def cancel() -> None:
            timer.cancel()
            timer.join()

        item.cancel_timeout = cancel
        timer.start()
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if self.recorder is not None:
            self.recorder.begin()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        item.stash[_FAILED] = True
        _fixtures.before_call(item)
        _sanitize.begin()
        result = yield
        _sanitize.end(item)
        item.stash[_FAILED] = False
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        result = yield
        _fixtures.after_teardown(item, item.stash.get(_FAILED, True))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, Any, Any]:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(Done):
            report.outcome, report.longrepr = "passed", None
            report.npu_rank_result = call.excinfo.value.result  # type: ignore[attr-defined]
        elif report.when == "call" and report.failed:
            item.stash[_FAILED] = True  # a unittest's failure raises nothing here
        if report.when == "teardown" and self.recorder is not None:
            self.attach(report, item, self.recorder)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.summary is not None:
            self.summary.add(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.summary is not None:
            self.summary.write(terminalreporter, settings.read().soc)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.processes.close()
