"""npu_add_quant_matmul_ and npu_add_quant_matmul: a quantized product added to a float32 matrix."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import FLOAT8, restored


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
    """Both matrices hold 8-bit floats, or both hifloat8."""
    must.ndim("x1", x1, 2)
    must.ndim("x2", x2, 2)
    must.shape("x2", x2, (x1.shape[0], None))
    hifloat8 = high(x1_dtype) or high(x2_dtype)
    for name, tensor, code in (("x1", x1, x1_dtype), ("x2", x2, x2_dtype)):
        if hifloat8:
            must.hold(high(code), f"{name}_dtype", "hifloat8 for both or none", _dtypes.text(code))
            must.hold(tensor.element_size() == 1, name, "of one byte an element", tensor.dtype)
        else:
            known = code is None or _dtypes.name(code) == str(tensor.dtype).removeprefix("torch.")
            must.hold(
                known, f"{name}_dtype", "None, hifloat8 or the dtype itself", _dtypes.text(code)
            )
            must.dtype(name, tensor, *FLOAT8)
    return hifloat8


def check_powers(name, scale, code, shape):
    """Scales that are powers of two, as bytes."""
    must.present(name, scale, "in the microscaling form")
    _mx.check_scale(name, f"{name}_dtype", scale, code, shape)


def _sum(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype):
    if high(x1_dtype):
        product = torch.matmul(values(x1, x1_dtype).mT, values(x2, x2_dtype)) * x2_scale
        return self + (product if x1_scale is None else product * x1_scale)
    return self + torch.matmul(scaled(x1, None, x1_scale).mT, scaled(x2, None, x2_scale))


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
    must.shape("self", self, (x1.shape[1], x2.shape[1]))
    sizes = list(group_sizes or ())
    if hifloat8:
        for name, scale in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
            must.dtype(name, scale, torch.float32)
            must.shape(name, scale, (1,))
        for name, code in (("x1_scale_dtype", x1_scale_dtype), ("x2_scale_dtype", x2_scale_dtype)):
            must.choice(name, None if code is None else _dtypes.name(code), (None, "float32"))
        must.choice("group_sizes", sizes, ([], [0, 0, 0]))
        return
    pairs = _mx.pairs(x1.shape[0])
    check_powers("x1_scale", x1_scale, x1_scale_dtype, (pairs, x1.shape[1], 2))
    check_powers("x2_scale", x2_scale, x2_scale_dtype, (pairs, x2.shape[1], 2))
    must.choice("group_sizes", sizes, ([], [1, 1, 32], [0, 0, 32]))


_REST = (
    "Tensor x1, Tensor x2, Tensor x2_scale, *, Tensor? x1_scale=None, int[]? group_sizes=None, "
    "int? x1_dtype=None, int? x2_dtype=None, int? x1_scale_dtype=None, int? x2_scale_dtype=None)"
)


@npu_op(
    f"npu_add_quant_matmul_(Tensor(a!) self, {_REST} -> Tensor(a!)", chips=("A5",), product=True
)
def npu_add_quant_matmul_(self, x1, x2, x2_scale, x1_scale, x1_dtype, x2_dtype):
    r"""Adds a quantized product to `self` in place, as the accumulation of gradients does.

    $$ self \leftarrow self + \sum_k s_1 x_{1,km} \cdot s_2 x_{2,kn} $$

    Args:
        self: (M, N), float32; written.
        x1: (K, M); float8_e4m3fn or float8_e5m2, or bytes that `x1_dtype` calls hifloat8.
        x2: (K, N), likewise.
        x2_scale, x1_scale: for 8-bit floats bytes that stand for powers of two, one for 32 of K: (ceil(K / 64), N, 2)
            and (ceil(K / 64), M, 2), float8_e8m0fnu or bytes that `x2_scale_dtype` and `x1_scale_dtype` call so; for
            hifloat8 one float32 each, where `x1_scale` may be None.
        group_sizes: None, [1, 1, 32] or [0, 0, 32] for 8-bit floats, [0, 0, 0] for hifloat8.
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


npu_add_quant_matmul_.samples = npu_add_quant_matmul.samples = [
    Sample(
        lambda make: (
            make(4, 6),
            make(9, 4, dtype=torch.uint8, low=8, high=60),
            make(9, 6, dtype=torch.uint8, low=8, high=60),
            make(1, low=0),
        ),
        {"x1_dtype": 290, "x2_dtype": 290},
    ),
    Sample(
        lambda make: (
            make(4, 6),
            make(9, 4, dtype=torch.uint8, low=8, high=60),
            make(9, 6, dtype=torch.uint8, low=8, high=60),
            make(1, low=0),
        ),
        lambda make: {
            "x1_scale": make(1, low=0),
            "x1_dtype": 290,
            "x2_dtype": 290,
            "group_sizes": [0, 0, 0],
        },
    ),
]
