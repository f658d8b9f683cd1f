"""npu_quant_matmul_all_to_all against fp64: in mirrored groups, and on two ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.families import on
from tests.ops.support import assert_accurate, make
from torch_npu.distributed.distributed_c10d import backend_of


def int8(*shape, seed=0):
    return make(*shape, dtype=torch.int8, low=-9, high=10, seed=seed)


@pytest.mark.parametrize(
    "y_dtype,bias_dtype",
    [(torch.float16, None), (torch.bfloat16, None), (torch.bfloat16, torch.float32)],
)
def test_int8_on_a2(y_dtype, bias_dtype):
    x, w, s1, s2 = int8(3, 64), int8(64, 8, seed=1), make(3), make(8)
    bias = make(8, seed=4).to(bias_dtype or y_dtype)
    y = torch_npu.npu_quant_matmul_all_to_all(
        x, w, "softnpu%mirror_2", 2, bias, s1, s2, y_dtype=y_dtype, comm_mode="aiv"
    )
    whole = (x.cpu().double() @ w.cpu().double()) * s1.cpu().double()[:, None] * s2.cpu().double()
    want = (whole + bias.cpu().double())[:, :4].repeat(2, 1)  # the other rank does the same
    assert y.shape == (6, 4) and y.dtype == y_dtype
    assert_accurate(y, want, want.to(y_dtype))


@pytest.mark.parametrize("y_dtype", [None, torch.float16, torch.bfloat16])
def test_8_bit_floats_on_ascend950(y_dtype):
    x, w = make(3, 64).to(torch.float8_e4m3fn), make(64, 8).to(torch.float8_e5m2)
    s1, s2, bias = make(3), make(8), make(8, seed=4)
    with on("A5"):
        y = torch_npu.npu_quant_matmul_all_to_all(
            x, w, "softnpu%mirror_4", 4, bias, s1, s2, y_dtype=y_dtype, comm_mode="ai_cpu"
        )
    sums = x.cpu().float().double() @ w.cpu().float().double() + bias.cpu().double()
    want = (sums * s1.cpu().double()[:, None] * s2.cpu().double())[:, :2].repeat(4, 1)
    assert_accurate(y, want, want.to(y_dtype or torch.float32))


@pytest.mark.parametrize("four_bits", [True, False])
def test_microscaled(four_bits):
    codes = torch.tensor(
        [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    ).double()
    if four_bits:
        x, w = (
            make(3, 32, dtype=torch.uint8, low=0, high=256),
            make(8, 32, dtype=torch.uint8, low=0, high=256, seed=1),
        )
        values = lambda t: codes[torch.stack((t.cpu() & 15, t.cpu() >> 4), -1).flatten(-2).long()]  # noqa: E731
        more = {"x1_dtype": 296, "x2_dtype": 296}
    else:
        x, w = make(3, 64).to(torch.float8_e5m2), make(8, 64).to(torch.float8_e4m3fn)
        values, more = (lambda t: t.cpu().float().double()), {}
    s1 = make(3, 1, 2, dtype=torch.uint8, low=120, high=130)
    s2 = make(8, 1, 2, dtype=torch.uint8, low=120, high=130, seed=2)
    bias = make(8)
    with on("A5"):
        y = torch_npu.npu_quant_matmul_all_to_all(
            x, w.t(), "softnpu%mirror_2", 2, bias, s1, s2, x1_quant_mode=6, x2_quant_mode=6, x1_scale_dtype=293,
            x2_scale_dtype=293, group_sizes=[0, 0, 32], **more,
        )  # fmt: skip
    power = lambda s: torch.pow(2.0, s.cpu().double().flatten(1) - 127).repeat_interleave(32, 1)  # noqa: E731
    whole = (values(x) * power(s1)) @ (values(w) * power(s2)).t() + bias.cpu().double()
    want = whole[:, :4].repeat(2, 1)
    assert_accurate(y, want, want.float())


def two_ranks(rank):
    torch.npu.set_device(rank)
    name = backend_of(dist.group.WORLD).get_hccl_comm_name(rank)
    g = torch.Generator().manual_seed(2)
    xs = [torch.randint(-9, 10, (3, 32), generator=g).to(torch.int8) for _ in range(2)]
    ws = [torch.randint(-9, 10, (32, 6), generator=g).to(torch.int8) for _ in range(2)]
    s1, s2, bias = (torch.rand(n, generator=g) for n in (3, 6, 6))
    y = torch_npu.npu_quant_matmul_all_to_all(
        xs[rank].npu(),
        ws[rank].npu(),
        name,
        2,
        bias.npu(),
        s1.npu(),
        s2.npu(),
        y_dtype=torch.bfloat16,
    )
    parts = [(x.double() @ w.double()) * s1.double()[:, None] * s2.double() + bias.double() for x, w in zip(xs, ws, strict=True)]  # fmt: skip
    want = torch.cat([part[:, 3 * rank : 3 * rank + 3] for part in parts])
    assert_accurate(y, want, want.bfloat16())


def test_on_two_ranks():
    job.run(two_ranks, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": make(8)}, "'bias' must be of dtype torch.float16"),
        ({"bias": None}, "'bias' must be given on this chip"),
        ({"x2": int8(64, 7)}, "'x2' must be of columns divisible by 2.*7"),
        ({"x1_scale": None}, "'x1_scale' must be given"),
        ({"x1_scale": make(4)}, r"'x1_scale' must be of shape \(3\)"),
        ({"y_dtype": None}, "'y_dtype' must be torch.float16 or torch.bfloat16"),
        ({"x1_quant_mode": 7}, "'x1_quant_mode' must be 3.*7"),
        ({"x1": make(3, 64).to(torch.float8_e5m2)}, "'x1' must be of dtype torch.int8"),
        ({"group_sizes": [1, 1, 32]}, "'group_sizes' must be None for these operands"),
        ({"x1_dtype": 296}, "'x1_dtype' must be left at None"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "x1": int8(3, 64),
        "x2": int8(64, 8),
        "hcom": "softnpu%mirror_2",
        "world_size": 2,
        "bias": make(8, dtype=torch.float16),
        "x1_scale": make(3),
        "x2_scale": make(8),
        "y_dtype": torch.float16,
    }
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_quant_matmul_all_to_all(**{**given, **changes})
