"""torchair.ops.npu_fused_infer_attention_score and _v2: torch_npu's operators with lengths as tensors.

On the card, lengths that already are on the device spare a copy when tiling is scheduled there.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.ops import _registry
from torchair._air import define
from torchair._host import operators

_LENGTHS = {
    "npu_fused_infer_attention_score": (
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "actual_shared_prefix_len",
    ),
    "npu_fused_infer_attention_score_v2": ("actual_seq_qlen", "actual_seq_kvlen"),
}


def npu_fused_infer_attention_score(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch_npu.npu_fused_infer_attention_score in a graph of mode max-autotune.

    Args:
        query, key, value: as there.
        options: as there, but `actual_seq_lengths`, `actual_seq_lengths_kv` and `actual_shared_prefix_len`
            are int64 tensors on the device.

    Called eagerly it raises NotImplementedError, as upstream's does.
    """
    return torch.ops.air.npu_fused_infer_attention_score(query, key, value, **options)


def npu_fused_infer_attention_score_v2(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch_npu.npu_fused_infer_attention_score_v2 in a graph of mode max-autotune.

    Args:
        query, key, value: as there.
        options: as there, but `actual_seq_qlen` and `actual_seq_kvlen` are int64 tensors on the device.

    Called eagerly it raises NotImplementedError, as upstream's does.
    """
    return torch.ops.air.npu_fused_infer_attention_score_v2(query, key, value, **options)


def _register(name: str, lengths: tuple[str, ...]) -> Any:
    operator = _registry.operators[name]
    schema = str(operator.schema).replace(f"npu::{name}(", f"{name}(", 1)
    for length in lengths:
        schema = schema.replace(f"SymInt[]? {length}=", f"Tensor? {length}=")
        schema = schema.replace(f"int[]? {length}=", f"Tensor? {length}=")
    body, shapes = operator.as_function("body"), operator.as_function("shapes")
    check = operator.as_function("check")

    def eager(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"torchair.ops.{name} runs in graphs of mode max-autotune alone; use torch_npu.{name} here"
        )

    def fake(*args: Any, **kwargs: Any) -> Any:
        for length in lengths:
            given = kwargs.get(length)
            if given is not None and given.dtype != torch.int64:
                raise TypeError(
                    f"torchair.ops.{name}: expected {length} of dtype torch.int64, received {given.dtype}"
                )
        return shapes(*args, **_without(kwargs, lengths))

    def run(*args: Any, **kwargs: Any) -> Any:
        kwargs = {k: v.tolist() if k in lengths and v is not None else v for k, v in kwargs.items()}
        check(*args, **kwargs)
        return body(*args, **kwargs)

    overload = define(schema, eager, fake)
    operators.stand_in(overload, f"air_{schema}", run, fake)
    return overload


def _without(kwargs: dict[str, Any], lengths: tuple[str, ...]) -> dict[str, Any]:
    """Lengths choose what is computed, never the shapes of the results."""
    return {name: None if name in lengths else value for name, value in kwargs.items()}


OVERLOADS = {name: _register(name, lengths) for name, lengths in _LENGTHS.items()}
