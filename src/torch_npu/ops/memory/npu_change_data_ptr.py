"""npu_change_data_ptr: puts a tensor on a part of another one's memory."""

from __future__ import annotations

import torch

from softnpu import _C
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import npu_op, public
from torch_npu.ops._shared import _format_rules as rules


@npu_op("npu_change_data_ptr(Tensor dst, Tensor src, int index) -> int", listed=False, direct=True)
def _npu_change_data_ptr(dst, src, index):
    """The operator behind the function below; its schema does not say that `dst` changes."""
    needed, there = rules.describe(dst).elements, rules.describe(src).elements
    must.hold(
        index + needed <= there,
        "index",
        f"such that {needed} elements fit into the {there} of 'src'",
        index,
        ErrCode.PARAM,
    )
    if dst.untyped_storage()._cdata != src.untyped_storage()._cdata:
        _C.change_data_ptr(dst, src, index * dst.dtype.itemsize)
    return 0


@_npu_change_data_ptr.check
def _(dst, src, index):
    for name, tensor in (("dst", dst), ("src", src)):
        must.hold(tensor.device.type == "npu", name, "an NPU tensor", f"one on {tensor.device}")
        must.dtype(name, tensor, torch.float16, torch.bfloat16, torch.float32)
    must.same_dtype("dst", dst, "src", src)
    must.hold(index >= 0, "index", "0 or more", index)


@_npu_change_data_ptr.meta
def _():
    return 0


@public
def npu_change_data_ptr(dst: torch.Tensor, src: torch.Tensor, index: int) -> int:
    """Puts the storage of `dst` on the memory of `src`, from element `index` on; returns 0.

    The values of `dst` become those that stand there. The memory lives as long as either tensor.

    Args:
        dst: the tensor to move; float16, bfloat16 or float32.
        src: the tensor whose memory it gets, of the same dtype.
        index: the first element.
    """
    return torch.ops.npu.npu_change_data_ptr(dst, src, index)
