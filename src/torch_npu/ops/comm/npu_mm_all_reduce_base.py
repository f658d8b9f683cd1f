"""npu_mm_all_reduce_base: a product whose partial sums are added over the ranks of a group."""

from __future__ import annotations

import math

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import antiquantize, int_product, product
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops._shared._scales import PACKED, scale_of
from torch_npu.ops.comm import _group
from torch_npu.ops.comm._products import COMM_MODES

_HALF = (torch.float16, torch.bfloat16)
_LONGEST = 65535
_GROUP = 32


def _result_dtype(x1, dequant_scale):
    if x1.dtype != torch.int8:
        return x1.dtype
    bf16 = dequant_scale is not None and dequant_scale.dtype == torch.bfloat16
    return torch.bfloat16 if bf16 else torch.float16


def _check_antiquant(x1, x2, scale, offset, group):
    k, n = x2.shape
    must.present("antiquant_scale", scale, "when x2 alone is int8")
    must.same_dtype("antiquant_scale", scale, "x1", x1)
    shapes = [(1,), (n,), (1, n)] if group == 0 else [(-(-k // group), n)]
    for name, value in (("antiquant_scale", scale), ("antiquant_offset", offset)):
        if value is not None:
            must.hold(
                tuple(value.shape) in shapes,
                name,
                f"of shape {must.one_of(shapes)}",
                tuple(value.shape),
            )
    must.same_dtype("antiquant_offset", offset, "antiquant_scale", scale)
    if group:
        ok = _GROUP <= group <= k - 1 and group % _GROUP == 0
        must.hold(
            ok, "antiquant_group_size", f"0, or a multiple of {_GROUP} up to k - 1 ({k - 1})", group
        )


def _check_dequant(x1, x2, scale, pertoken):
    n = x2.shape[1]
    must.present("dequant_scale", scale, "when x1 and x2 are int8")
    must.dtype("dequant_scale", scale, *PACKED, torch.bfloat16, torch.float32)
    shapes = [(1,), (n,), (1, n)]
    must.hold(
        tuple(scale.shape) in shapes,
        "dequant_scale",
        f"of shape {must.one_of(shapes)}",
        tuple(scale.shape),
    )
    if scale.dtype == torch.float32:
        must.present("pertoken_scale", pertoken, "with a float32 dequant_scale")
    if scale.dtype in PACKED:
        must.unset("pertoken_scale", pertoken)
    must.dtype("pertoken_scale", pertoken, torch.float32)
    must.shape("pertoken_scale", pertoken, (math.prod(x1.shape[:-1]),))


def _check_comm_quant(x1, x2, one, two, dtype):
    must.hold(
        (one is None) == (two is None), "comm_quant_scale_2", "given with comm_quant_scale_1", two
    )
    if one is None:
        return
    must.hold(
        x1.dtype == torch.int8, "comm_quant_scale_1", "given for int8 operands only", x1.dtype
    )
    n = x2.shape[1]
    for name, value in (("comm_quant_scale_1", one), ("comm_quant_scale_2", two)):
        must.dtype(name, value, dtype)
        fits = tuple(value.shape) in [(n,), (1, n)]
        must.hold(fits, name, f"of shape ({n},) or (1, {n})", tuple(value.shape))
    must.shape("comm_quant_scale_2", two, tuple(one.shape))


def _local(
    x1, x2, bias, antiquant_scale, antiquant_offset, x3, dequant_scale, pertoken_scale, group
):
    """This rank's part of the sum, in the dtype of the result, in which the card's ranks exchange it."""
    rows = x1.flatten(0, -2)
    if x1.dtype == torch.int8:
        total = int_product(rows, x2)
        if bias is not None:
            total = total + bias
        total = total.float() * scale_of(dequant_scale).reshape(-1)
        if pertoken_scale is not None:
            total = total * pertoken_scale.unsqueeze(1)
    else:
        if x2.dtype == torch.int8:
            x2 = antiquantize(x2, antiquant_scale, antiquant_offset, group or None)
        total = product(rows, x2)
        if bias is not None:
            total = total + bias.to(total.dtype)
    total = total.to(_result_dtype(x1, dequant_scale))
    return total if x3 is None else total + x3.reshape(total.shape)


def _rounded(total, scale):
    """Through int8 and back, as quantized communication does."""
    scale = scale.float().reshape(-1)
    return saturate(total.float() / scale, torch.int8).float() * scale


@npu_op(
    "npu_mm_all_reduce_base(Tensor x1, Tensor x2, str hcom, *, str reduce_op='sum', Tensor? bias=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? x3=None, "
    "Tensor? dequant_scale=None, Tensor? pertoken_scale=None, Tensor? comm_quant_scale_1=None, "
    "Tensor? comm_quant_scale_2=None, int antiquant_group_size=0, int comm_turn=0, int[]? group_sizes=None, "
    "int? y_dtype=None, int? x1_dtype=None, int? x2_dtype=None, int? dequant_scale_dtype=None, "
    "int? pertoken_scale_dtype=None, int comm_quant_mode=0, str? comm_mode=None) -> Tensor",
    ge="MatmulAllReduce",
    product=True,
)
def npu_mm_all_reduce_base(
    x1,
    x2,
    hcom,
    bias,
    antiquant_scale,
    antiquant_offset,
    x3,
    dequant_scale,
    pertoken_scale,
    comm_quant_scale_1,
    comm_quant_scale_2,
    antiquant_group_size,
):
    r"""Multiplies and adds the results of all ranks of a group: the second half of tensor parallelism.

    $$ y = \mathrm{allreduce}(x_1 ((x_2 + o_a) s_a) + b + x_3) $$
    $$ y = \mathrm{allreduce}((x_1 x_2 + b)\, s_d\, s_t + x_3) \quad \text{(int8)} $$

    Each rank's product is rounded to the dtype of the result, in which the ranks add them up, as on the card.

    Args:
        x1: (m, k) or (b, s, k), float16, bfloat16 or int8.
        x2: (k, n), of the dtype of x1, or int8 beside a floating x1; may be a transposed view.
        hcom: the name of the group, of 1, 2, 4 or 8 ranks.
        reduce_op: "sum".
        bias: (n,), of the dtype of x1; int32 for int8 operands.
        antiquant_scale: s_a, of the dtype of x1: (1,), (n,) or (1, n), or (ceil(k / group), n) with groups.
        antiquant_offset: o_a, like antiquant_scale.
        x3: added to the product; the shape and dtype of the result.
        dequant_scale: s_d of int8 operands, (1,), (n,) or (1, n): packed int64 or uint64 from
            npu_trans_quant_param, bfloat16, or float32 beside a pertoken_scale.
        pertoken_scale: s_t, float32, (m,) or (b * s,).
        comm_quant_scale_1: scale of int8 communication before the sum, (n,) or (1, n), of the result's dtype.
        comm_quant_scale_2: scale of int8 communication after the sum.
        antiquant_group_size: rows of k that share an antiquant_scale: 0, or a multiple of 32 below k.
        comm_turn: 0.
        group_sizes: reserved on these chips.
        y_dtype: reserved on these chips.
        x1_dtype: reserved on these chips.
        x2_dtype: reserved on these chips.
        dequant_scale_dtype: reserved on these chips.
        pertoken_scale_dtype: reserved on these chips.
        comm_quant_mode: reserved on these chips.
        comm_mode: "ai_cpu" (default) or "aiv".

    Returns:
        y of shape (m, n) or (b, s, n), of the dtype of x1; for int8 operands bfloat16 with a bfloat16
        dequant_scale, float16 otherwise.
    """
    total = _local(
        x1, x2, bias, antiquant_scale, antiquant_offset, x3, dequant_scale, pertoken_scale,
        antiquant_group_size,
    )  # fmt: skip
    if comm_quant_scale_1 is not None:
        total = _rounded(total, comm_quant_scale_1)
    total = _group.find(hcom).all_reduce(total)
    if comm_quant_scale_2 is not None:
        total = _rounded(total, comm_quant_scale_2)
    return total.reshape(*x1.shape[:-1], x2.shape[1]).to(_result_dtype(x1, dequant_scale))


@npu_mm_all_reduce_base.check
def _(
    x1,
    x2,
    hcom,
    reduce_op,
    bias,
    antiquant_scale,
    antiquant_offset,
    x3,
    dequant_scale,
    pertoken_scale,
    comm_quant_scale_1,
    comm_quant_scale_2,
    antiquant_group_size,
    comm_turn,
    group_sizes,
    y_dtype,
    x1_dtype,
    x2_dtype,
    dequant_scale_dtype,
    pertoken_scale_dtype,
    comm_quant_mode,
    comm_mode,
):
    must.dtype("x1", x1, *_HALF, torch.int8)
    must.ndim("x1", x1, 2, 3)
    must.dtype("x2", x2, x1.dtype, torch.int8)
    must.shape("x2", x2, (x1.shape[-1], None))
    full = x2.shape[1] > 0 and 0 not in x1.shape[:-1]
    full = full and (x1.shape[-1] > 0 or x1.dtype != torch.int8)
    must.hold(full, "x1", "of a product that is not empty", tuple(x1.shape))
    _group.check_name("hcom", hcom, "hcom")
    ranks = {"310P": (1, 2, 4), "A5": (1, 2, 4, 8, 16, 32, 64)}
    must.choice("hcom", _group.find(hcom).size, ranks.get(chips.current().family, (1, 2, 4, 8)))
    must.choice("reduce_op", reduce_op, ("sum",))
    must.unset("comm_turn", comm_turn, 0)
    must.choice("comm_mode", comm_mode, COMM_MODES)
    must.unset("comm_quant_mode", comm_quant_mode, 0)
    must.unset("group_sizes", group_sizes)
    must.unset("y_dtype", y_dtype)
    must.unset("x1_dtype", x1_dtype)
    must.unset("x2_dtype", x2_dtype)
    must.unset("dequant_scale_dtype", dequant_scale_dtype)
    must.unset("pertoken_scale_dtype", pertoken_scale_dtype)
    dtype = _result_dtype(x1, dequant_scale)
    quantized, half_quantized = x1.dtype == torch.int8, x2.dtype == torch.int8 != x1.dtype
    if quantized or half_quantized:
        must.hold(x2.shape[0] <= _LONGEST, "x2", f"of k up to {_LONGEST}", x2.shape[0])
    if half_quantized:
        _check_antiquant(x1, x2, antiquant_scale, antiquant_offset, antiquant_group_size)
    else:
        must.unset("antiquant_scale", antiquant_scale)
        must.unset("antiquant_offset", antiquant_offset)
        must.unset("antiquant_group_size", antiquant_group_size, 0)
    if quantized:
        _check_dequant(x1, x2, dequant_scale, pertoken_scale)
    else:
        must.unset("dequant_scale", dequant_scale)
        must.unset("pertoken_scale", pertoken_scale)
    must.dtype("bias", bias, torch.int32 if quantized else x1.dtype)
    must.shape("bias", bias, (x2.shape[1],))
    must.dtype("x3", x3, dtype)
    must.shape("x3", x3, (*x1.shape[:-1], x2.shape[1]))
    _check_comm_quant(x1, x2, comm_quant_scale_1, comm_quant_scale_2, dtype)


@npu_mm_all_reduce_base.meta
def _(x1, x2, dequant_scale):
    shape = (*x1.shape[:-1], x2.shape[1])
    return x1.new_empty(shape, dtype=_result_dtype(x1, dequant_scale))


npu_mm_all_reduce_base.samples = [
    Sample(lambda make: (make(4, 16, dtype=torch.float16), make(16, 8, dtype=torch.float16),
                         "softnpu%mirror_2"), lambda make: {"bias": make(8, dtype=torch.float16)}),
    Sample(lambda make: (make(2, 3, 64, dtype=torch.bfloat16), make(64, 8, dtype=torch.int8, low=-9, high=9),
                         "softnpu%mirror_4"),
           lambda make: {"antiquant_scale": make(2, 8, dtype=torch.bfloat16),
                         "antiquant_offset": make(2, 8, dtype=torch.bfloat16), "antiquant_group_size": 32,
                         "x3": make(2, 3, 8, dtype=torch.bfloat16)}),
    Sample(lambda make: (make(4, 16, dtype=torch.int8, low=-9, high=9),
                         make(16, 8, dtype=torch.int8, low=-9, high=9), "softnpu%mirror_2"),
           lambda make: {"dequant_scale": make(8), "pertoken_scale": make(4),
                         "bias": make(8, dtype=torch.int32, low=-9, high=9)}),
    Sample(lambda make: (make(4, 16, dtype=torch.int8, low=-9, high=9),
                         make(16, 8, dtype=torch.int8, low=-9, high=9), "softnpu%mirror_2"),
           lambda make: {"dequant_scale": make(1, 8, dtype=torch.bfloat16),
                         "comm_quant_scale_1": make(8, dtype=torch.bfloat16, low=1, high=2),
                         "comm_quant_scale_2": make(8, dtype=torch.bfloat16, low=1, high=2)}),
]  # fmt: skip
