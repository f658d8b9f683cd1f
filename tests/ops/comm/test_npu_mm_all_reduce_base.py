"""npu_mm_all_reduce_base in a mirrored group: what it refuses. On ranks: test_products_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make

NAME = "softnpu%mirror_2"


def test_mirrored():
    x, w = make(2, 3, 16, dtype=torch.float16), make(5, 16, dtype=torch.float16).t()
    y = torch_npu.npu_mm_all_reduce_base(x, w, NAME)
    want = 2 * (x.cpu().double() @ w.cpu().double())
    assert_accurate(y, want, want.half())


HALF = {"dtype": torch.float16}
WRONG = [
    ("half", {"reduce_op": "min"}, "'reduce_op' must be 'sum'"),
    ("half", {"comm_turn": 1}, "'comm_turn' must be left at 0"),
    ("half", {"y_dtype": 1}, "'y_dtype' must be left at None"),
    ("half", {"comm_quant_mode": 1}, "'comm_quant_mode' must be left at 0"),
    ("half", {"dequant_scale": lambda: make(5)}, "'dequant_scale' must be left at None"),
    (
        "half",
        {"antiquant_scale": lambda: make(5, **HALF)},
        "'antiquant_scale' must be left at None",
    ),
    ("half", {"bias": lambda: make(4, **HALF)}, r"'bias' must be of shape \(5\)"),
    ("half", {"x3": lambda: make(3, 4, **HALF)}, r"'x3' must be of shape \(3, 5\)"),
    ("weight", {}, "'antiquant_scale' must be given when x2 alone is int8"),
    (
        "weight",
        {"antiquant_scale": lambda: make(2, 5, **HALF)},
        "'antiquant_scale' must be of shape",
    ),
    (
        "weight",
        {"antiquant_scale": lambda: make(4, 5, **HALF), "antiquant_group_size": 16},
        "'antiquant_group_size' must be 0, or a multiple of 32",
    ),
    ("int8", {}, "'dequant_scale' must be given when x1 and x2 are int8"),
    ("int8", {"dequant_scale": lambda: make(5)}, "'pertoken_scale' must be given with a float32"),
    (
        "int8",
        {"dequant_scale": lambda: make(5), "pertoken_scale": lambda: make(4)},
        r"'pertoken_scale' must be of shape \(3\)",
    ),
    (
        "int8",
        {
            "dequant_scale": lambda: make(5, dtype=torch.bfloat16),
            "comm_quant_scale_1": lambda: make(5),
        },
        "'comm_quant_scale_2' must be given with comm_quant_scale_1",
    ),
]


@pytest.mark.parametrize("form,options,message", WRONG)
def test_bad_input(form, options, message):
    left = torch.int8 if form == "int8" else torch.float16
    right = torch.float16 if form == "half" else torch.int8
    x, w = make(3, 64, dtype=left, low=-3, high=3), make(64, 5, dtype=right, low=-3, high=3)
    given = {k: v() if callable(v) else v for k, v in options.items()}
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=f"npu_mm_all_reduce_base: argument {message}"
    ):
        torch_npu.npu_mm_all_reduce_base(x, w, NAME, **given)


@pytest.mark.family("A2")
def test_bad_group():
    x, w = make(3, 64, **HALF), make(64, 5, **HALF)
    with pytest.raises(RuntimeError, match="'hcom' must be 1, 2, 4 or 8, but received 3"):
        torch_npu.npu_mm_all_reduce_base(x, w, "softnpu%mirror_3")


def test_a_sum_of_nothing():
    x1, x2 = torch.empty(3, 0).half().npu(), torch.empty(0, 4).half().npu()
    bias = torch.ones(4).half().npu()
    found = torch_npu.npu_mm_all_reduce_base(x1, x2, "softnpu%mirror_2", bias=bias)
    assert torch.equal(found.cpu(), torch.full((3, 4), 2).half())


def test_ranks_by_chip():
    x = torch.ones(2, 2).half().npu()
    with on("A5"):
        torch_npu.npu_mm_all_reduce_base(x, x, "softnpu%mirror_16")
    with on("310P"), pytest.raises(RuntimeError, match="'hcom' must be 1, 2 or 4, but received 8"):
        torch_npu.npu_mm_all_reduce_base(x, x, "softnpu%mirror_8")
