"""Layer normalization of half precision: mean and rstd are float32, as on the card (op-plugin's LayerNormKernelNpuOpApi.cpp)."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

HALVES = [torch.float16, torch.bfloat16]


def made(dtype, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(
        dtype
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_statistics_are_float32(dtype, affine):
    x, weight = made(dtype, 5, 48), made(dtype, 48) if affine else None
    given = [x.npu(), [48], None if weight is None else weight.npu(), None, 1e-5]
    y, mean, rstd = torch.ops.aten.native_layer_norm(*given)
    wide = x.double()
    variance = wide.var(-1, unbiased=False, keepdim=True)
    assert (y.dtype, mean.dtype, rstd.dtype) == (dtype, torch.float32, torch.float32)
    torch.testing.assert_close(
        mean.cpu().double(), wide.mean(-1, keepdim=True), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(rstd.cpu().double(), (variance + 1e-5).rsqrt(), rtol=1e-5, atol=1e-6)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in given]
        stated = torch.ops.aten.native_layer_norm(*fakes)
    assert [(t.dtype, t.shape) for t in stated] == [(t.dtype, t.shape) for t in (y, mean, rstd)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("affine", ["weight and bias", "weight", "none"])
def test_gradients(dtype, affine):
    """No less exact than twice PyTorch's on the CPU, in the dtypes of the arguments."""
    count = {"weight and bias": 3, "weight": 2, "none": 1}[affine]
    given = [made(dtype, 7, 3, 48), made(dtype, 48), made(dtype, 48) + 1][:count]
    factors = made(torch.float64, 7, 3, 48)

    def run(device, dtype):
        leaves = [t.to(device=device, dtype=dtype).requires_grad_() for t in given]
        y = F.layer_norm(leaves[0], (48,), *leaves[1:])
        return [y, *torch.autograd.grad(y, leaves, factors.to(device=device, dtype=dtype))]

    exact = run("cpu", torch.float64)
    ours, plain = run("npu", dtype), run("cpu", dtype)
    for mine, theirs, true in zip(ours, plain, exact, strict=True):
        assert mine.dtype == dtype
        error = (mine.cpu().double() - true).abs().max()
        assert error <= 2 * (theirs.double() - true).abs().max() + torch.finfo(dtype).tiny


def test_float32_weights_of_half_inputs():
    x, weight = made(torch.bfloat16, 4, 16).npu(), made(torch.float32, 16).npu().requires_grad_()
    y = F.layer_norm(x, (16,), weight)
    y.sum().backward()
    assert (y.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("shape", [[5], [-1], []])
def test_a_wrong_shape_is_named(shape):
    with pytest.raises(RuntimeError, match="normalized_shape"):
        torch.ops.aten.native_layer_norm(made(torch.float16, 2, 4).npu(), shape, None, None, 1e-5)


def test_no_rows():
    y = F.layer_norm(torch.empty(0, 4, dtype=torch.float16, device="npu"), (4,))
    assert y.shape == (0, 4)
