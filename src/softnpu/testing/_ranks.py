"""The fixture `npu_ranks`: a part of a test on several processes over hccl.

    def test_sum(npu_ranks):
        @npu_ranks(2)
        def totals(rank):
            x = torch.full((3,), rank + 1.0, device="npu")
            torch.distributed.all_reduce(x)
            return x.tolist()

        assert totals == [[3.0] * 3] * 2

Each rank runs the same test in a process of its own up to the decorated function, calls it there, and stops. So the
function may use whatever the test has, fixtures and parameters among it, and nothing must be pickled but its result.
"""

from __future__ import annotations

import inspect
import pickle
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from softnpu.testing import _worker
from softnpu.testing._processes import Worker, WorkerDied

_GRACE = 10.0  # seconds that the other ranks have after one has failed


class Done(BaseException):
    """The function of a rank has returned: the rest of the test is not for ranks."""

    def __init__(self, result: bytes) -> None:
        super().__init__()
        self.result = result


class Ranks:
    """`npu_ranks(n)` decorates a function, which runs at once; its name then holds the results by rank."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.results: list[list[Any]] = []
        self.summaries: list[dict[str, Any]] = []

    def __call__(
        self, n: int, *, timeout: float = 600.0
    ) -> Callable[[Callable[..., Any]], list[Any]]:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"npu_ranks takes the number of ranks, at least 1, but received {n!r}")

        def run(body: Callable[..., Any]) -> list[Any]:
            job = _worker.rank_of_job
            if job is not None and job["test"] == self.item.nodeid:
                done = len(self.results)
                if done < job["call"]:
                    found = job["earlier"][done]
                else:
                    raise Done(pickle.dumps(_rank(job, body, timeout)))
            else:
                found = self._start(n, timeout)
            self.results.append(found)
            return found

        return run

    def _start(self, n: int, timeout: float) -> list[Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        answers = [_Answer(self._worker(n, rank, port), self.item.nodeid) for rank in range(n)]
        end = time.monotonic() + timeout
        while any(a.thread.is_alive() for a in answers) and time.monotonic() < end:
            if any(a.failed for a in answers):
                end = min(end, time.monotonic() + _GRACE)
            for answer in answers:
                answer.thread.join(0.05)
        for answer in answers:
            if answer.thread.is_alive():
                answer.stop("this rank was stopped: another one failed, or the time was over")
        for answer in answers:
            answer.worker.close()
        return self._gather(answers)

    def _worker(self, n: int, rank: int, port: int) -> Worker:
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        job = {
            "test": self.item.nodeid,
            "rank": rank,
            "size": n,
            "call": len(self.results),
            "earlier": self.results,
        }
        file = self.item.nodeid.split("::")[0]
        return Worker(self.item.config, [file], variables, job)

    def _gather(self, answers: list[_Answer]) -> list[Any]:
        for rank, answer in enumerate(answers):
            for title, content in answer.sections():
                print(f"--- rank {rank}: {title} ---\n{content.rstrip()}")
        self.summaries += [s for answer in answers for s in answer.summaries]
        bad = [(rank, a) for rank, a in enumerate(answers) if a.failed]
        if bad:
            # The rank that failed first is the cause, as a rule; the others lost it.
            bad.sort(key=lambda pair: pair[1].time)
            names = ", ".join(str(rank) for rank, _ in bad)
            text = [f"{len(bad)} of {len(answers)} ranks failed: {names}"]
            text += [f"=== rank {rank} ===\n{a.failed}" for rank, a in bad]
            pytest.fail("\n".join(text), pytrace=False)
        skipped = [a.skipped for a in answers if a.skipped]
        if skipped:
            pytest.skip(skipped[0])
        return [answer.result for answer in answers]


class _Answer:
    """What one rank reports, read by a thread of its own."""

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker, self.name = worker, name
        self.reports: list[dict[str, Any]] = []
        self.failed = self.skipped = ""
        self.time = 0.0
        self.result: Any = None
        self.summaries: list[dict[str, Any]] = []
        self.finished = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for message in self.worker.run(self.name, None):
                if message[0] == "report":
                    self._report(message[1])
            if not self.finished and not self.failed and not self.skipped:
                self._fail("the test ended before it came to its npu_ranks function")
        except (WorkerDied, OSError) as died:
            self._fail(str(died))

    def _report(self, data: dict[str, Any]) -> None:
        self.reports.append(data)
        if "npu_rank_result" in data:
            self.finished, self.result = True, pickle.loads(data["npu_rank_result"])
        if "npu" in data:
            self.summaries.append(data["npu"])
        report = pytest.TestReport._from_json(data)
        if report.failed:
            crash: Any = getattr(report.longrepr, "reprcrash", None)
            lost = crash is not None and "DistBackendError" in crash.message
            # That another rank is gone needs no traceback.
            self._fail(crash.message if lost else report.longreprtext)
        elif report.skipped:
            reason = report.longrepr
            self.skipped = str(reason[2] if isinstance(reason, tuple) else reason)

    def _fail(self, text: str) -> None:
        if not self.failed:
            self.failed, self.time = text, time.monotonic()

    def stop(self, text: str) -> None:
        self._fail(text)
        self.worker.process.kill()
        self.thread.join()

    def sections(self) -> list[tuple[str, str]]:
        last = self.reports[-1]["sections"] if self.reports else []
        return [(t, c) for t, c in last if c.strip() and ("stdout" in t or "stderr" in t)]


def _rank(job: dict[str, Any], body: Callable[..., Any], timeout: float) -> Any:
    import torch
    import torch.distributed as dist

    import torch_npu  # noqa: F401

    torch.npu.set_device(job["rank"] % torch.npu.device_count())
    dist.init_process_group("hccl", timeout=timedelta(seconds=timeout))
    try:
        result = body(job["rank"]) if inspect.signature(body).parameters else body()
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return result
