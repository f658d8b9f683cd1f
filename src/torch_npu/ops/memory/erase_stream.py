"""erase_stream: undoes what `Tensor.record_stream` noted, before the stream is known to be done."""

from __future__ import annotations

from typing import Any

import torch

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.ops._registry import public


@public
def erase_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Forgets that the tensor's memory is used by a stream, as `tensor.record_stream(stream)` noted.

    The memory can then be reused as soon as the tensor is freed. It is for the program to wait for the stream first
    (`event.wait`).

    Args:
        tensor: the tensor that was recorded.
        stream: the `torch.npu.Stream` to forget.
    """
    from torch_npu.npu.streams import _BaseStream

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"tensor should be torch.Tensor, could not be {type(tensor)}" + pta_error(ErrCode.TYPE)
        )
    if not isinstance(stream, _BaseStream):
        raise TypeError(
            f"stream should be torch_npu.npu.Stream, could not be {type(stream)}"
            + pta_error(ErrCode.TYPE)
        )
    if tensor.device.type != "npu":
        raise RuntimeError(
            f"tensor should be on an NPU, but is on {tensor.device}" + pta_error(ErrCode.PARAM)
        )
    _C.erase_stream(tensor, stream.stream_id)
