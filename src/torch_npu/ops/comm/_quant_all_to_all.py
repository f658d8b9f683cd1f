"""What npu_all_to_all_quant_matmul and npu_quant_matmul_all_to_all share: forms, constraints, scaled products."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import FLOAT8, dtype_of, is_transposed, product
from torch_npu.ops.comm import _group

HALF = (torch.float16, torch.bfloat16)
PER_CHANNEL, PER_TOKEN, MICROSCALED, DYNAMIC = 2, 3, 6, 7
WIDEST = 65535


def on_950() -> bool:
    return chips.current().family == "A5"


def result_dtype(y_dtype: int | None) -> torch.dtype:
    """Of the product: float32 unless said otherwise."""
    found = dtype_of(None if y_dtype == -1 else y_dtype, torch.float32)
    return found if isinstance(found, torch.dtype) else torch.float32


def scaled(
    y: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """A product in fp32 with its scales and bias: on Ascend950 the bias is scaled too."""
    bias = None if bias is None else bias.float()
    if on_950() and bias is not None:
        y, bias = y + bias, None
    y = y.float() * columns.float() * rows.float().unsqueeze(1)
    return y if bias is None else y + bias


def microscaled(x1, x2, x1_scale, x2_scale, x1_dtype, x2_dtype, bias) -> torch.Tensor:
    """The product of operands with powers of two for 32 depths; x2_scale is (N, ceil(K / 64), 2)."""
    left = _mx.left(x1, x1_dtype, x1_scale)
    y = product(left, _mx.right(x2, x2_dtype, x2_scale.transpose(0, 1)))
    return y if bias is None else y + bias.float()


def check_reserved(call: dict, axes: list[int]) -> None:
    """The group and what has no other value than its default."""
    allowed = (2, 4, 8, 16) if on_950() else (2, 4, 8)
    must.choice("world_size", call["world_size"], allowed)
    _group.check_name("hcom", call["hcom"], "world_size", call["world_size"])
    must.ndim("x1", call["x1"], 2)
    must.ndim("x2", call["x2"], 2)
    given = call["all2all_axes"]
    must.choice("all2all_axes", None if given is None else list(given), (None, [], axes))
    for name in (
        "common_scale",
        "x1_offset",
        "x2_offset",
        "output_scale_dtype",
        "comm_scale_dtype",
    ):
        must.unset(name, call[name])
    must.choice("common_quant_mode", call["common_quant_mode"], (None, 0))
    must.choice("comm_quant_dtype", call["comm_quant_dtype"], (None, -1))
    modes = (None, "", "ai_cpu", "ccu") if on_950() else (None, "", "aiv")
    must.choice("comm_mode", call["comm_mode"], modes)


def check_groups(call: dict, mx: bool) -> None:
    sizes = None if call["group_sizes"] is None else list(call["group_sizes"])
    fits = sizes is None or sizes in ([], [0, 0, 0])
    if mx and sizes is not None and len(sizes) == 3:
        fits = all(s in (0, w) for s, w in zip(sizes, (1, 1, 32), strict=True))
    expected = "[1, 1, 32], any of them 0" if mx else "None for these operands"
    must.hold(fits, "group_sizes", expected, sizes)


def check_chip() -> None:
    """Only Ascend950 has the microscaling form."""
    must.hold(on_950(), "x1_quant_mode", "3 or 7 on this chip", MICROSCALED, ErrCode.NOT_SUPPORT)


def check_mx(call: dict, depth: int) -> None:
    """Microscaled operands; `depth` is the product's."""
    x1, x2 = call["x1"], call["x2"]
    must.choice("x2_quant_mode", call["x2_quant_mode"], (MICROSCALED,))
    _mx.check_matrix("x1", "x1_dtype", x1, call["x1_dtype"])
    _mx.check_matrix("x2", "x2_dtype", x2, call["x2_dtype"])
    must.hold(is_transposed(x2), "x2", "a transposed view in the microscaling form", x2.stride())
    (m, k), (have, n) = _mx.shape(x1, call["x1_dtype"]), _mx.shape(x2, call["x2_dtype"])
    must.hold(have == depth, "x2", f"of a first size of {depth}", have)
    for name, shape in (("x1_scale", (m, _mx.pairs(k), 2)), ("x2_scale", (n, _mx.pairs(depth), 2))):
        _mx.check_scale(name, f"{name}_dtype", call[name], call[f"{name}_dtype"], shape)
    check_groups(call, True)
    check_bias(call["bias"], n, (torch.float32,))


def check_bias(bias: torch.Tensor | None, columns: int, allowed) -> None:
    must.dtype("bias", bias, *allowed)
    must.shape("bias", bias, (columns,))


def check_codes(call: dict) -> None:
    """No codes beside tensors that need none."""
    for name in ("x1_dtype", "x2_dtype", "x1_scale_dtype", "x2_scale_dtype"):
        must.unset(name, call[name])
    check_groups(call, False)


def check_result(call: dict, allowed) -> None:
    must.choice("y_dtype", result_dtype(call["y_dtype"]), allowed)


def is_float8(tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOAT8
