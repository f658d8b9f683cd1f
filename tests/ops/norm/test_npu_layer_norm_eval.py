"""npu_layer_norm_eval against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make


def reference(x, count, weight, bias, eps):
    dims = tuple(range(x.dim() - count, x.dim()))
    mean = x.mean(dims, keepdim=True)
    var = ((x - mean) ** 2).mean(dims, keepdim=True)
    y = (x - mean) / torch.sqrt(var + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def widened(tensor):
    return None if tensor is None else tensor.cpu().double()


def lowered(tensor):
    return None if tensor is None else tensor.cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape,count",
    [((6, 4), 1), ((2, 3, 5, 8), 2), ((4, 7), 2), ((33,), 1), ((0, 8), 1), ((3, 1), 1)],
)
@pytest.mark.parametrize("with_weight,with_bias", [(True, True), (True, False), (False, True)])
def test_forward(shape, count, dtype, with_weight, with_bias):
    x, norm = make(*shape, dtype=dtype, low=-2, high=3), shape[len(shape) - count :]
    weight = make(*norm, dtype=dtype, seed=1) if with_weight else None
    bias = make(*norm, dtype=dtype, seed=2) if with_bias else None
    y = torch_npu.npu_layer_norm_eval(x, list(norm), weight, bias, 1e-3)
    want = reference(widened(x), count, widened(weight), widened(bias), 1e-3)
    plain = reference(lowered(x), count, lowered(weight), lowered(bias), 1e-3)
    assert y.dtype == dtype
    assert_accurate(y, want, plain)


def test_defaults():
    x = make(6, 4) * 1e-3
    y = torch_npu.npu_layer_norm_eval(x, [4])
    want = reference(x.cpu().double(), 1, None, None, 1e-5)
    assert_accurate(y, want, want.float())


def test_float32_weight_of_half_input():
    x, weight, bias = make(4, 32, dtype=torch.float16), make(32), make(32, seed=5)
    y = torch_npu.npu_layer_norm_eval(x, (32,), weight, bias)
    want = reference(widened(x), 1, widened(weight), widened(bias), 1e-5)
    assert y.dtype == torch.float16
    assert_accurate(y, want, want.half())


def test_non_contiguous():
    x = make(8, 6, 4).transpose(0, 2)
    want = reference(widened(x), 1, None, None, 1e-5)
    assert_accurate(torch_npu.npu_layer_norm_eval(x, [8]), want, want.float())


def test_bad_normalized_shape():
    with pytest.raises(
        RuntimeError,
        match=r"npu_layer_norm_eval: argument 'normalized_shape' must be the trailing .*\(5,\)",
    ):
        torch_npu.npu_layer_norm_eval(make(6, 4), [5])


def test_bad_weight_shape():
    with pytest.raises(RuntimeError, match=r"argument 'weight' must be of shape \(4\).*\(3,\)"):
        torch_npu.npu_layer_norm_eval(make(6, 4), [4], make(3))


def test_bad_bias_dtype():
    with pytest.raises(RuntimeError, match="argument 'bias' must be of dtype .*float16"):
        torch_npu.npu_layer_norm_eval(make(6, 4), [4], None, make(4, dtype=torch.float16))


def test_no_bfloat16_on_old_chips():
    with (
        on("910A"),
        pytest.raises(RuntimeError, match="'input' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_layer_norm_eval(make(6, 4, dtype=torch.bfloat16), [4])
