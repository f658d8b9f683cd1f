"""npu_all_gather_base_mm in a mirrored group: what it refuses. On ranks: test_products_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make

NAME = "softnpu%mirror_2"


def operands(dtype=torch.float16, k=256):
    return make(3, k, dtype=dtype, low=-9, high=9), make(k, 4, dtype=dtype, low=-9, high=9)


def test_mirrored():
    x, w = operands()
    y, gathered = torch_npu.npu_all_gather_base_mm(x, w, NAME, 2)
    want = torch.cat([x, x]).cpu().double() @ w.cpu().double()
    assert_accurate(y, want, want.half())
    assert torch.equal(gathered.cpu(), torch.cat([x, x]).cpu())


def test_non_contiguous():
    x, w = make(3, 512, dtype=torch.float16)[:, ::2], make(4, 256, dtype=torch.float16).t()
    y, _ = torch_npu.npu_all_gather_base_mm(x, w, NAME, 2)
    want = torch.cat([x, x]).cpu().double() @ w.cpu().double()
    assert_accurate(y, want, want.half())


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "options,message",
    [
        ({"gather_index": 1}, "'gather_index' must be left at 0"),
        ({"comm_turn": 1}, "'comm_turn' must be left at 0"),
        ({"comm_mode": "ccu"}, "'comm_mode' must be .*'aiv', but received 'ccu'"),
        (
            {"comm_mode": "aiv", "gather_output": False},
            "'gather_output' must be True with comm_mode 'aiv'",
        ),
        ({"output_dtype": torch.float32}, "'output_dtype' must be"),
    ],
)
def test_bad_options(options, message):
    x, w = operands()
    with pytest.raises(RuntimeError, match=f"npu_all_gather_base_mm: argument {message}"):
        torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, **options)


def test_any_k_on_vector_cores():
    x, w = operands(k=64)
    y, _ = torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, comm_mode="aiv")
    want = torch.cat([x, x]).cpu().double() @ w.cpu().double()
    assert_accurate(y, want, want.half())


@pytest.mark.family("A2")
def test_views():
    x, w = operands()
    with pytest.raises(RuntimeError, match="'self' must be contiguous rather than"):
        torch_npu.npu_all_gather_base_mm(x.t().contiguous().t(), w, NAME, 2)
    sliced = make(256, 8, dtype=torch.float16)[:, ::2]
    with pytest.raises(RuntimeError, match="'x2' must be contiguous, or the transposed view"):
        torch_npu.npu_all_gather_base_mm(x, sliced, NAME, 2)
    with on("A3"):
        assert torch_npu.npu_all_gather_base_mm(x, sliced, NAME, 2)[0].shape == (6, 4)


def test_modes_of_ascend950():
    x, w = operands()
    with on("A5"):
        y, _ = torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, comm_mode="ccu")
        want = torch.cat([x, x]).cpu().double() @ w.cpu().double()
        assert_accurate(y, want, want.half())
        with pytest.raises(RuntimeError, match="'comm_mode' must be None, 'ai_cpu' or 'ccu'"):
            torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, comm_mode="aiv")
        with pytest.raises(RuntimeError, match="'self' must be of dtype .*int8"):
            torch_npu.npu_all_gather_base_mm(*operands(torch.int8), NAME, 2)


def test_ranks_on_vector_cores():
    x, w = operands()
    with on("A3"), pytest.raises(RuntimeError, match="'world_size' must be 2, 4 or 8"):
        torch_npu.npu_all_gather_base_mm(x, w, "softnpu%mirror_16", 16, comm_mode="aiv")


@pytest.mark.family("A2")
def test_bad_operands():
    x, w = operands(k=128)
    with pytest.raises(
        RuntimeError, match=r"'self' must be of k in \[256, 65535\), but received 128"
    ):
        torch_npu.npu_all_gather_base_mm(x, w, NAME, 2)
    x, w = operands()
    with pytest.raises(RuntimeError, match="'world_size' must be 2, 4 or 8, but received 3"):
        torch_npu.npu_all_gather_base_mm(x, w, NAME, 3)
    with pytest.raises(
        RuntimeError, match="(?s)'hcom' must be the name of a group.*'nobody'.*ERR01008"
    ):
        torch_npu.npu_all_gather_base_mm(x, w, "nobody", 2)
    with pytest.raises(RuntimeError, match=r"'bias' must be of shape \(4\)"):
        torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, bias=make(5, dtype=torch.float16))
    x, w = operands(torch.int8)
    with pytest.raises(RuntimeError, match="'comm_mode' must be 'aiv' for int8 operands"):
        torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, x2_scale=make(1, 4))
    with pytest.raises(RuntimeError, match="'x2_scale' must be given for int8 operands"):
        torch_npu.npu_all_gather_base_mm(x, w, NAME, 2, comm_mode="aiv")
