"""The out forms of the fused inference attentions: results in the caller's tensors, workspaces, `.out` on the name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import parse_schema

from torch_npu.ops import _check as must
from torch_npu.ops import _registry
from torch_npu.ops.attention._call import Call, empty_outputs

#: elements of the workspace that the max-workspace forms return; the emulated kernel itself needs none
WORKSPACE = 2**20


def workspace(query: torch.Tensor) -> torch.Tensor:
    """What the max-workspace forms return: WORKSPACE elements of the query's dtype, as upstream counts them."""
    return query.new_empty((WORKSPACE,))


def check(
    call: Call,
    workspace: torch.Tensor | None,
    attention_out: torch.Tensor,
    softmax_lse: torch.Tensor,
) -> None:
    """The caller's tensors fit the results; softmax_lse may be anything when it is not asked for."""
    must.ndim("workspace", workspace, 1)
    with torch.device("meta"):
        out, lse = empty_outputs(call)
    must.dtype("attention_out", attention_out, out.dtype)
    must.shape("attention_out", attention_out, tuple(out.shape))
    if call.softmax_lse_flag:
        must.dtype("softmax_lse", softmax_lse, lse.dtype)
        must.shape("softmax_lse", softmax_lse, tuple(lse.shape))


def write(
    call: Call,
    results: tuple[torch.Tensor, torch.Tensor],
    attention_out: torch.Tensor,
    softmax_lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies the results; a softmax_lse that was not asked for is zeroed as it is."""
    attention_out.copy_(results[0])
    if call.softmax_lse_flag:
        softmax_lse.copy_(results[1])
    else:
        softmax_lse.zero_()
    return attention_out, softmax_lse


def public(schema: str) -> Callable[..., Any]:
    """The function `torch_npu.<name>`, with upstream's `.out(..., out=[attention_out, softmax_lse])`."""
    name = schema.partition("(")[0]

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.ops.npu, name)(*args, **kwargs)

    def out(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            kwargs["attention_out"], kwargs["softmax_lse"] = out
        return getattr(torch.ops.npu, name).out(*args, **kwargs)

    out.__name__ = out.__qualname__ = f"{name}.out"
    call.__signature__ = _registry._signature(parse_schema(schema))  # type: ignore[attr-defined]
    call.out = out  # type: ignore[attr-defined]
    call.default = call  # type: ignore[attr-defined]
    return call
