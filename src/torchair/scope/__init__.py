"""torchair.scope: ranges of a graph with attributes, for streams, cores, super kernels, timeouts and dumps.

A range is written as a `with` block in the model. It becomes attributes of the operators in the converted graph;
streams are also the streams on which the operators run.
"""

from __future__ import annotations

from typing import Any

import torch

from torchair.scope import _attributes as _marks

__all__ = [
    "data_dump",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]


class _Scope:
    """A `with` block that dynamo traces into `air.scope_enter` and `air.scope_exit`."""

    def __init__(self, attributes: dict[str, str]):
        self.keys = list(attributes.keys())
        self.values = list(attributes.values())

    def __enter__(self) -> None:
        torch.ops.air.scope_enter(self.keys, self.values)

    def __exit__(self, *unused: Any) -> None:
        torch.ops.air.scope_exit()


def npu_stream_switch(
    stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True
) -> _Scope:
    """Operators in the block run on the stream of this tag; equal tags mean the same stream."""
    if not isinstance(stream_tag, str):
        raise TypeError(
            f"npu_stream_switch: stream_tag must be a str, received {type(stream_tag).__name__}"
        )
    return _Scope(
        {
            _marks.STREAM: stream_tag,
            "_user_stream_priority": str(stream_priority),
            "_enable_inner_parallel": str(enable_inner_parallel),
        }
    )


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """`self`, for an operator that shall start after the one that computes `dependency`.

    Only graphs can wait: called eagerly it raises NotImplementedError.
    """
    return torch.ops.air.wait_tensor(self, dependency)


def super_kernel(scope: str | None, options: str = "") -> _Scope:
    """Operators in the block may be fused into the super kernel `scope`; None takes them out of an outer one."""
    return _Scope({"_super_kernel_scope": scope or "", "_super_kernel_options": options})


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int) -> _Scope:
    """Operators in the block use at most so many cores; the chip has the last word on how many there are."""
    return _Scope(
        {"_op_aicore_num": str(op_aicore_num), "_op_vectorcore_num": str(op_vectorcore_num)}
    )


def op_never_timeout(enable: bool = True) -> _Scope:
    """Operators in the block are not watched for time-outs."""
    if not isinstance(enable, bool):
        raise TypeError(
            f"op_never_timeout: enable must be a bool, received {type(enable).__name__}"
        )
    return _Scope({"_op_exec_never_timeout": str(enable)})


def data_dump() -> _Scope:
    """Operators in the block are dumped, besides those that `dump_config.dump_layer` names."""
    return _Scope({_marks.DUMP: "True"})
