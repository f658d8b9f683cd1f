"""torch_npu.npu._memory_viz: PyTorch's own reader of memory snapshots, whose form is CUDA's here too."""

from torch.cuda._memory_viz import (
    _block_extra,
    _block_extra_legacy,
    _frame_filter,
    _frame_fmt,
    _frames_fmt,
    _write_blocks,
    compare,
    format_flamegraph,
    memory,
    profile_plot,
    segment_plot,
    segments,
    segsum,
    trace,
    trace_plot,
)

__all__ = [
    "_block_extra",
    "_block_extra_legacy",
    "_frame_filter",
    "_frame_fmt",
    "_frames_fmt",
    "_write_blocks",
    "compare",
    "format_flamegraph",
    "memory",
    "profile_plot",
    "segment_plot",
    "segments",
    "segsum",
    "trace",
    "trace_plot",
]
