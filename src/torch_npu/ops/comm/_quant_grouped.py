"""What npu_alltoallv_quant_gmm and npu_quant_gmm_alltoallv share: constraints, scales, products by expert."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import dtype_of, product, restored, torch_dtype
from torch_npu.ops.comm import _group

RANKS = (2, 4, 8, 16, 32, 64, 128, 256)
WHOLE, MICRO = 1, 6
_EXPERTS, _COUNTS, _WIDTH, _SHARED_WIDTH = 32, 256, 65536, 12288
_HALF = (torch.float16, torch.bfloat16)

#: the arguments of the product of the experts, and of that of the shared expert
NAMES = {
    "gmm": {
        "x": "gmm_x",
        "weight": "gmm_weight",
        "x_scale": "gmm_x_scale",
        "weight_scale": "gmm_weight_scale",
        "x_quant_mode": "gmm_x_quant_mode",
        "weight_quant_mode": "gmm_weight_quant_mode",
        "x_dtype": "gmm_x_dtype",
        "weight_dtype": "gmm_weight_dtype",
        "x_scale_dtype": "gmm_x_scale_dtype",
        "weight_scale_dtype": "gmm_weight_scale_dtype",
        "y_dtype": "gmm_y_dtype",
    },
    "mm": {
        "x": "mm_x",
        "weight": "mm_weight",
        "x_scale": "mm_x_scale",
        "weight_scale": "mm_weight_scale",
        "x_quant_mode": "mm_x_quant_mode",
        "weight_quant_mode": "mm_weight_quant_mode",
        "x_dtype": "mm_x_dtype",
        "weight_dtype": "mm_weight_dtype",
        "x_scale_dtype": "mm_x_scale_dtype",
        "weight_scale_dtype": "mm_weight_scale_dtype",
        "y_dtype": "mm_y_dtype",
    },
}


def mode_of(call, kind, side) -> int:
    """How `side` ("x" or "weight") of a product is quantized; with one scale where nothing is said."""
    mode = call[NAMES[kind][f"{side}_quant_mode"]]
    return WHOLE if mode is None else mode


def rows_as_bytes(x: torch.Tensor) -> torch.Tensor:
    """What travels: 8-bit and 4-bit floats as bytes."""
    return x.contiguous().view(torch.uint8) if x.element_size() == 1 else x


def left(call, kind, x, scale) -> torch.Tensor:
    """The rows of `kind` ("gmm" or "mm") in fp32, with the scales of microscaling multiplied in."""
    code = call[NAMES[kind]["x_dtype"]]
    if mode_of(call, kind, "x") == MICRO:
        return _mx.left(x, code, scale)
    return restored(x, code).float()


def right(call, kind) -> torch.Tensor:
    weight, code = call[NAMES[kind]["weight"]], call[NAMES[kind]["weight_dtype"]]
    if mode_of(call, kind, "weight") == MICRO:
        return _mx.right(weight, code, call[NAMES[kind]["weight_scale"]])
    return restored(weight, code).float()


def scaled(call, kind, y) -> torch.Tensor:
    """The product with one scale a matrix, in the type of the result."""
    if mode_of(call, kind, "x") == WHOLE:
        y = y * call[NAMES[kind]["x_scale"]] * call[NAMES[kind]["weight_scale"]]
    return y.to(result(call, kind))


def grouped(call, x, scale, counts) -> torch.Tensor:
    """Each expert's rows times its matrix."""
    matrices = right(call, "gmm")
    parts = left(call, "gmm", x, scale).split(list(counts))
    done = [product(part, matrices[e]) for e, part in enumerate(parts)]
    return scaled(call, "gmm", torch.cat(done))


def shared(call) -> torch.Tensor | None:
    """The shared expert's product; None without one."""
    if call["mm_x"] is None:
        return None
    rows = left(call, "mm", call["mm_x"], call["mm_x_scale"])
    return scaled(call, "mm", product(rows, right(call, "mm")))


def result(call, kind) -> torch.dtype:
    return torch_dtype(call[NAMES[kind]["y_dtype"]])


def empty(call, kind, rows) -> torch.Tensor:
    """What the product of `rows` rows looks like."""
    width = _mx.shape(call[NAMES[kind]["weight"]], call[NAMES[kind]["weight_dtype"]])[-1]
    return call["gmm_x"].new_empty((rows, width), dtype=result(call, kind))


def empty_shared(call) -> torch.Tensor | None:
    return None if call["mm_x"] is None else empty(call, "mm", call["mm_x"].shape[0])


