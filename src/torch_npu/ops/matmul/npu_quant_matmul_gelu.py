"""npu_quant_matmul_gelu: a product of integers, scaled, through GELU."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import int_product, matrix_shape, unpack_matrix
from torch_npu.ops._shared._packing import PER_WORD, unpack_int4
from torch_npu.ops.matmul._quant_matmul_rules import inner_sizes


def _result(x2_scale, bias):
    bf16 = torch.bfloat16 in (x2_scale.dtype, None if bias is None else bias.dtype)
    return torch.bfloat16 if bf16 else torch.float16


@npu_op(
    "npu_quant_matmul_gelu(Tensor x1, Tensor x2, Tensor x1_scale, Tensor x2_scale, *, "
    "Tensor? bias=None, str? approximate='gelu_erf') -> Tensor",
    chips=("A2", "A3"),
    product=True,
)
def npu_quant_matmul_gelu(x1, x2, x1_scale, x2_scale, bias, approximate):
    r"""GELU of a quantized product: int8 by int8 or int4 by int4, a scale for each row and for each column.

    $$ y = \mathrm{gelu}\left((x_1 x_2 + bias_{int32}) \cdot s_2 \cdot s_1 + bias_{float}\right) $$

    Args:
        x1: (..., M, K), 2 to 6 dimensions; int8, or int32 with eight int4 each along the last dimension.
        x2: (..., K, N) of the same dtype, batches broadcast against those of `x1`; int32 packs along the contiguous
            dimension.
        x1_scale: $s_1$, (M), float32.
        x2_scale: $s_2$, (N) or (1); float32 or bfloat16.
        bias: (N), for int8 also (batch, 1, N) beside one batch dimension; int32, and for int8 also float32 or the dtype
            of the result.
        approximate: "gelu_erf" (the default) or "gelu_tanh".

    Returns:
        y of shape (..., M, N): bfloat16 if `x2_scale` or `bias` is, else float16.

    Constraints:
        A2 and A3. int4: the contiguous dimensions of `x1` and `x2` are at most 65535.
    """
    left = unpack_int4(x1) if x1.dtype == torch.int32 else x1
    y = int_product(left, unpack_matrix(x2))
    if bias is not None and bias.dtype == torch.int32:
        y = y + bias
    y = y.float() * x2_scale.float() * x1_scale.float().unsqueeze(-1)
    if bias is not None and bias.dtype != torch.int32:
        y = y + bias.float()
    kind = "tanh" if approximate == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(y, approximate=kind).to(_result(x2_scale, bias))


@npu_quant_matmul_gelu.check
def _(x1, x2, x1_scale, x2_scale, bias, approximate):
    must.dtype("x1", x1, torch.int8, torch.int32)
    must.same_dtype("x2", x2, "x1", x1)
    must.ndim("x1", x1, 2, 6)
    must.ndim("x2", x2, 2, 6)
    packed = x1.dtype == torch.int32
    depth = x1.shape[-1] * (PER_WORD if packed else 1)
    rows, columns = matrix_shape(x2)
    must.hold(rows == depth, "x2", f"of {depth} rows, the depth of 'x1'", rows, ErrCode.PARAM)
    inner_sizes(x1, x2, x2_scale, x1_scale)
    try:
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    except RuntimeError:
        must.hold(
            False,
            "x2",
            f"of batches that broadcast with {tuple(x1.shape[:-2])}",
            tuple(x2.shape[:-2]),
        )
    must.dtype("x1_scale", x1_scale, torch.float32)
    must.shape("x1_scale", x1_scale, (x1.shape[-2],))
    must.dtype("x2_scale", x2_scale, torch.float32, torch.bfloat16)
    fits = tuple(x2_scale.shape) in ((columns,), (1,))
    must.hold(
        fits, "x2_scale", f"of shape ({columns},) or (1,)", tuple(x2_scale.shape), ErrCode.PARAM
    )
    floats = (torch.float32, _result(x2_scale, bias))
    must.dtype("bias", bias, torch.int32, *(() if packed else floats))
    if bias is not None:
        shapes: list[tuple[int, ...]] = [(columns,)]
        if len(batch) == 1 and not packed:
            shapes.append((*batch, 1, columns))
        expected = f"of shape {must.one_of(shapes)}"
        must.hold(tuple(bias.shape) in shapes, "bias", expected, tuple(bias.shape), ErrCode.PARAM)
    kind = "gelu_erf" if approximate is None else approximate
    words = "approximate must be 'gelu_tanh' or 'gelu_erf'"
    must.choice("approximate", kind, ("gelu_tanh", "gelu_erf"), upstream=words)


def _ints(make, *shape):
    return make(*shape, dtype=torch.int8, low=-9, high=9)


npu_quant_matmul_gelu.samples = [
    Sample(
        lambda make: (_ints(make, 4, 16), _ints(make, 16, 8), make(4, low=0), make(8, low=0)),
    ),
    Sample(
        lambda make: (
            _ints(make, 2, 4, 16),
            _ints(make, 16, 8),
            make(4, low=0),
            make(1, dtype=torch.bfloat16, low=0),
        ),
        lambda make: {"bias": make(2, 1, 8), "approximate": "gelu_tanh"},
    ),
    Sample(
        lambda make: (
            make(4, 2, dtype=torch.int32, low=-(2**31), high=2**31 - 1),
            make(16, 1, dtype=torch.int32, low=-(2**31), high=2**31 - 1),
            make(4, low=0),
            make(8, low=0),
        ),
        lambda make: {"bias": make(8, dtype=torch.int32, low=-5, high=5)},
    ),
]
