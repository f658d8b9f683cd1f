"""npu_matmul_all_to_all in a mirrored group: what it refuses. On ranks: test_quant_products_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

NAME = "softnpu%mirror_2"


def test_mirrored():
    x, w, bias = make(3, 8).half(), make(8, 6).half(), make(6).half()
    y = torch_npu.npu_matmul_all_to_all(x, w, NAME, 2, bias)
    want = (x.cpu().double() @ w.cpu().double() + bias.cpu().double())[:, :3]
    want = torch.cat([want, want])
    assert_accurate(y, want, want.half())


def test_shapes():
    x, w = make(3, 8).half(), make(8, 5).half()
    with pytest.raises(RuntimeError, match=r"'x2' must be of columns divisible by 2.*\(8, 5\)"):
        torch_npu.npu_matmul_all_to_all(x, w, NAME, 2)
    with pytest.raises(RuntimeError, match=r"'x2' must be of shape \(8, \*\).*\(7, 5\)"):
        torch_npu.npu_matmul_all_to_all(x, w[:7], NAME, 2)
    with pytest.raises(RuntimeError, match=r"'all2all_axes' must be .*received \[-2, -1\]"):
        torch_npu.npu_matmul_all_to_all(x, make(8, 4).half(), NAME, 2, None, [-2, -1])
    with pytest.raises(RuntimeError, match="'x1' must be of dtype .*float32"):
        torch_npu.npu_matmul_all_to_all(make(3, 8), make(8, 4), NAME, 2)
