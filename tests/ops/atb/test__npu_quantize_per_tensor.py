"""_npu_quantize_per_tensor against its formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape,scales", [((3, 8), (8,)), ((2, 3, 8), (1,)), ((2, 3, 8), (3, 8))])
@pytest.mark.parametrize("offset", [True, False])
def test_rounding(dtype, shape, scales, offset):
    x = make(*shape, dtype=dtype, low=-9, high=9)
    scale = make(*scales, dtype=dtype, low=0.03, high=1)
    zero = make(*scales, dtype=torch.int8, low=-20, high=20)
    zero = zero if offset else zero[:0].reshape(0)
    y = torch.zeros(shape, dtype=torch.int8).npu()
    assert torch_npu._npu_quantize_per_tensor(x, scale, zero, y) is None
    # the quotient is rounded to fp32 before it is rounded to a whole number
    expected = (x.cpu().double() / scale.cpu().double()).float().round()
    expected = expected + (zero.cpu().float() if offset else 0)
    assert torch.equal(y.cpu(), expected.clamp(-128, 127).to(torch.int8))


def test_saturation():
    x = torch.tensor([1e4, -1e4], dtype=torch.float16).npu()
    y, one = torch.zeros(2, dtype=torch.int8).npu(), torch.ones(1, dtype=torch.float16).npu()
    torch_npu._npu_quantize_per_tensor(x, one, torch.zeros(1, dtype=torch.int8).npu(), y)
    assert y.tolist() == [127, -128]


@pytest.mark.parametrize(
    "change,message",
    [
        ({"scale": make(3, dtype=torch.float16)}, r"'scale' must be broadcast to \(2, 8\)"),
        ({"zero_point": make(8)}, "'zero_point' must be of dtype torch.int8"),
        ({"y": make(2, 8)}, "'y' must be of dtype torch.int8"),
        (
            {"scale": make(*(1,) * 9, dtype=torch.float16)},
            "'scale' must be of at most 8 dimensions",
        ),
    ],
)
def test_refusals(change, message):
    given = dict(
        x=make(2, 8, dtype=torch.float16), scale=make(8, dtype=torch.float16),
        zero_point=torch.zeros(8, dtype=torch.int8).npu(), y=torch.zeros(2, 8).to(torch.int8).npu(),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=f"_npu_quantize_per_tensor: argument {message}"):
        torch_npu._npu_quantize_per_tensor(**(given | change))
