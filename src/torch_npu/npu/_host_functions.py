"""Python functions that run at their place in a stream: at once, behind a blocked stream, or in every replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error

_subscribed: set[tuple[int, int]] = set()


def _key(stream: Any) -> tuple[int, int]:
    if not hasattr(stream, "stream_id"):
        raise TypeError(
            f"stream must be a torch_npu.npu.Stream, but received {type(stream).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    _C.ensure_started()
    return stream.device_index, stream.stream_id


def _subscribe_report(op_stream: Any) -> None:
    """Lets host functions run in a stream."""
    _subscribed.add(_key(op_stream))


def _unsubscribe_report(op_stream: Any) -> None:
    """Ends `_subscribe_report`."""
    _subscribed.discard(_key(op_stream))


def _launch_host_func(op_stream: Any, fn: Callable[[Any], Any], user_data: Any) -> None:
    """Calls `fn(user_data)` after the work launched on the stream so far."""
    if _key(op_stream) not in _subscribed:
        raise RuntimeError(
            "_launch_host_func needs _subscribe_report on the stream first"
            + pta_error(ErrCode.PARAM)
        )
    _C.host_function(*_key(op_stream), lambda: fn(user_data))


def _launch_host_func_pending(
    op_stream: Any, fn: Callable[..., Any], user_data: tuple[Any, ...]
) -> None:
    """Calls `fn(*user_data)` after the work launched on the stream so far; needs no subscription."""
    _C.host_function(*_key(op_stream), lambda: fn(*user_data))
