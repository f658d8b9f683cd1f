"""_npu_quant_rms_norm against its formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def inputs(dtype=torch.float16, shape=(3, 32), **change):
    size = shape[-1]
    return dict(
        self=make(*shape, dtype=dtype),
        gamma=make(size, dtype=dtype, seed=1),
        beta=make(size, dtype=dtype, seed=2),
        scale=make(1, dtype=dtype, low=0.02, high=0.03),
        offset=make(1, dtype=torch.int8, low=5, high=6),
        output=torch.zeros(shape, dtype=torch.int8).npu(),
    ) | change  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 32), (2, 3, 16), (1, 48)])
@pytest.mark.parametrize("eps", [1e-5, 1e-1])
def test_rows(dtype, shape, eps):
    given = inputs(dtype, shape)
    torch_npu._npu_quant_rms_norm(*given.values(), eps)
    x, gamma, beta = (given[n].cpu().double() for n in ("self", "gamma", "beta"))
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gamma + beta
    exact = y / given["scale"].cpu().double() + given["offset"].cpu().double()
    found = given["output"].cpu().double()
    assert (found - exact.clamp(-128, 127)).abs().max() <= 0.5 + 1e-3
    assert found.unique().numel() > 4


@pytest.mark.parametrize(
    "change,message",
    [
        ({"gamma": make(8, dtype=torch.float16)}, r"'gamma' must be of shape \(32\)"),
        (
            {"self": make(3, 24, dtype=torch.float16)},
            "'self' must be of a last dimension that is a multiple",
        ),
        ({"scale": make(2, dtype=torch.float16)}, "'scale' must be of shape \\(1\\)"),
        ({"offset": make(1)}, "'offset' must be of dtype torch.int8"),
        ({"output": make(3, 32)}, "'output' must be of dtype torch.int8"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"_npu_quant_rms_norm: argument {message}"):
        torch_npu._npu_quant_rms_norm(*inputs(**change).values())
