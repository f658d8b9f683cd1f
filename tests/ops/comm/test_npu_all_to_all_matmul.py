"""npu_all_to_all_matmul in a mirrored group: what it refuses. On ranks: test_quant_products_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

NAME = "softnpu%mirror_2"


def operands(dtype=torch.float16):
    return make(6, 8, dtype=dtype), make(16, 5, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mirrored(dtype):
    x, w = operands(dtype)
    bias = make(5, dtype=torch.float16 if dtype == torch.float16 else torch.float32)
    y, p = torch_npu.npu_all_to_all_matmul(x, w, NAME, 2, bias)
    # the other rank has the same rows, so each column block is rank 0's part of them
    whole = torch.cat([x[:3], x[:3]], 1).cpu()
    want = whole.double() @ w.cpu().double() + bias.cpu().double()
    assert torch.equal(p.cpu(), whole)
    assert_accurate(y, want, want.to(dtype))


def test_without_the_exchanged_rows():
    y, p = torch_npu.npu_all_to_all_matmul(*operands(), NAME, 2, None, [-2, -1], False)
    assert y.shape == (3, 5) and p.numel() == 0


def test_empty():
    _, w = operands()
    y, p = torch_npu.npu_all_to_all_matmul(make(0, 8).half(), w, NAME, 2)
    assert y.shape == (0, 5) and p.shape == (0, 16)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "changes,message",
    [
        ({"world_size": 16}, "'world_size' must be 2, 4 or 8, but received 16"),
        ({"comm_mode": "ai_cpu"}, "'comm_mode' must be None or 'aiv'"),
        ({"world_size": 4}, r"'world_size' must be the number of ranks of the group \(2\)"),
        ({"all2all_axes": [-1, -2]}, r"'all2all_axes' must be .*received \[-1, -2\]"),
        ({"hcom": "nobody"}, "'hcom' must be the name of a group"),
    ],
)
def test_refusals(changes, message):
    x, w = operands()
    given = {"x1": x, "x2": w, "hcom": NAME, "world_size": 2, **changes}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_all_to_all_matmul(**given)


def test_shapes():
    x, w = operands()
    with pytest.raises(RuntimeError, match=r"'x1' must be of rows divisible by 2.*\(5, 8\)"):
        torch_npu.npu_all_to_all_matmul(x[:5], w, NAME, 2)
    with pytest.raises(RuntimeError, match=r"'x2' must be of shape \(16, \*\).*\(8, 5\)"):
        torch_npu.npu_all_to_all_matmul(x, w[:8], NAME, 2)
    with pytest.raises(RuntimeError, match="'bias' must be of dtype torch.float16"):
        torch_npu.npu_all_to_all_matmul(x, w, NAME, 2, make(5))
