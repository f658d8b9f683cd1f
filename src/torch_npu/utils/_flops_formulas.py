"""How many floating point operations a call has, by operator: exact arithmetic on the shapes of its tensors.

As upstream counts: a product of (m, k) and (k, n) is 2mkn, and attention counts each multiply-add once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Shape = Sequence[int]
Formula = Callable[..., int]
formulas: dict[str, Formula] = {}


def counts(*names: str) -> Callable[[Formula], Formula]:
    def register(formula: Formula) -> Formula:
        for name in names:
            formulas[name] = formula
        return formula

    return register


# --- products ----------------------------------------------------------------------------------------------


def _product(left: Shape, right: Shape) -> int:
    """2 k for each element of the result; both may have batches, which broadcast."""
    batch = torch.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    rows = left[-2] if len(left) > 1 else 1
    columns = right[-1] if len(right) > 1 else 1
    return 2 * math.prod(batch) * rows * left[-1] * columns


def _turned(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


@counts("aten::mm", "aten::bmm", "aten::_int_mm", "aten::mv", "aten::dot", "npu::npu_bmmV2")
def _mm(self: torch.Tensor, mat2: torch.Tensor, *_: Any, **__: Any) -> int:
    return _product(self.shape, mat2.shape)


@counts("aten::addmm", "aten::baddbmm", "aten::addmm_", "aten::baddbmm_", "aten::addmv")
def _addmm(self: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **_: Any) -> int:
    return _product(left.shape, right.shape)


@counts("npu::npu_linear", "aten::linear")
def _linear(self: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    return _product(self.shape, _turned(weight.shape))


@counts(
    "npu::npu_mm_all_reduce_base", "npu::npu_mm_reduce_scatter_base", "npu::npu_quant_mm_reduce_scatter",
    "npu::npu_quant_matmul", "npu::npu_weight_quant_batchmatmul",
)  # fmt: skip
def _custom_mm(x1: torch.Tensor, x2: torch.Tensor, *_: Any, **__: Any) -> int:
    return _product(x1.shape, x2.shape)


@counts("npu::npu_all_gather_base_mm")
def _all_gather_mm(
    self: torch.Tensor, x2: torch.Tensor, hcom: str, world_size: int, **options: Any
) -> int:
    """With gather_index 0 the ranks' left sides are gathered and multiplied."""
    each = _product(self.shape, x2.shape)
    return each if options.get("gather_index", 0) else each * world_size


@counts("npu::npu_transpose_batchmatmul")
def _transposed(self: torch.Tensor, weight: torch.Tensor, **options: Any) -> int:
    left = [self.shape[i] for i in options.get("perm_x1") or (0, 1, 2)]
    right = [weight.shape[i] for i in options.get("perm_x2") or (0, 1, 2)]
    return _product(left, right)


@counts("npu::npu_grouped_matmul")
def _grouped(x: Any, weight: Any, **_: Any) -> int:
    """Every row meets one expert's matrix, so that rows x k x n is exact however the rows are split."""
    left = x if isinstance(x, (list, tuple)) else [x]
    right = weight if isinstance(weight, (list, tuple)) else [weight]
    if len(left) == len(right):
        pairs = list(zip(left, right, strict=True))
        if len(pairs) > 1 or right[0].dim() == 2:
            return sum(_product(a.shape, b.shape[-2:]) for a, b in pairs)
    return sum(2 * a.shape[:-1].numel() * a.shape[-1] * right[0].shape[-1] for a in left)


# --- convolutions ------------------------------------------------------------------------------------------


def _convolution_flops(x: Shape, weight: Shape, out: Shape, transposed: bool) -> int:
    """2 for each weight and place of the output; of the input, if transposed."""
    return 2 * x[0] * math.prod(weight) * math.prod((x if transposed else out)[2:])


@counts("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    *_: Any, out: Any, **__: Any,
) -> int:  # fmt: skip
    return _convolution_flops(input.shape, weight.shape, out.shape, transposed)


@counts("aten::convolution_backward", "aten::convolution_backward_overrideable")
def _convolution_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *rest: Any, **options: Any
) -> int:
    """The gradients of input and weight are as much work as the forward pass, each."""
    mask = options.get("output_mask", rest[-1] if rest else (True, True, False))
    transposed = next(value for value in rest if isinstance(value, bool))
    return sum(mask[:2]) * _convolution_flops(input.shape, weight.shape, grad.shape, transposed)


# --- attention ---------------------------------------------------------------------------------------------


def _pairs(
    query: torch.Tensor, key: torch.Tensor, layout: str, heads: int, lengths: tuple[Any, Any]
) -> tuple[int, int]:
    """How many (row, column) pairs all heads have together, and the head's size."""
    q, k = query.shape, key.shape
    if layout == "TND":
        rows, columns = (_differences(ends) for ends in lengths)
        return q[1] * sum(a * b for a, b in zip(rows, columns, strict=True)), q[2]
    batch, rows_, columns_ = {
        "BSH": (q[0], q[1], k[1]), "SBH": (q[1], q[0], k[0]), "BSND": (q[0], q[1], k[1]), "BNSD": (q[0], q[2], k[2]),
    }[layout]  # fmt: skip
    size = q[-1] if len(q) == 4 else q[-1] // heads
    return batch * heads * rows_ * columns_, size


def _differences(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _attention_flops(
    query: Any, key: Any, value: Any, layout: str, heads: int, lengths: Any
) -> tuple[int, int]:
    """Of Q K^T and of P V, one for each multiply-add."""
    pairs, size = _pairs(query, key, layout, heads, lengths)
    value_size = size if layout in ("BSH", "SBH") else value.shape[-1]
    return pairs * size, pairs * value_size


@counts("npu::npu_fusion_attention", "npu::npu_fusion_attention_v2", "npu::npu_fusion_attention_v3")
def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, input_layout: str, **options: Any
) -> int:  # fmt: skip
    lengths = options.get("actual_seq_qlen"), options.get("actual_seq_kvlen")
    return sum(_attention_flops(query, key, value, input_layout, head_num, lengths))


@counts(
    "npu::npu_fusion_attention_grad",
    "npu::npu_fusion_attention_grad_v2",
    "npu::npu_fusion_attention_grad_v3",
)
def _attention_grad(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dy: torch.Tensor, head_num: int, input_layout: str,
    **options: Any,
) -> int:  # fmt: skip
    """Two products of each kind: for P and V, for Q and K."""
    lengths = options.get("actual_seq_qlen"), options.get("actual_seq_kvlen")
    return 2 * sum(_attention_flops(query, key, value, input_layout, head_num, lengths))


@counts("aten::_scaled_dot_product_fused_attention_overrideable")
def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return sum(_attention_flops(query, key, value, "BNSD", query.shape[1], None))


@counts("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def _sdpa_backward(
    grad: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    return 2 * sum(_attention_flops(query, key, value, "BNSD", query.shape[1], None))
