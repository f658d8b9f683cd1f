"""npu_masked_causal_conv1d and its backward against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make


def reference(x, w, mask):
    x, w = x.cpu().double(), w.cpu().double()
    y = torch.zeros_like(x)
    for s in range(x.shape[0]):
        for k in range(3):
            if s - 2 + k >= 0:
                y[s] += w[k] * x[s - 2 + k]
        if mask is not None:
            y[s, ~mask.cpu()[:, s]] = 0
    return y


def plain(x, w, mask):
    x, w = x.cpu(), w.cpu()
    padded = torch.cat((torch.zeros_like(x[:2].expand(2, *x.shape[1:])), x))
    y = sum(padded[k : k + x.shape[0]] * w[k] for k in range(3))
    return y if mask is None else y * mask.cpu().t()[:, :, None]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("steps,batch,width", [(1, 1, 384), (2, 3, 384), (9, 2, 448)])
def test_forward(steps, batch, width, dtype, masked):
    x, w = make(steps, batch, width, dtype=dtype), make(3, width, dtype=dtype)
    mask = make(batch, steps, dtype=torch.bool) if masked else None
    y = torch_npu.npu_masked_causal_conv1d(x, w, mask=mask)
    assert y.dtype == dtype and y.shape == x.shape
    assert_accurate(y, reference(x, w, mask), plain(x, w, mask))


def test_the_last_tap_is_the_current_token():
    x, w = make(3, 1, 384).half(), torch.zeros(3, 384).half()
    w[2] = 1
    assert torch.equal(torch_npu.npu_masked_causal_conv1d(x, w.to(x.device)).cpu(), x.cpu())


def test_non_contiguous():
    x = make(2, 6, 384).half().transpose(0, 1)
    w = make(384, 3).half().t()
    y = torch_npu.npu_masked_causal_conv1d(x, w)
    assert_accurate(y, reference(x, w, None), plain(x, w, None))


@pytest.mark.parametrize("masked", [False, True])
def test_backward_operator(masked):
    x, w = make(5, 2, 384).half(), make(3, 384).half()
    dy = make(5, 2, 384, seed=9).half()
    mask = make(2, 5, dtype=torch.bool) if masked else None
    dx, dw = torch_npu.npu_masked_causal_conv1d_backward(dy, x, w, mask=mask)
    a, b = (t.cpu().double().requires_grad_() for t in (x, w))
    padded = torch.cat((torch.zeros(2, 2, 384, dtype=torch.float64), a))
    y = sum(padded[k : k + 5] * b[k] for k in range(3))
    keep = torch.ones(5, 2, 1) if mask is None else mask.cpu().t()[:, :, None]
    (y * keep).backward(dy.cpu().double())
    assert dx.dtype == dw.dtype == torch.float16
    assert_accurate(dx, a.grad, a.grad.half())
    assert_accurate(dw, b.grad, b.grad.half())


@pytest.mark.parametrize("masked", [False, True])
def test_gradients(masked):
    x = make(4, 2, 3, dtype=torch.float64, requires_grad=True)
    w = make(3, 3, dtype=torch.float64, requires_grad=True)
    mask = make(2, 4, dtype=torch.bool) if masked else None
    gradcheck(lambda x, w: torch_npu.npu_masked_causal_conv1d(x, w, mask=mask), x, w)


def test_bad_weight():
    with pytest.raises(RuntimeError, match=r"'weight' must be of shape \(3, 384\).*\(4, 384\)"):
        torch_npu.npu_masked_causal_conv1d(make(2, 1, 384).half(), make(4, 384).half())


def test_bad_width():
    with pytest.raises(RuntimeError, match=r"'input' must be of a last size divisible by 64"):
        torch_npu.npu_masked_causal_conv1d(make(2, 1, 400).half(), make(3, 400).half())
    with pytest.raises(RuntimeError, match=r"'input' must be of a last size of at most 24576"):
        torch_npu.npu_masked_causal_conv1d(make(1, 1, 24640).half(), make(3, 24640).half())


def test_bad_mask():
    x, w = make(2, 1, 384).half(), make(3, 384).half()
    with pytest.raises(RuntimeError, match=r"'mask' must be of shape \(1, 2\).*\(2, 1\)"):
        torch_npu.npu_masked_causal_conv1d(x, w, mask=make(2, 1, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="'mask' must be of dtype torch.bool"):
        torch_npu.npu_masked_causal_conv1d(x, w, mask=make(1, 2))


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="'input' must be of dtype .*float32"):
        torch_npu.npu_masked_causal_conv1d(make(2, 1, 384), make(3, 384))


def test_the_gradient_takes_32_sequences():
    x, w = make(2, 33, 384).half(), make(3, 384).half()
    assert torch_npu.npu_masked_causal_conv1d(x, w).shape == x.shape
    with pytest.raises(RuntimeError, match="'input' must be of at most 32 sequences"):
        torch_npu.npu_masked_causal_conv1d_backward(x, x, w)
