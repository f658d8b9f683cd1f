"""npu_weight_quant_preprocess: the same values, in FRACTAL_NZ."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make
from torch_npu.npu._format import Format

TYPES = {
    "x_dtype": torch.float8_e4m3fn,
    "weight_dtype": torch_npu.float4_e2m1fn_x2,
    "weight_scale_dtype": torch_npu.float8_e8m0fnu,
    "x_scale_dtype": torch_npu.float8_e8m0fnu,
    "k_group_size": 32,
}


def weights(*shape, scales=None):
    """(…, K / 2, N) and (…, K / 64, N, 2), both transposed views."""
    *groups, packed, columns = shape
    count = -(-packed // 32) if scales is None else scales
    weight = make(*groups, columns, packed, dtype=torch.uint8, high=256)
    scale = make(*groups, columns, count, 2, dtype=torch.uint8, low=120, high=134)
    return weight.transpose(-1, -2), scale.transpose(-2, -3)


def call(weight, scale, **changes):
    with on("A5"):
        return torch_npu.npu_weight_quant_preprocess(weight, scale, **TYPES | changes)


@pytest.mark.parametrize("shape", [(128, 64), (40, 17), (3, 64, 48)])
def test_values_strides_and_format(shape):
    weight, scale = weights(*shape)
    out, out_scale, offset, bias = call(weight, scale)
    assert offset is None and bias is None
    for made, given in ((out, weight), (out_scale, scale)):
        assert made.shape == given.shape and made.stride() == given.stride()
        assert made.dtype == given.dtype and made.data_ptr() != given.data_ptr()
        assert torch.equal(made.cpu(), given.cpu())
    with on("A5"):
        assert torch_npu.get_npu_format(out) == Format.FRACTAL_NZ_C0_16
    *groups, packed, columns = shape
    blocks = -(-packed // 16) * -(-columns // 16) * 256
    assert torch_npu.get_storage_size(out) == blocks * (groups[0] if groups else 1)


def test_of_upstream():
    """Upstream's own test counts the scales by bytes, K / 128."""
    weight, scale = weights(128, 64, scales=2)
    out, out_scale, _, _ = call(weight, scale)
    assert torch.equal(out.cpu(), weight.cpu()) and torch.equal(out_scale.cpu(), scale.cpu())


@pytest.mark.parametrize(
    ("shape", "bias"), [((32, 16), (16,)), ((32, 16), (1, 16)), ((2, 32, 16), (2, 16))]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bias(shape, bias, dtype):
    given = make(*bias, dtype=dtype)
    made = call(*weights(*shape), bias=given)[3]
    assert made.data_ptr() != given.data_ptr() and made.dtype == dtype
    assert torch.equal(made.cpu(), given.cpu())


def test_product_of_the_result():
    """The result goes where the weights would."""
    weight, scale = weights(64, 64)
    out, out_scale, _, _ = call(weight, scale)
    x = make(5, 128).to(torch.float8_e4m3fn)
    x_scale = make(5, 2, 2, dtype=torch.uint8, low=120, high=134)

    def product(w, s):
        with on("A5"):
            return torch_npu.npu_quant_matmul(
                x,
                w,
                s,
                pertoken_scale=x_scale,
                output_dtype=torch.bfloat16,
                x2_dtype=torch_npu.float4_e2m1fn_x2,
                scale_dtype=torch_npu.float8_e8m0fnu,
                pertoken_scale_dtype=torch_npu.float8_e8m0fnu,
                group_sizes=[1, 1, 32],
            )

    assert torch.equal(product(out, out_scale).cpu(), product(weight, scale).cpu())


def test_other_chips():
    with (
        on("A2"),
        pytest.raises(RuntimeError, match="npu_weight_quant_preprocess.*Ascend950"),
    ):
        torch_npu.npu_weight_quant_preprocess(*weights(32, 16), **TYPES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_dtype": torch.float8_e5m2}, "'x_dtype' must be the type float8_e4m3fn"),
        ({"weight_dtype": torch_npu.float4_e1m2fn_x2}, "'weight_dtype' must be the type float4"),
        ({"weight_scale_dtype": torch.float32}, "'weight_scale_dtype' must be the type float8_e8"),
        ({"x_scale_dtype": None}, "'x_scale_dtype'"),
        ({"k_group_size": 0}, "'k_group_size' must be 32, but received 0"),
        ({"k_group_size": None}, "'k_group_size' must be 32"),
    ],
)
def test_refused_types(changes, message):
    with pytest.raises(RuntimeError, match=message):
        call(*weights(32, 16), **changes)


def test_refused_tensors():
    weight, scale = weights(64, 32)
    with pytest.raises(RuntimeError, match="'weight' must be a transposed view"):
        call(weight.contiguous(), scale)
    with pytest.raises(RuntimeError, match="'weight_scale' must be a transposed view"):
        call(weight, scale.contiguous())
    with pytest.raises(RuntimeError, match=r"'weight_scale' must be of shape \(2, 32, 2\)"):
        call(weight, weights(96, 32)[1])
    with pytest.raises(RuntimeError, match="'weight_scale' must be a tensor of 3 dimensions"):
        call(weight, weight)
    with pytest.raises(RuntimeError, match="'weight' must be not empty"):
        call(weight[:, :0], scale[:, :0])
    with pytest.raises(RuntimeError, match="'weight' must be of one byte an element"):
        call(weight.to(torch.int32), scale)
    with pytest.raises(RuntimeError, match="'weight_offset'"):
        call(weight, scale, weight_offset=scale)
    with pytest.raises(RuntimeError, match="'bias' must be of dtype"):
        call(weight, scale, bias=make(32))
    with pytest.raises(RuntimeError, match=r"'bias' must be of shape \(32,\) or \(1, 32\)"):
        call(weight, scale, bias=make(2, 32, dtype=torch.float16))
    with pytest.raises(RuntimeError, match="'bias' must be contiguous"):
        call(weight, scale, bias=make(64, dtype=torch.float16)[::2])
