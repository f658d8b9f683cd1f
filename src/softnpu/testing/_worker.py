"""The process in which tests with other settings run: pytest without a terminal, told by its parent what to run.

The parent sends names of tests; reports and warnings go back as pytest serializes them.
"""

from __future__ import annotations

import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

import pytest
from _pytest.config import Config

#: what a rank of `npu_ranks` is told besides the name of the test
rank_of_job: dict[str, Any] | None = None


def main(descriptor: int) -> None:
    link = Connection(descriptor)
    start = pickle.loads(link.recv_bytes())
    sys.path[:] = start["path"]
    global rank_of_job
    # Under its own name too: the fixtures import this module, which runs as __main__.
    from softnpu.testing import _worker

    _worker.rank_of_job = rank_of_job = start["job"]
    config = Config.fromdictargs(start["options"], start["args"])
    config.pluginmanager.register(_Worker(link), "softnpu worker")
    code = config.hook.pytest_cmdline_main(config=config)
    link.send(("end", int(code or 0)))


class _Worker:
    def __init__(self, link: Connection) -> None:
        self.link = link
        self.config: Any = None

    def pytest_configure(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.link.send(("ready", sorted(items)))
        while True:
            order = self.link.recv()
            if order is None:
                return True
            name, following = order
            if name not in items:
                self.link.send(("unknown", name))
                continue
            item = items[name]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=items.get(following))
            self.link.send(("done", name))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.link.send(("report", data))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.link.send(("collect", str(report.longrepr)))

    def pytest_internalerror(self, excrepr: object) -> None:
        self.link.send(("internal", str(excrepr)))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        message = warning_message
        data = {
            "text": str(message.message),
            "category": (message.category.__module__, message.category.__qualname__),
            "filename": message.filename,
            "lineno": message.lineno,
        }
        self.link.send(("warning", data, when, nodeid, location))


if __name__ == "__main__":
    main(int(sys.argv[1]))
