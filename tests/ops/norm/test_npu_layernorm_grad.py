"""npu_layernorm_grad against PyTorch's gradients in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,normal", [((3, 4, 8), [8]), ((3, 4, 8), [4, 8]), ((6,), [6])])
def test_gradients(shape, normal, dtype, affine):
    x, dy = make(*shape, dtype=dtype), make(*shape, dtype=dtype, seed=3)
    weight, bias = make(*normal, dtype=dtype, seed=4), make(*normal, dtype=dtype, seed=5)
    leaves = [t.cpu().double().requires_grad_() for t in (x, weight, bias)]
    a, w, b = leaves if affine else (leaves[0], None, None)
    torch.nn.functional.layer_norm(a, normal, w, b).backward(dy.cpu().double())
    dims = tuple(range(-len(normal), 0))
    mean = a.detach().mean(dims, keepdim=True)
    rstd = 1 / (((a.detach() - mean) ** 2).mean(dims, keepdim=True) + 1e-5).sqrt()
    got = torch_npu.npu_layernorm_grad(
        dy,
        x,
        normal,
        mean.float().to(x.device),
        rstd.float().to(x.device),
        weight if affine else None,
        bias if affine else None,
    )
    assert got[0].dtype == dtype
    assert_accurate(got[0], a.grad, a.grad.to(dtype), slack=1e-5)
    if affine:
        assert_accurate(got[1], w.grad, w.grad.to(dtype), slack=1e-5)
        assert_accurate(got[2], b.grad, b.grad.to(dtype), slack=1e-5)
    assert list(got[1].shape) == list(got[2].shape) == normal


def call(**changes):
    given = {
        "grad_out": make(3, 8),
        "input": make(3, 8),
        "normalized_shape": [8],
        "mean": make(3),
        "rstd": make(3),
        "weight": make(8),
        "bias": None,
    }
    return torch_npu.npu_layernorm_grad(**{**given, **changes})


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'normalized_shape' must be the trailing sizes.*\[7\]"):
        call(normalized_shape=[7])
    with pytest.raises(RuntimeError, match=r"'mean' must be of 3 numbers.*\(4,\)"):
        call(mean=make(4))
    with pytest.raises(RuntimeError, match=r"'weight' must be of shape \(8\)"):
        call(weight=make(4))
