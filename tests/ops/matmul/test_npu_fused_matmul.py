"""npu_fused_matmul against products in fp64."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import by_number
from tests.ops.support import assert_accurate, make


def gelu_erf(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def reference(x1, x2, bias, x3, kind, rounded=None):
    """In fp64; `rounded` is the dtype of the product that the operation sees."""
    y = x1.cpu().double() @ x2.cpu().double()
    y = y if bias is None else y + bias.cpu().double()
    y = y if rounded is None else y.to(rounded).double()
    if kind in ("add", "mul"):
        other = x3.cpu().double()
        return y + other if kind == "add" else y * other
    if kind == "relu":
        return y.clamp(min=0)
    scalar = {"gelu_erf": gelu_erf, "gelu_tanh": gelu_tanh}.get(kind)
    return y if scalar is None else by_number(scalar, y)


@pytest.mark.parametrize("kind", ["", "add", "mul", "relu", "gelu_erf", "gelu_tanh", "16cast32"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_operations(dtype, kind):
    if dtype == torch.float32 and kind in ("16cast32", "gelu_erf", "gelu_tanh"):
        with pytest.raises(RuntimeError, match="'x1' must be of dtype .*float32"):
            torch_npu.npu_fused_matmul(make(4, 6), make(6, 8), fused_op_type=kind)
        return
    x1, x2 = make(5, 48, dtype=dtype), make(48, 7, dtype=dtype)
    bias = None if kind.startswith("gelu") else make(7, dtype=dtype)
    x3 = make(5, 7, dtype=dtype, seed=4) if kind in ("add", "mul") else None
    y = torch_npu.npu_fused_matmul(x1, x2, bias=bias, x3=x3, fused_op_type=kind)
    want = reference(x1, x2, bias, x3, kind)
    kept = torch.float32 if kind == "16cast32" else dtype
    assert y.dtype == kept
    plain = reference(x1, x2, bias, x3, kind, rounded=kept).to(kept)
    assert_accurate(y, want, plain, slack=5e-6)


def test_batches_and_views():
    x1, x2 = make(2, 3, 4, 6), make(2, 3, 8, 6).mT
    y = torch_npu.npu_fused_matmul(x1, x2, fused_op_type="relu")
    assert y.shape == (2, 3, 4, 8)
    want = reference(x1, x2, None, None, "relu")
    assert_accurate(y, want, want.float(), slack=5e-6)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"fused_op_type": "sub"}, "'fused_op_type' must be .*but received 'sub'"),
        ({"fused_op_type": "add"}, "'x3' must be given with fused_op_type 'add'"),
        ({"x3": make(8), "fused_op_type": "mul"}, r"'x3' must be of shape \(4, 8\).*\(8,\)"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_matmul(make(4, 6), make(6, 8), **options)


def test_what_does_not_take_part_is_refused():
    with pytest.raises(NotImplementedError, match="'x3' must be left at None"):
        torch_npu.npu_fused_matmul(make(4, 6), make(6, 8), x3=make(4, 8))
    with pytest.raises(NotImplementedError, match="'bias' must be left at None"):
        half = (make(4, 6).half(), make(6, 8).half())
        torch_npu.npu_fused_matmul(*half, bias=make(8), fused_op_type="gelu_erf")
    with pytest.raises(RuntimeError, match="'bias' must be None where 'x1' has no columns"):
        torch_npu.npu_fused_matmul(make(4, 0), make(0, 8), bias=make(8))


def test_shapes():
    with pytest.raises(RuntimeError, match=r"'x2' must be of k = 6 like 'x1'.*\(5, 8\)"):
        torch_npu.npu_fused_matmul(make(4, 6), make(5, 8))
    with pytest.raises(RuntimeError, match="'x1' must be a tensor of 2 to 3 dimensions"):
        torch_npu.npu_fused_matmul(make(2, 2, 4, 6), make(6, 8), x3=make(8), fused_op_type="add")
    with pytest.raises(RuntimeError, match=r"'x2' must be of leading dimensions \(2,\), as 'x1'"):
        torch_npu.npu_fused_matmul(make(2, 4, 6), make(6, 8))


@pytest.mark.parametrize("shape", [(4, 8), (1, 4, 8), (3, 4, 8)])
def test_the_second_operand_of_a_batch(shape):
    x1, x2, x3 = make(3, 4, 6).half(), make(3, 6, 8).half(), make(*shape, seed=5).half()
    y = torch_npu.npu_fused_matmul(x1, x2, x3=x3, fused_op_type="add")
    want = reference(x1, x2, None, x3, "add")
    assert_accurate(y, want, reference(x1, x2, None, x3, "add", rounded=torch.float16).half())


def test_a_batch_of_wide_results():
    x1, x2 = make(3, 4, 6).half(), make(3, 6, 8).half()
    y = torch_npu.npu_fused_matmul(x1, x2, fused_op_type="16cast32")
    want = reference(x1, x2, None, None, "")
    assert y.dtype == torch.float32
    assert_accurate(y, want, want.float())


def test_the_gelu_takes_the_unrounded_product():
    x1, x2 = make(64, 32, dtype=torch.bfloat16), make(32, 64, dtype=torch.bfloat16, seed=1)
    y = torch_npu.npu_fused_matmul(x1, x2, fused_op_type="gelu_erf").cpu()
    product = x1.cpu().double() @ x2.cpu().double()
    gelu = torch.nn.functional.gelu
    exact, rounded = (gelu(p).to(torch.bfloat16) for p in (product, product.bfloat16().double()))
    assert (y != exact).double().mean() < 0.05 < 0.1 < (y != rounded).double().mean()
