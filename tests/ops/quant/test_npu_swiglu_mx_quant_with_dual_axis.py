"""npu_swiglu_mx_quant_with_dual_axis: the activation in fp64, rounded, then frexp and search along both axes."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx
from tests.ops.quant.test_npu_grouped_dynamic_mx_quant import reference
from tests.ops.quant.test_npu_swiglu_mx_quant import hidden
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


@pytest.mark.parametrize(
    "dst,options",
    [
        (mx.E4M3, {}),
        (mx.E5M2, {"scale_alg": 0, "activate_left": False}),
        (mx.E2M1, {"scale_alg": 0, "round_mode": "floor"}),
        (mx.E1M2, {"scale_alg": 0, "round_mode": "round"}),
    ],
)
@pytest.mark.parametrize("ends", [None, (70,), (3, 66, 70)])
def test_both_axes(dst, options, ends):
    x = make(70, 88, dtype=torch.bfloat16, low=-4, high=4)
    index = None if ends is None else torch.tensor(ends).npu()
    y1, scale1, y2, scale2 = torch_npu.npu_swiglu_mx_quant_with_dual_axis(
        x, group_index=index, dst_type=dst, **options
    )
    h = hidden(x, left=options.get("activate_left", True))
    plain = {"alg": options.get("scale_alg", 1), "mode": options.get("round_mode", "rint")}
    mx.same(y1, scale1, mx.quantize(h, dst, -1, **plain), dst)
    if ends is None:
        want = mx.quantize(h, dst, 0, **plain)
    else:
        want = reference(torch.from_numpy(h), ends, dst, **plain)
    mx.same(y2, scale2, want, dst)


def test_default_type():
    y1, *_ = torch_npu.npu_swiglu_mx_quant_with_dual_axis(make(4, 6, dtype=torch.float16))
    assert y1.dtype == torch.float8_e4m3fn and y1.shape == (4, 3)


def test_bad_arguments():
    x = make(4, 66, dtype=torch.float16)
    for given, options, text in [
        (x.float(), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        (x[:, :65], {}, "'x' must be of a last dimension divisible by 2"),
        (x, {"dst_type": 296, "scale_alg": 0}, "'x' must be of a last dimension divisible by 4"),
        (x, {"dst_type": 296}, "'scale_alg' must be 0, but received 1"),
        (
            x,
            {"group_index": torch.tensor([3]).npu()},
            "'group_index' must be a list that ends with",
        ),
        (x[None], {}, "'x' must be a tensor of 2 dimensions"),
    ]:
        match = "npu_swiglu_mx_quant_with_dual_axis: argument " + text
        with pytest.raises(RuntimeError, match=match):
            torch_npu.npu_swiglu_mx_quant_with_dual_axis(given, **options)
