"""npu_masked_softmax_with_rel_pos_bias against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make


def expected(x, mask, bias, scale, dtype):
    """Window by window and head by head; x is (B, W, N, S1, S2), mask (W, S1, S2), bias (N, S1, S2)."""
    x, bias = x.cpu().to(dtype), bias.cpu().to(dtype)
    out = torch.empty_like(x)
    for w in range(x.shape[1]):
        for n in range(x.shape[2]):
            scores = x[:, w, n] * scale + bias[n]
            if mask is not None:
                scores = scores + mask[w].cpu().to(dtype)
            out[:, w, n] = scores.softmax(-1)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_windows(dtype, masked, scale):
    x, bias = make(2, 3, 4, 5, 8, dtype=dtype), make(4, 5, 8, dtype=dtype, seed=1)
    mask = make(3, 5, 8, dtype=dtype, low=-4, high=4, seed=2) if masked else None
    right = expected(x, mask, bias, scale, torch.float64)
    plain = expected(x, mask, bias, scale, torch.float32).to(dtype)
    shapes = [lambda m: m, lambda m: m.unsqueeze(1), lambda m: m.unsqueeze(1).unsqueeze(0)]
    for shape in shapes if masked else [lambda m: m]:
        given = None if mask is None else shape(mask)
        found = torch_npu.npu_masked_softmax_with_rel_pos_bias(x, given, bias, scale)
        assert_accurate(found, right, plain)
    for form in (bias.unsqueeze(0), bias.unsqueeze(0).unsqueeze(0)):
        flat = torch_npu.npu_masked_softmax_with_rel_pos_bias(x.flatten(0, 1), mask, form, scale)
        assert_accurate(flat.view(x.shape), right, plain)


@pytest.mark.parametrize(
    "mask,bias,message",
    [
        ((2, 5, 8), (4, 5, 8), "'atten_mask' must be of as many windows"),
        ((3, 5, 7), (4, 5, 8), r"'atten_mask' must be of shape \(3, 5, 8\)"),
        (None, (3, 5, 8), r"'relative_pos_bias' must be of shape \(4, 5, 8\)"),
    ],
)
def test_shapes(mask, bias, message):
    mask = None if mask is None else make(*mask)
    with pytest.raises(RuntimeError, match=f"rel_pos_bias: argument {message}"):
        torch_npu.npu_masked_softmax_with_rel_pos_bias(make(2, 3, 4, 5, 8), mask, make(*bias))


def test_the_precision_mode_is_reserved():
    with pytest.raises(RuntimeError, match="'inner_precision_mode' must be 0"):
        torch_npu.npu_masked_softmax_with_rel_pos_bias(
            make(2, 3, 4, 5, 8), None, make(4, 5, 8), inner_precision_mode=1
        )


def test_sizes_and_chips():
    call = torch_npu.npu_masked_softmax_with_rel_pos_bias
    with pytest.raises(RuntimeError, match="'x' must be not empty"):
        call(make(0, 2, 3, 4), None, make(2, 3, 4))
    with on("310P"):
        with pytest.raises(RuntimeError, match="'x' must be of a last dimension of whole 32 bytes"):
            call(make(1, 2, 3, 4), None, make(2, 3, 4))
        assert call(make(1, 2, 3, 8), None, make(2, 3, 8)).shape == (1, 2, 3, 8)
