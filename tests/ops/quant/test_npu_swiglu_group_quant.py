"""npu_swiglu_group_quant and its gradient against fp64 and autograd."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def hidden(x, weight=None, limit=-1.0):
    a, b = x.chunk(2, -1)
    if limit > 0:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    h = a * torch.sigmoid(a) * b
    return h if weight is None else h * weight.reshape(*x.shape[:-1], 1)


def close_hifloat8(y, values):
    back = torch_npu.npu_dtype_cast(y, torch.float32, input_dtype=290).cpu().double()
    assert y.dtype == torch.uint8
    assert ((back - values).abs() <= values.abs() / 4 + 2.0**-14).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [None, (2, 3), (0, 6), (1, 2)])
@pytest.mark.parametrize("limit", [-1.0, 0.5])
@pytest.mark.parametrize("mode", [2, 3])
def test_groups(dtype, sizes, limit, mode):
    x, weight = make(2, 3, 256, dtype=dtype, low=-2, high=2), make(6, low=0.5, high=2)
    index = None if sizes is None else torch.tensor(sizes).npu()
    scale = make(1 if sizes is None else 2, low=1, high=4)
    y, found, origin = torch_npu.npu_swiglu_group_quant(
        x,
        weight=weight,
        group_index=index,
        scale=scale if mode == 2 else None,
        quant_mode=mode,
        clamp_limit=limit,
        output_origin=True,
    )
    rows = hidden(x.cpu().double(), weight.cpu().double(), limit).reshape(6, 128)
    ends = (6,) if sizes is None else (sizes[0], sum(sizes))
    want, tops, start = torch.zeros_like(rows), [], 0
    for g, end in enumerate(ends):
        part = rows[start:end]
        top = max(float(part.abs().max()) if len(part) else 0.0, 1e-8) / 15
        want[start:end] = part * float(scale[g]) if mode == 2 else part / top
        tops.append(top)
        start = end
    close_hifloat8(y, want.reshape(2, 3, 128))
    if mode == 3:
        torch.testing.assert_close(
            found.cpu().double(), torch.tensor(tops, dtype=torch.float64), rtol=1e-5, atol=0
        )
    else:
        assert found.numel() == 0
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(
        origin.cpu().double(), rows.reshape(2, 3, 128), rtol=tolerance, atol=1e-6
    )


def test_plain():
    x = make(6, 4).t().contiguous()
    y, found, origin = torch_npu.npu_swiglu_group_quant(x, quant_mode=3, dst_type_max=100.0)
    want = hidden(x.cpu().double())
    close_hifloat8(y, want / (want.abs().max() / 100))
    assert origin.numel() == 0 and found.shape == (1,)


@pytest.mark.parametrize("limit", [-1.0, 0.6])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("given", [True, False])
def test_gradient(limit, weighted, rows, given):
    x, grad = make(5, 16), make(5, 8, seed=4)
    weight = make(5, 1, seed=5) if weighted else None
    index = None if rows is None else torch.tensor([rows]).npu()
    wide = x.cpu().double().requires_grad_()
    w = weight.cpu().double().requires_grad_() if weighted else None
    mask = (torch.arange(5) < (5 if rows is None else rows)).double()[:, None]
    hidden(wide, w, limit).backward(grad.cpu().double() * mask)
    origin = hidden(x.cpu().double(), None, limit).float().npu() if given else None
    dx, dw = torch_npu.npu_swiglu_group_quant_backward(
        grad, x, weight=weight, y_origin=origin, group_index=index, clamp_limit=limit
    )
    torch.testing.assert_close(dx.cpu().double(), wide.grad, rtol=1e-5, atol=1e-6)
    if weighted:
        torch.testing.assert_close(dw.cpu().double(), w.grad, rtol=1e-5, atol=1e-6)
    else:
        assert dw.numel() == 0


def test_autograd():
    x, weight = make(3, 256).requires_grad_(), make(3, 1).requires_grad_()
    y, scale, origin = torch_npu.npu_swiglu_group_quant(
        x, weight=weight, quant_mode=3, output_origin=True, clamp_limit=0.8
    )
    assert not y.requires_grad and not scale.requires_grad
    origin.square().sum().backward()
    wide, w = (t.detach().cpu().double().requires_grad_() for t in (x, weight))
    hidden(wide, w, 0.8).square().sum().backward()
    torch.testing.assert_close(x.grad.cpu().double(), wide.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad.cpu().double(), w.grad, rtol=1e-4, atol=1e-5)


def test_bad_arguments():
    x = make(2, 256)
    for given, options, text in [
        (x[:, :127], {"quant_mode": 3}, "'x' must be of an even last dimension, not empty"),
        (x[:0], {"quant_mode": 3}, "'x' must be of an even last dimension, not empty"),
        (
            x,
            {"quant_mode": 2, "scale": make(1), "dst_type_max": 0.0},
            "'dst_type_max' must be positive",
        ),
        (x, {}, "'quant_mode' must be 2 or 3, but received 0"),
        (x, {"quant_mode": 2}, "'scale' must be given for quant_mode 2"),
        (x, {"quant_mode": 2, "scale": make(3)}, r"'scale' must be of shape \(1\)"),
        (x, {"quant_mode": 3, "weight": make(3)}, "'weight' must be of 2 elements, but received 3"),
        (x, {"quant_mode": 3, "clamp_limit": -2.0}, "'clamp_limit' must be -1, 0 or positive"),
        (
            x,
            {"quant_mode": 3, "group_index": torch.tensor([2], dtype=torch.int32).npu()},
            "'group_index' must be of dtype torch.int64",
        ),
    ]:
        with pytest.raises(RuntimeError, match="npu_swiglu_group_quant: argument " + text):
            torch_npu.npu_swiglu_group_quant(given, **options)
    with pytest.raises(RuntimeError, match=r"'grad_y' must be of shape \(2, 128\)"):
        torch_npu.npu_swiglu_group_quant_backward(x, x, clamp_limit=-1.0)
    half = x[:, :128]
    with pytest.raises(RuntimeError, match="'grad_y' must be of the dtype of 'x'"):
        torch_npu.npu_swiglu_group_quant_backward(half.half(), x, clamp_limit=-1.0)
    with pytest.raises(RuntimeError, match="'clamp_limit' must be -1 or positive, but received 0"):
        torch_npu.npu_swiglu_group_quant_backward(half, x)
    with on("A2"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_swiglu_group_quant(x, quant_mode=3)
