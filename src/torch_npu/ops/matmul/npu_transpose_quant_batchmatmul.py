"""npu_transpose_quant_batchmatmul: a batch of quantized products whose batch lies between rows and depth."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import FLOAT8, restored
from torch_npu.ops._shared._scales import PACKED, scale_of

_OUTPUTS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def _hifloat8(code):
    return code is not None and _dtypes.name(code) == "hifloat8"


def _values(tensor, code):
    return restored(tensor, code) if _hifloat8(code) else tensor.float()


def _powers(scale):
    return None if scale is None or scale.dim() != 4 else _mx.powers(scale)


@npu_op(
    "npu_transpose_quant_batchmatmul(Tensor x1, Tensor x2, int dtype, *, Tensor? bias=None, "
    "Tensor? x1_scale=None, Tensor? x2_scale=None, int[]? group_sizes=None, int[]? perm_x1=None, "
    "int[]? perm_x2=None, int[]? perm_y=None, int? batch_split_factor=1, int? x1_dtype=None, "
    "int? x2_dtype=None) -> Tensor",
    chips=("A5",),
    product=True,
)
def npu_transpose_quant_batchmatmul(x1, x2, dtype, x1_scale, x2_scale, perm_x2, x1_dtype, x2_dtype):
    r"""For each batch b the product of x1[:, b] and x2[b], scaled; the batch stays the middle dimension.

    $$ y_{m,b,n} = s_1 \cdot s_2 \cdot \sum_k x_{1,mbk}\, x_{2,bkn} $$

    Args:
        x1: (M, B, K); float8_e4m3fn or float8_e5m2, or bytes that `x1_dtype` calls hifloat8.
        x2: (B, K, N), or (B, N, K) with `perm_x2` [0, 2, 1]; as `x1`.
        dtype: the type of the result: float16, bfloat16, and for hifloat8 inputs hifloat8.
        bias: not supported by upstream.
        x1_scale: $s_1$: (M) in float32; for microscaling (M, B, K / 64, 2) bytes of powers of two, each for 32 of K;
            for hifloat8 (1), packed as int64, or None.
        x2_scale: $s_2$: (N) in float32, for hifloat8 packed as int64, or (B, K / 64, N, 2) bytes, (B, N, K / 64, 2)
            with `perm_x2` [0, 2, 1].
        group_sizes: for microscaling [0 or 1, 0 or 1, 32]; else three numbers of no effect.
        perm_x1, perm_y: [1, 0, 2].
        perm_x2: [0, 1, 2] (the default) or [0, 2, 1].
        batch_split_factor: 1.
        x1_dtype, x2_dtype: hifloat8 for such bytes, else None or the dtype itself.

    Returns:
        y of shape (M, B, N).

    Constraints:
        Ascend950. Microscaling: float8_e4m3fn and K a multiple of 64. Scales of rows and columns: K = 512 and
        N = 128 with `perm_x2` [0, 1, 2].
    """
    swapped = tuple(perm_x2 or ()) == (0, 2, 1)
    left, right = _values(x1, x1_dtype), _values(x2, x2_dtype)
    right = right.mT if swapped else right
    rows, columns = _powers(x1_scale), _powers(x2_scale)
    if rows is not None and columns is not None:
        left = left * rows.flatten(-2).repeat_interleave(_mx.BLOCK, -1)
        columns = columns if swapped else columns.movedim(1, 2)  # (B, N, K / 64, 2)
        right = right * columns.flatten(-2).repeat_interleave(_mx.BLOCK, -1).mT
        y = torch.matmul(left.transpose(0, 1), right)
    else:
        y = torch.matmul(left.transpose(0, 1), right) * scale_of(x2_scale)
        y = y if x1_scale is None else y * scale_of(x1_scale).unsqueeze(-1)
    y = y.transpose(0, 1)
    name = _formats.chosen(dtype)
    return _formats.encode(y, name) if name == "hifloat8" else y.to(_OUTPUTS[name]).contiguous()


def _microscaled(x1_scale, x2_scale):
    return any(s is not None and s.dim() == 4 for s in (x1_scale, x2_scale))


@npu_transpose_quant_batchmatmul.check
def _(
    x1,
    x2,
    dtype,
    bias,
    x1_scale,
    x2_scale,
    group_sizes,
    perm_x1,
    perm_x2,
    perm_y,
    batch_split_factor,
    x1_dtype,
    x2_dtype,
):
    must.unset("bias", bias)
    must.ndim("x1", x1, 3)
    must.ndim("x2", x2, 3)
    for name, perm in (("perm_x1", perm_x1), ("perm_y", perm_y)):
        must.choice(name, list(perm or (1, 0, 2)), ([1, 0, 2],))
    order = list(perm_x2 or (0, 1, 2))
    must.choice("perm_x2", order, ([0, 1, 2], [0, 2, 1]))
    must.choice("batch_split_factor", batch_split_factor, (None, 1))
    high = _hifloat8(x1_dtype) or _hifloat8(x2_dtype)
    for name, typed, tensor, code in (
        ("x1", "x1_dtype", x1, x1_dtype),
        ("x2", "x2_dtype", x2, x2_dtype),
    ):
        if high:
            must.hold(_hifloat8(code), typed, "hifloat8 for both or none", _dtypes.text(code))
            must.hold(tensor.element_size() == 1, name, "of one byte an element", tensor.dtype)
        else:
            must.dtype(name, tensor, *FLOAT8)
            _formats.check(typed, code, str(tensor.dtype).removeprefix("torch."))
    rows, batch, depth = x1.shape
    columns = x2.shape[order[2]]
    expected = (batch, depth, None) if order == [0, 1, 2] else (batch, None, depth)
    must.shape("x2", x2, expected)
    whole = x1.numel() > 0 and x2.numel() > 0
    must.hold(whole, "x1", "and 'x2' not empty", tuple(x1.shape), ErrCode.PARAM)
    _formats.check("dtype", dtype, *_OUTPUTS, *(("hifloat8",) if high else ()))
    if _microscaled(x1_scale, x2_scale):
        must.dtype("x1", x1, torch.float8_e4m3fn)
        must.dtype("x2", x2, torch.float8_e4m3fn)
        must.hold(depth % 64 == 0, "x1", "of a depth divisible by 64", depth, ErrCode.PARAM)
        sides = ((rows, batch, depth // 64, 2), (batch, depth // 64, columns, 2))
        if order != [0, 1, 2]:
            sides = (sides[0], (batch, columns, depth // 64, 2))
        for name, scale, shape in zip(
            ("x1_scale", "x2_scale"), (x1_scale, x2_scale), sides, strict=True
        ):
            must.present(name, scale, "in the microscaling form")
            must.dtype(name, scale, torch.uint8, torch.float8_e8m0fnu)
            must.shape(name, scale, shape)
        sizes = list(group_sizes or (0, 0, 0))
        fits = len(sizes) == 3 and sizes[0] in (0, 1) and sizes[1] in (0, 1) and sizes[2] == 32
        must.hold(fits, "group_sizes", "[0 or 1, 0 or 1, 32]", sizes)
        return
    must.present("x2_scale", x2_scale, "always")
    kinds = PACKED if high else (torch.float32,)
    must.dtype("x2_scale", x2_scale, *kinds)
    must.shape("x2_scale", x2_scale, (columns,))
    must.dtype("x1_scale", x1_scale, *kinds)
    sizes = list(group_sizes or (0, 0, 0))
    must.hold(len(sizes) == 3, "group_sizes", "of 3 numbers", sizes)
    if high:
        must.shape("x1_scale", x1_scale, (1,))
        return
    must.present("x1_scale", x1_scale, "with 8-bit floats")
    must.shape("x1_scale", x1_scale, (rows,))
    must.choice("perm_x2", order, ([0, 1, 2],))
    must.hold(depth == 512, "x1", "of depth 512 with scales of rows and columns", depth)
    must.hold(columns == 128, "x2", "of 128 columns with scales of rows and columns", columns)


def _bytes(make, *shape):
    return make(*shape, dtype=torch.uint8, low=8, high=60)


def _packed(make, *shape):
    # the bits of floats from 0.5 to 1
    return make(*shape, dtype=torch.int64, low=0x3F000000, high=0x3F800000)


npu_transpose_quant_batchmatmul.samples = [
    Sample(
        lambda make: (_bytes(make, 3, 2, 20), _bytes(make, 2, 20, 6), torch.bfloat16),
        lambda make: {"x2_scale": _packed(make, 6), "x1_dtype": 290, "x2_dtype": 290},
    ),
    Sample(
        lambda make: (_bytes(make, 3, 2, 20), _bytes(make, 2, 6, 20), torch.float16),
        lambda make: {
            "x1_scale": _packed(make, 1),
            "x2_scale": _packed(make, 6),
            "perm_x2": [0, 2, 1],
            "x1_dtype": 290,
            "x2_dtype": 290,
        },
    ),
]
