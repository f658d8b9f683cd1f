"""torchair.ops: operators that mean something in graphs alone, or more there than eagerly."""

from __future__ import annotations

from torchair.ops._attention import (
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_v2,
)
from torchair.ops._print import npu_print
from torchair.ops._record import record, wait
from torchair.ops._tagged import (
    npu_create_tagged_event,
    npu_record_tagged_stream,
    npu_tagged_event_record,
    npu_tagged_event_wait,
)

__all__ = [
    "npu_create_tagged_event",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_print",
    "npu_record_tagged_stream",
    "npu_tagged_event_record",
    "npu_tagged_event_wait",
    "record",
    "wait",
]
