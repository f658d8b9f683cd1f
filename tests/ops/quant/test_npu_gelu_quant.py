"""npu_gelu_quant against fp64 before the rounding."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm.quantized import float8_of, rounds_to
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def gelu(x, kind):
    x = x.cpu().double()
    if kind == "tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("kind", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [None, 1, 20])
def test_dynamic(kind, dtype, size):
    x = make(2, 3, 20, dtype=dtype, low=-4, high=4)
    factor = None if size is None else make(size, low=0.5, high=2)
    y, scale = torch_npu.npu_gelu_quant(x, input_scale=factor, approximate=kind)
    want = gelu(x, kind) * (1 if factor is None else factor.cpu().double())
    top = want.abs().amax(-1) / 127
    torch.testing.assert_close(scale.cpu().double(), top, rtol=1e-5, atol=0)
    rounds_to(y, want / top[..., None])
    if size is not None:
        again = {"input_scale": factor, "input_offset": factor, "approximate": kind}
        assert torch.equal(torch_npu.npu_gelu_quant(x, **again)[0].cpu(), y.cpu())


@pytest.mark.parametrize("offset", [True, False])
def test_static(offset):
    x = make(30, dtype=torch.float16, low=-4, high=4)
    factor, shift = make(30, low=10, high=40), make(30, low=-9, high=9) if offset else None
    y, scale = torch_npu.npu_gelu_quant(
        x, input_scale=factor, input_offset=shift, quant_mode="static"
    )
    want = gelu(x, "none") * factor.cpu().double()
    rounds_to(y, want + (shift.cpu().double() if offset else 0))
    assert scale is None


@pytest.mark.parametrize("code,top", [(291, 57344), (292, 448)])
def test_float8(code, top):
    x = make(30, 6, low=-4, high=4).t()
    y, scale = torch_npu.npu_gelu_quant(x, dst_type=code)
    want = gelu(x, "none")
    most = want.abs().amax(-1, keepdim=True) / top
    torch.testing.assert_close(scale.cpu().double(), most[:, 0], rtol=1e-5, atol=0)
    float8_of(y, want / most, code)


def test_bad_arguments():
    x = make(3, 8)
    for given, options, text in [
        (x.int(), {}, "'self' must be of dtype"),
        (x[0], {}, "'self' must be a tensor of 2 to 8 dimensions"),
        (x, {"approximate": "erf"}, "'approximate' must be 'none' or 'tanh'"),
        (x, {"quant_mode": "row"}, "'quant_mode' must be 'dynamic' or 'static'"),
        (x, {"quant_mode": "static"}, "'input_scale' must be given for static quantization"),
        (x, {"input_offset": make(8)}, "'input_scale' must be given with 'input_offset'"),
        (x, {"input_scale": make(5)}, r"'input_scale' must be of shape \(1,\) or \(8,\)"),
        (x, {"dst_type": 290}, "'round_mode' must be 'round', but received 'rint'"),
    ]:
        with pytest.raises(RuntimeError, match="npu_gelu_quant: argument " + text):
            torch_npu.npu_gelu_quant(given, **options)
    with on("A2"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_gelu_quant(x)