def check(call) -> None:
    """The constraints of both operators."""
    must.choice("ep_world_size", call["ep_world_size"], RANKS)
    together = (call["mm_x"] is None) == (call["mm_weight"] is None)
    must.hold(together, "mm_weight", "given with mm_x", None)
    _check_dims("gmm_x", call["gmm_x"], 2)
    _check_dims("gmm_weight", call["gmm_weight"], 3)
    _check_mode("gmm_x_quant_mode", mode_of(call, "gmm", "x"))
    _check_mode("gmm_weight_quant_mode", mode_of(call, "gmm", "weight"))
    if call["mm_x"] is not None:
        _check_mode("mm_x_quant_mode", mode_of(call, "mm", "x"))
        _check_mode("mm_weight_quant_mode", mode_of(call, "mm", "weight"))
        pair = call["mm_x_scale"], call["mm_weight_scale"]
        missing = "mm_x_scale" if pair[0] is None else "mm_weight_scale"
        words = "mm_x_scale and mm_weight_scale are required"
        fine = None not in pair
        must.hold(fine, missing, "given with mm_x", None, ErrCode.PARAM, words)
    _check_side(call, "gmm")
    experts = call["gmm_weight"].shape[0]
    must.hold(0 < experts <= _EXPERTS, "gmm_weight", f"of 1 to {_EXPERTS} experts", experts)
    total = experts * call["ep_world_size"]
    expected = f"such that e * ep_world_size is at most {_COUNTS}"
    must.hold(total <= _COUNTS, "ep_world_size", expected, total)
    for name in ("send_counts", "recv_counts"):
        counts = list(call[name])
        fits = len(counts) == total and min(counts) >= 0
        must.hold(fits, name, f"of e * ep_world_size = {total} counts, none negative", counts)
        must.unset(f"{name}_tensor", call[f"{name}_tensor"])
    rows, sent = call["gmm_x"].shape[0], sum(call["send_counts"])
    must.hold(
        sent == rows, "send_counts", f"counts that add up to the rows of gmm_x ({rows})", sent
    )
    groups = call["group_size"]
    allowed: tuple[tuple[int, ...] | None, ...] = (None, (), (0, 0, 0))
    allowed = (*allowed, (1, 1, 32)) if mode_of(call, "gmm", "x") == MICRO else allowed
    must.choice("group_size", None if groups is None else tuple(groups), allowed)
    must.choice("comm_mode", call["comm_mode"], (None, "ai_cpu", "ccu"))
    if call["mm_x"] is not None:
        must.ndim("mm_x", call["mm_x"], 2)
        must.ndim("mm_weight", call["mm_weight"], 2)
        _check_side(call, "mm")
        same = mode_of(call, "mm", "x") == mode_of(call, "gmm", "x")
        must.hold(same, "mm_x_quant_mode", "that of gmm_x", call["mm_x_quant_mode"])
    _group.check_name("hcom", call["hcom"], "ep_world_size", call["ep_world_size"])


def _check_dims(name, tensor, dims) -> None:
    shape, words = tuple(tensor.shape), f"dimension of {name} should be {dims}D"
    fine = tensor.dim() == dims
    must.hold(fine, name, f"a tensor of {dims} dimensions", shape, ErrCode.PARAM, words)


def _check_mode(name, mode) -> None:
    must.choice(name, mode, (WHOLE, MICRO), f"{name} only support 1")


def _check_side(call, kind) -> None:
    x, weight = call[NAMES[kind]["x"]], call[NAMES[kind]["weight"]]
    mode = mode_of(call, kind, "x")
    must.choice(f"{kind}_weight_quant_mode", mode_of(call, kind, "weight"), (mode,))
    must.choice(f"{kind}_y_dtype", dtype_of(call[NAMES[kind]["y_dtype"]], None), _HALF)
    codes = {side: call[NAMES[kind][f"{side}_dtype"]] for side in ("x", "weight")}
    if mode == MICRO:
        for side, tensor in (("x", x), ("weight", weight)):
            _mx.check_matrix(f"{kind}_{side}", f"{kind}_{side}_dtype", tensor, codes[side])
    else:
        for side, tensor in (("x", x), ("weight", weight)):
            name = None if codes[side] is None else _dtypes.name(codes[side])
            must.choice(f"{kind}_{side}_dtype", name, ("hifloat8",))
            one = tensor.element_size() == 1
            must.hold(one, f"{kind}_{side}", "of one byte an element", tensor.dtype)
    rows, depth = _mx.shape(x, codes["x"])
    *lead, inner, columns = _mx.shape(weight, codes["weight"])
    must.hold(
        inner == depth, f"{kind}_weight", f"of {depth} rows, as the columns of {kind}_x", inner
    )
    most = _WIDTH if kind == "gmm" else _SHARED_WIDTH + 1
    must.hold(0 < depth < most, f"{kind}_x", f"of columns below {most}", depth)
    must.hold(0 < columns < _WIDTH, f"{kind}_weight", f"of columns below {_WIDTH}", columns)
    scales = call[NAMES[kind]["x_scale"]], call[NAMES[kind]["weight_scale"]]
    kinds = call[NAMES[kind]["x_scale_dtype"]], call[NAMES[kind]["weight_scale_dtype"]]
    names = f"{kind}_x_scale", f"{kind}_weight_scale"
    shapes = (rows, _mx.pairs(depth), 2), (*lead, _mx.pairs(depth), columns, 2)
    for name, scale, code, shape in zip(names, scales, kinds, shapes, strict=True):
        must.present(name, scale, "for quantized operands")
        if mode == MICRO:
            _mx.check_scale(name, f"{name}_dtype", scale, code, shape)
        else:
            must.unset(f"{name}_dtype", code)
            must.dtype(name, scale, torch.float32)
            must.shape(name, scale, (1,))
