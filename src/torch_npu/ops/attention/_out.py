"""The out forms of the fused inference attentions: given tensors, workspaces, `.out`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import parse_schema

from torch_npu.ops import _check as must
from torch_npu.ops import _signatures
from torch_npu.ops.attention._infer_arguments import InferArguments, output_shapes

#: elements of the workspace that the max-workspace forms return; the emulation needs none
WORKSPACE = 2**20


def workspace(query: torch.Tensor) -> torch.Tensor:
    """What the max-workspace forms return: WORKSPACE elements, of the query's dtype."""
    return query.new_empty((WORKSPACE,))


def check(
    call: InferArguments,
    workspace: torch.Tensor | None,
    attention_out: torch.Tensor,
    softmax_lse: torch.Tensor,
) -> None:
    """The caller's tensors fit the results; a softmax_lse not asked for may be anything."""
    must.ndim("workspace", workspace, 1)
    out, lse = output_shapes(call)
    must.dtype("attention_out", attention_out, call.result_dtype)
    must.shape("attention_out", attention_out, out)
    if call.softmax_lse_flag:
        must.dtype("softmax_lse", softmax_lse, torch.float32)
        must.shape("softmax_lse", softmax_lse, lse)


def write(
    call: InferArguments,
    results: tuple[torch.Tensor, torch.Tensor],
    attention_out: torch.Tensor,
    softmax_lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies the results; a softmax_lse that was not asked for stays as it is."""
    attention_out.copy_(results[0])
    if call.softmax_lse_flag:
        softmax_lse.copy_(results[1])
    return attention_out, softmax_lse


def public(schema: str) -> Callable[..., Any]:
    """The function `torch_npu.<name>`, with its `.out(..., out=[attention_out, softmax_lse])`."""
    name = schema.partition("(")[0]

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.ops.npu, name)(*args, **kwargs)

    def out(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            kwargs["attention_out"], kwargs["softmax_lse"] = out
        return getattr(torch.ops.npu, name).out(*args, **kwargs)

    out.__name__ = out.__qualname__ = f"{name}.out"
    call.__signature__ = _signatures.signature(parse_schema(schema))  # type: ignore[attr-defined]
    call.out = out  # type: ignore[attr-defined]
    call.default = call  # type: ignore[attr-defined]
    return call
