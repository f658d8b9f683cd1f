"""npu_transpose_batchmatmul: a batched product with the rows first, or quantized and flat."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import product
from torch_npu.ops._shared._scales import PACKED, requantize

_LIMIT = 65536
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _laid_out(input, weight, perm_x1, perm_x2):
    """The operands as (B, M, K) and (B, K, N)."""
    return input.permute(perm_x1 or (0, 1, 2)), weight.permute(perm_x2 or (0, 1, 2))


@npu_op(
    "npu_transpose_batchmatmul(Tensor input, Tensor weight, *, Tensor? bias=None, Tensor? scale=None, "
    "int[]? perm_x1=None, int[]? perm_x2=None, int[]? perm_y=None, int? batch_split_factor=1) -> Tensor",
    ge="TransposeBatchMatMul",
    product=True,
)
def npu_transpose_batchmatmul(input, weight, scale, perm_x1, perm_x2, perm_y, batch_split_factor):
    r"""A batched product of permuted operands, with the batch moved behind the rows.

    $$ y = (\mathrm{input}^{T_1} \cdot \mathrm{weight}^{T_2})^{T_y}, \qquad
       y_{int8} = \mathrm{sat}(\mathrm{rint}(y \cdot \mathrm{scale})) $$

    Args:
        input: (B, M, K), or (M, B, K) with `perm_x1=[1, 0, 2]`; float16, bfloat16 or float32.
        weight: (B, K, N), or (B, N, K) with `perm_x2=[0, 2, 1]`; the dtype of `input`.
        bias: reserved.
        scale: int64 or uint64 of shape (B * N,), as `npu_trans_quant_param` packs it: the result is
            int8.
        perm_x1: [0, 1, 2] (the default) or [1, 0, 2].
        perm_x2: [0, 1, 2] (the default) or [0, 2, 1].
        perm_y: [1, 0, 2], which is also the default.
        batch_split_factor: cuts the B * N columns into this many planes, a divisor of B; 1 where
            `scale` is given.

    Returns:
        y of shape (M, B, N); with `scale` int8 of shape (M, 1, B * N); with `batch_split_factor` s
        > 1 of shape (s, M, B * N / s).

    Constraints:
        `scale` needs float16. But on Ascend950: B, N and B * N of a `scale` lie below 65536, as do
        K without `perm_x1=[1, 0, 2]`, and B * K with it beside `scale` or `batch_split_factor`;
        `perm_x2=[0, 2, 1]` needs `perm_x1=[1, 0, 2]` and neither of them.
    """
    y = product(*_laid_out(input, weight, perm_x1, perm_x2)).permute(perm_y or (1, 0, 2))
    if scale is not None:
        return requantize(y.reshape(y.shape[0], 1, -1), scale, None)
    y = y.to(input.dtype)
    if (batch_split_factor or 1) > 1:
        y = y.reshape(y.shape[0], batch_split_factor, -1).transpose(0, 1)
    return y.contiguous()


@npu_transpose_batchmatmul.check
def _(input, weight, bias, scale, perm_x1, perm_x2, perm_y, batch_split_factor):
    words = "{}'s type supported for float16, float32 and bfloat16"
    must.dtype("input", input, *_FLOATS, upstream=words.format("input"))
    must.ndim("input", input, 3)
    must.dtype("weight", weight, *_FLOATS, upstream=words.format("weight"))
    must.same_dtype("weight", weight, "input", input)
    must.ndim("weight", weight, 3)
    must.unset("bias", bias)
    for name, perm, others in (
        ("perm_x1", perm_x1, ([0, 1, 2], [1, 0, 2])),
        ("perm_x2", perm_x2, ([0, 1, 2], [0, 2, 1])),
        ("perm_y", perm_y, ([1, 0, 2],)),
    ):
        words = f"{name} should be {must.one_of(others)}"
        must.choice(name, perm and list(perm), (None, *others), upstream=words)
    x, w = _laid_out(input, weight, perm_x1, perm_x2)
    (batch, _, depth), columns = x.shape, w.shape[2]
    fits = w.shape[:2] == (batch, depth)
    must.hold(fits, "weight", f"({batch}, {depth}, N) after 'perm_x2'", tuple(w.shape))
    must.hold(batch >= 1, "input", "of at least one batch", batch)
    factor = 1 if batch_split_factor is None else batch_split_factor
    divides = factor > 0 and batch % factor == 0
    must.hold(divides, "batch_split_factor", f"a divisor of the batch ({batch})", factor)
    if scale is not None:
        must.dtype("scale", scale, *PACKED)
        must.shape("scale", scale, (batch * columns,))
        must.dtype("input", input, torch.float16)
        must.hold(factor == 1, "batch_split_factor", "1 when 'scale' is given", factor)
    if chips.current().family != "A5":
        _check_older(x, w, perm_x1, perm_x2, scale, factor)


def _check_older(x, w, perm_x1, perm_x2, scale, factor):
    """The limits of the chips before Ascend950."""
    (batch, _, depth), columns = x.shape, w.shape[2]
    moved, plain = list(perm_x1 or ()) == [1, 0, 2], scale is None and factor == 1
    must.hold(columns < _LIMIT, "weight", f"of an N below {_LIMIT}", columns)
    must.hold(batch < _LIMIT, "input", f"of a batch below {_LIMIT}", batch)
    if not moved:
        must.hold(depth < _LIMIT, "input", f"of a K below {_LIMIT}, or permuted", depth)
    elif not plain:
        size = batch * depth
        must.hold(size < _LIMIT, "input", f"of a batch times K below {_LIMIT}", size)
    if scale is not None:
        size = scale.shape[0]
        must.hold(size < _LIMIT, "scale", f"of fewer than {_LIMIT} values", size)
    if perm_x2 and list(perm_x2) == [0, 2, 1]:
        expected = "[0, 1, 2] unless 'perm_x1' is [1, 0, 2], without scale and split"
        must.hold(moved and plain, "perm_x2", expected, list(perm_x2))


npu_transpose_batchmatmul.samples = [
    Sample(lambda make: (make(2, 3, 16), make(2, 16, 32))),
    Sample(
        lambda make: (
            make(3, 2, 16, dtype=torch.float16),
            make(2, 16, 32, dtype=torch.float16),
        ),
        {"perm_x1": [1, 0, 2], "perm_y": [1, 0, 2], "batch_split_factor": 2},
    ),
    Sample(
        lambda make: (
            make(3, 2, 16, dtype=torch.float16),
            make(2, 16, 16, dtype=torch.float16),
        ),
        lambda make: {
            "perm_x1": [1, 0, 2],
            # 1.5 in the low half of each word
            "scale": make(32, dtype=torch.int64, low=0x3FC00000, high=0x3FC00001),
        },
    ),
]
