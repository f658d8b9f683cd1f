"""Error codes of CANN that these functions return."""

from __future__ import annotations

SUCCESS = 0
INVALID_PARAM = 100000
UNINITIALIZE = 100001
REPEAT_INITIALIZE = 100002
REPEAT_FINALIZE = 100037
RT_PARAM_INVALID = 107000
RT_INVALID_DEVICEID = 107001
RT_CONTEXT_NULL = 107002
RT_STREAM_CONTEXT = 107003
RT_EVENT_TIMESTAMP_INVALID = 107006
RT_STREAM_SUBSCRIBE = 107011
RT_THREAD_SUBSCRIBE = 107012
RT_STREAM_NO_CALLBACK = 107015
RT_MEMORY_ALLOCATION = 207001
RT_MEMORY_FREE = 207002
RT_END_OF_SEQUENCE = 207005
RT_REPORT_TIMEOUT = 507012


def integers(call: str, **values: object) -> None:
    """Raises for what is not an int, as pyACL's parser does."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{call}: {name} must be an int, received {type(value).__name__}")
