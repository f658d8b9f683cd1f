"""npu_convert_weight_to_int4pack value by value."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


@pytest.mark.parametrize("shape", [(1, 8), (5, 24), (64, 32)])
def test_int4(shape):
    weight = make(*shape, dtype=torch.int32, low=-8, high=8)
    out = torch_npu.npu_convert_weight_to_int4pack(weight)
    assert (
        out.dtype == torch.int32 and out.shape == (shape[0], shape[1] // 8) and out.is_contiguous()
    )
    assert torch.equal(out.cpu(), plain.words(weight))


def test_every_pair():
    low, high = torch.meshgrid(torch.arange(-8, 8), torch.arange(-8, 8), indexing="ij")
    weight = torch.stack([low, high], -1).reshape(64, 8).to(torch.int32)
    out = torch_npu.npu_convert_weight_to_int4pack(plain.npu(weight))
    assert torch.equal(out.cpu(), plain.words(weight))


def test_three_dimensions_on_ascend950():
    weight = make(2, 3, 16, dtype=torch.int32, low=-8, high=8)
    with on("A5"):
        out = torch_npu.npu_convert_weight_to_int4pack(weight)
    assert torch.equal(out.cpu(), plain.words(weight))


def test_float4_on_ascend950():
    grid = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    weight = torch.tensor([grid, [-v for v in grid]])
    with on("A5"):
        out = torch_npu.npu_convert_weight_to_int4pack(plain.npu(weight))
    assert out.dtype == torch.float32 and out.shape == (2, 1)
    codes = torch.tensor([list(range(8)), list(range(8, 16))])
    assert torch.equal(out.cpu().view(torch.int32), plain.words(codes))


def test_other_floats_on_ascend950():
    """CANN's host code looks at sign, exponent and one bit of the fraction; what is not in its table is 0."""
    weight = torch.tensor([[2.5, -3.75, 0.7, 0.75, 8.0, -0.25, float("nan"), -5.9]])
    with on("A5"):
        out = torch_npu.npu_convert_weight_to_int4pack(plain.npu(weight))
    codes = torch.tensor([[4, 13, 1, 0, 0, 0, 0, 14]])
    assert torch.equal(out.cpu().view(torch.int32), plain.words(codes))


def test_other_integers_keep_their_low_four_bits():
    weight = torch.tensor([[8, -9, 2**31 - 1, 96, 112, 23, -(2**31), 7]], dtype=torch.int32)
    out = torch_npu.npu_convert_weight_to_int4pack(plain.npu(weight))
    assert torch.equal(out.cpu(), plain.words(torch.tensor([[8, 7, 15, 0, 0, 7, 0, 7]])))


@pytest.mark.family("A2")
def test_bad_shape():
    with pytest.raises(
        RuntimeError, match=r"'weight' must be of a last dimension divisible by 8.*\(2, 12\)"
    ):
        torch_npu.npu_convert_weight_to_int4pack(make(2, 12, dtype=torch.int32, high=2))
    with pytest.raises(RuntimeError, match="'weight' must be a tensor of 2 dimensions"):
        torch_npu.npu_convert_weight_to_int4pack(make(2, 2, 8, dtype=torch.int32, high=2))


def test_strided():
    with pytest.raises(RuntimeError, match="'weight' must be contiguous"):
        torch_npu.npu_convert_weight_to_int4pack(make(8, 8, dtype=torch.int32, high=2).t())


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="'weight' must be of dtype torch.int32, .*int8"):
        torch_npu.npu_convert_weight_to_int4pack(make(2, 8, dtype=torch.int8, high=2))


@pytest.mark.parametrize("tiles", [0, 1, 2, 8])
def test_inner_tiles_change_nothing(tiles):
    weight = make(2, 8, dtype=torch.int32, low=-8, high=8)
    want = torch_npu.npu_convert_weight_to_int4pack(weight)
    assert torch.equal(torch_npu.npu_convert_weight_to_int4pack(weight, tiles), want)
