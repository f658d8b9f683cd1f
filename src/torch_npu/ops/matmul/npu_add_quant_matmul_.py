"""npu_add_quant_matmul_ and npu_add_quant_matmul: a quantized product added to a float32 matrix."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import FLOAT8, is_transposed, restored


def high(code: int | None) -> bool:
    """Whether a code calls bytes hifloat8."""
    return code is not None and _dtypes.name(code) == "hifloat8"


def values(tensor: torch.Tensor, code: int | None) -> torch.Tensor:
    """The fp32 values of 8-bit floats or of bytes that a code calls hifloat8."""
    return restored(tensor, code) if high(code) else tensor.float()


def scaled(tensor: torch.Tensor, code: int | None, scale: torch.Tensor) -> torch.Tensor:
    """A matrix (K, X) times its scales (ceil(K / 64), X, 2), each for 32 of K."""
    blocks = _mx.powers(scale).mT.flatten(0, 1).repeat_interleave(_mx.BLOCK, 0)
    return values(tensor, code) * blocks[: tensor.shape[0]]


def check_matrices(x1, x2, x1_dtype, x2_dtype):
    """Both matrices hold 8-bit floats, or both hifloat8; the left one lies transposed in memory."""
    must.ndim("x1", x1, 2)
    must.ndim("x2", x2, 2)
    must.hold(x1.shape[1] > 0, "x1", "of a depth above 0", tuple(x1.shape), ErrCode.PARAM)
    must.shape("x2", x2, (x1.shape[1], None))
    lying = x1.stride(0) == 1 and (x1.stride(1) == x1.shape[0] or x1.shape[1] == 1)
    expected = "(M, K), a transposed view of a contiguous (K, M)"
    must.hold(lying, "x1", expected, f"strides {x1.stride()}", ErrCode.PARAM)
    single = x2.shape[0] == 1 or x2.shape[1] == 1
    plain = single or not is_transposed(x2)
    must.hold(plain, "x2", "contiguous, not transposed", x2.stride(), ErrCode.PARAM)
    hifloat8 = high(x1_dtype) or high(x2_dtype)
    for name, typed, tensor, code in (
        ("x1", "x1_dtype", x1, x1_dtype),
        ("x2", "x2_dtype", x2, x2_dtype),
    ):
        if hifloat8:
            must.hold(high(code), typed, "hifloat8 for both or none", _dtypes.text(code))
            must.hold(tensor.element_size() == 1, name, "of one byte an element", tensor.dtype)
        else:
            known = code is None or _dtypes.name(code) == str(tensor.dtype).removeprefix("torch.")
            must.hold(known, typed, "None, hifloat8 or the dtype itself", _dtypes.text(code))
            must.dtype(name, tensor, *FLOAT8)
    return hifloat8


def check_powers(name, scale, code, shape):
    """Scales that are powers of two, as bytes."""
    must.present(name, scale, "in the microscaling form")
    _mx.check_scale(name, f"{name}_dtype", scale, code, shape)


def _sum(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype):
    if high(x1_dtype):
        product = torch.matmul(values(x1, x1_dtype), values(x2, x2_dtype)) * x2_scale
        return self + product * x1_scale
    left = scaled(x1.mT, None, x1_scale.transpose(0, 1)).mT
    return self + torch.matmul(left, scaled(x2, None, x2_scale))


def _check(
    self,
    x1,
    x2,
    x2_scale,
    x1_scale,
    group_sizes,
    x1_dtype,
    x2_dtype,
    x1_scale_dtype,
    x2_scale_dtype,
):
    hifloat8 = check_matrices(x1, x2, x1_dtype, x2_dtype)
    must.dtype("self", self, torch.float32)
    must.shape("self", self, (x1.shape[0], x2.shape[1]))
    must.present("x1_scale", x1_scale, "always")
    sizes = list(group_sizes or ()) or [0, 0, 0]
    must.hold(len(sizes) == 3, "group_sizes", "of 3 numbers", sizes, ErrCode.PARAM)
    if hifloat8:
        for name, scale in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
            must.dtype(name, scale, torch.float32)
            must.shape(name, scale, (1,))
        for name, code in (("x1_scale_dtype", x1_scale_dtype), ("x2_scale_dtype", x2_scale_dtype)):
            must.choice(name, None if code is None else _dtypes.name(code), (None, "float32"))
        must.choice("group_sizes", sizes, ([0, 0, 0],))
        return
    depth, pairs = x1.shape[1], _mx.pairs(x1.shape[1])
    check_powers("x1_scale", x1_scale, x1_scale_dtype, (x1.shape[0], pairs, 2))
    check_powers("x2_scale", x2_scale, x2_scale_dtype, (pairs, x2.shape[1], 2))
    # zeros are taken from the shapes, which have whole pairs of blocks if K is a multiple of 64
    known = sizes[2] == _mx.BLOCK or (sizes[2] == 0 and depth % (_mx.BLOCK * _mx.PAIR) == 0)
    fits = sizes[0] in (0, 1) and sizes[1] in (0, 1) and known
    expected = "[1, 1, 32]; a 0 is inferred, that of depths if K is a multiple of 64"
    must.hold(fits, "group_sizes", expected, sizes)


_REST = (
    "Tensor x1, Tensor x2, Tensor x2_scale, *, Tensor? x1_scale=None, int[]? group_sizes=None, "
    "int? x1_dtype=None, int? x2_dtype=None, int? x1_scale_dtype=None, int? x2_scale_dtype=None)"
)


@npu_op(
    f"npu_add_quant_matmul_(Tensor(a!) self, {_REST} -> Tensor(a!)", chips=("A5",), product=True
)
def npu_add_quant_matmul_(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype):
    r"""Adds a quantized product to `self` in place, as the accumulation of gradients does.

    $$ self \leftarrow self + \sum_k s_1 x_{1,mk} \cdot s_2 x_{2,kn} $$

    Args:
        self: (M, N), float32; written.
        x1: (M, K), the transpose of a contiguous (K, M); float8_e4m3fn or float8_e5m2, or bytes that `x1_dtype` calls
            hifloat8.
        x2: (K, N), likewise, not transposed.
        x2_scale, x1_scale: for 8-bit floats bytes that stand for powers of two, one for 32 of K: (ceil(K / 64), N, 2)
            and (M, ceil(K / 64), 2), float8_e8m0fnu or bytes that `x2_scale_dtype` and `x1_scale_dtype` call so; for
            hifloat8 one float32 each.
        group_sizes: [1, 1, 32] for 8-bit floats, where zeros and None are inferred if K is a multiple of 64;
            None or [0, 0, 0] for hifloat8.
        x1_dtype, x2_dtype: hifloat8 for such bytes, else None or the dtype itself.
        x1_scale_dtype, x2_scale_dtype: float8_e8m0fnu for such bytes.

    Returns:
        `self`.

    Constraints:
        Ascend950.
    """
    return self.copy_(_sum(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype))


@npu_add_quant_matmul_.check
def _(**arguments):
    _check(**arguments)


@npu_op(f"npu_add_quant_matmul(Tensor self, {_REST} -> Tensor", chips=("A5",), product=True)
def npu_add_quant_matmul(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype):
    """`npu_add_quant_matmul_` that leaves `self` alone: the sum."""
    return _sum(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype)


@npu_add_quant_matmul.check
def _(**arguments):
    _check(**arguments)


def _operands(make):
    x1, x2 = (make(9, n, dtype=torch.uint8, low=8, high=60) for n in (4, 6))
    return make(4, 6), x1.t(), x2, make(1, low=0)


npu_add_quant_matmul_.samples = npu_add_quant_matmul.samples = [
    Sample(
        _operands,
        lambda make: {"x1_scale": make(1, low=0), "x1_dtype": 290, "x2_dtype": 290},
    ),
    Sample(
        _operands,
        lambda make: {
            "x1_scale": make(1, low=0),
            "x1_dtype": 290,
            "x2_dtype": 290,
            "group_sizes": [0, 0, 0],
        },
    ),
]
