"""npu_fused_matmul: a product and the operation that follows it."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import product

#: the operation -> how many dimensions its operands may have
TYPES = {"": 6, "relu": 6, "add": 3, "mul": 3, "16cast32": 3, "gelu_tanh": 2, "gelu_erf": 2}
WITH_X3 = ("add", "mul")


@npu_op(
    "npu_fused_matmul(Tensor x1, Tensor x2, *, Tensor? bias=None, Tensor? x3=None,"
    " str fused_op_type='') -> Tensor",
    ge="FusedMatMul",
    product=True,
)
def npu_fused_matmul(x1, x2, bias, x3, fused_op_type):
    r"""A product, a bias, and an operation on the result.

    $$ y = \mathrm{op}(x_1 x_2 + b, x_3) $$

    Args:
        x1: (..., m, k); float16, bfloat16, or but for "16cast32" and a GELU float32.
        x2: (..., k, n), of the dtype of `x1` and with its leading dimensions.
        bias: b, (n,) or (1, n), in the dtype of `x1` or float32; not with a GELU, nor where k is 0.
        x3: the second operand of "add" and "mul", of the dtype of `x1`: (m, n), or for batches also (1 or batch, m, n).
        fused_op_type: "" for none, "add", "mul", "relu", "gelu_erf", "gelu_tanh", or "16cast32" for
            a float32 result of 16-bit operands.

    Returns:
        y, (..., m, n), of the dtype of `x1` (float32 with "16cast32").

    Constraints:
        Up to 6 dimensions without an operation and with "relu", 3 with "add", "mul" and "16cast32", 2 with a GELU.

    The product is rounded to the dtype of `x1` before "add" and "mul", as the card's kernel for them
    does (mat_mul_fixpipe_opti_basic_cmct.h); the GELU takes it unrounded (fused_mat_mul_gelu_basic_cmct.h).

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it.
    """
    y = product(x1, x2)
    y = y if bias is None else y + bias.to(y.dtype)
    if fused_op_type in ("add", "mul"):
        y = y.to(x1.dtype).to(y.dtype)
    if fused_op_type == "add":
        y = y + x3.to(y.dtype)
    elif fused_op_type == "mul":
        y = y * x3.to(y.dtype)
    elif fused_op_type == "relu":
        y = torch.relu(y)
    elif fused_op_type.startswith("gelu"):
        kind = "tanh" if fused_op_type == "gelu_tanh" else "none"
        y = torch.nn.functional.gelu(y, approximate=kind)
    return y.to(torch.float32 if fused_op_type == "16cast32" else x1.dtype)


@npu_fused_matmul.check
def _(x1, x2, bias, x3, fused_op_type):
    must.choice("fused_op_type", fused_op_type, TYPES)
    half = (torch.float16, torch.bfloat16)
    more = (torch.float32,) if fused_op_type in ("", "relu", *WITH_X3) else ()
    must.dtype("x1", x1, *half, *more)
    must.same_dtype("x2", x2, "x1", x1)
    most = TYPES[fused_op_type]
    must.ndim("x1", x1, 2, most)
    must.ndim("x2", x2, 2, most)
    k = x1.shape[-1]
    must.hold(x2.shape[-2] == k, "x2", f"of k = {k} like 'x1'", tuple(x2.shape))
    batch = tuple(x1.shape[:-2])
    same = tuple(x2.shape[:-2]) == batch
    must.hold(same, "x2", f"of leading dimensions {batch}, as 'x1'", tuple(x2.shape[:-2]))
    columns = x2.shape[-1]
    if fused_op_type.startswith("gelu"):
        must.unset("bias", bias)
    if bias is not None:
        must.dtype("bias", bias, x1.dtype, torch.float32)
        must.ndim("bias", bias, 1, 2)
        must.shape("bias", bias, (columns,) if bias.dim() == 1 else (1, columns))
        must.hold(k > 0, "bias", "None where 'x1' has no columns", tuple(bias.shape))
    if fused_op_type in WITH_X3:
        must.present("x3", x3, f"with fused_op_type {fused_op_type!r}")
        must.same_dtype("x3", x3, "x1", x1)
        allowed: list[tuple[int, ...]] = [(x1.shape[-2], columns)]
        if batch:
            allowed += [(1, *allowed[0]), (*batch, *allowed[0])]
        sizes = tuple(x3.shape)
        must.hold(sizes in allowed, "x3", f"of shape {must.one_of(allowed)}", sizes)
    else:
        must.unset("x3", x3)


npu_fused_matmul.samples = [
    Sample(
        lambda make: (make(4, 16).half(), make(16, 8).half()),
        lambda make: {"x3": make(4, 8).half(), "fused_op_type": "add", "bias": make(8).half()},
    ),
    Sample(
        lambda make: (make(4, 16).bfloat16(), make(16, 8).bfloat16()),
        {"fused_op_type": "gelu_tanh"},
    ),
    Sample(lambda make: (make(2, 4, 16), make(2, 16, 8)), {"fused_op_type": "relu"}),
    Sample(lambda make: (make(4, 16).half(), make(16, 8).half()), {"fused_op_type": "16cast32"}),
]
