"""npu_add_rms_norm_v2 and its functional form against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

SHAPES = [((4, 7, 96), (96,)), ((2, 3, 5, 8), (5, 8)), ((0, 16), (16,)), ((33,), (33,))]


def reference(x1, x2, gamma, eps):
    x = x1 + x2
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rms = torch.sqrt((x * x).mean(dims, keepdim=True) + eps)
    return 1 / rms, x / rms * gamma, x


def inputs(shape, norm, dtype):
    return make(*shape, dtype=dtype), make(*shape, dtype=dtype, seed=7), make(*norm, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,norm", SHAPES)
def test_both_forms(shape, norm, dtype):
    tensors = inputs(shape, norm, dtype)
    before = [t.cpu() for t in tensors]
    wants = reference(*(t.double() for t in before), 1e-4)
    plains = reference(*before, 1e-4)
    functional = torch_npu.npu_add_rms_norm_v2_functional(*tensors, 1e-4)
    assert all(torch.equal(t.cpu(), b) for t, b in zip(tensors, before, strict=True))
    versions = [t._version for t in tensors[:2]]
    rstd = torch_npu.npu_add_rms_norm_v2(*tensors, epsilon=1e-4)
    assert all(t._version > v for t, v in zip(tensors, versions, strict=False))
    for got in ((rstd, *tensors[:2]), functional):
        assert [t.dtype for t in got] == [torch.float32, dtype, dtype]
        for have, want, plain in zip(got, wants, plains, strict=True):
            assert_accurate(have, want, plain)


def test_default_epsilon():
    x = make(4, 8) * 1e-3
    got = torch_npu.npu_add_rms_norm_v2_functional(x, x, make(8))
    want = torch_npu.npu_add_rms_norm_v2_functional(x, x, make(8), 1e-6)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_views_are_written_through():
    base = make(4, 16, low=1, high=2)
    x1, x2 = base[:, ::2], base[:, 1::2]
    _, y, x = reference(x1.cpu().double(), x2.cpu().double(), make(8).cpu().double(), 1e-6)
    torch_npu.npu_add_rms_norm_v2(x1, x2, make(8))
    assert_accurate(base[:, ::2], y, y.float())
    assert_accurate(base[:, 1::2], x, x.float())


@pytest.mark.parametrize("name", ["npu_add_rms_norm_v2", "npu_add_rms_norm_v2_functional"])
def test_bad_arguments(name):
    operator = getattr(torch_npu, name)
    with pytest.raises(RuntimeError, match=rf"{name}: argument 'x2' must be of shape \(2, 8\)"):
        operator(make(2, 8), make(1, 8), make(8))
    with pytest.raises(
        RuntimeError, match=rf"{name}: argument 'gamma' must be of the dtype of 'x1'"
    ):
        operator(make(2, 8), make(2, 8), make(8, dtype=torch.float16))
    with pytest.raises(RuntimeError, match=rf"{name}: argument 'x1' must be of dtype .*float64"):
        operator(*inputs((2, 8), (8,), torch.float64))
