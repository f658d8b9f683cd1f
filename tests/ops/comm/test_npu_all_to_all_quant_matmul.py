"""npu_all_to_all_quant_matmul against fp64: in mirrored groups, and on two ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.families import on
from tests.ops.support import assert_accurate, make
from torch_npu.distributed.distributed_c10d import backend_of

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def unpacked(x: torch.Tensor) -> torch.Tensor:
    """Eight signed int4 of each int32, the lowest bits first, in fp64."""
    nibbles = torch.stack([(x.long() >> (4 * i)) & 15 for i in range(8)], -1).flatten(-2)
    return torch.where(nibbles > 7, nibbles - 16, nibbles).double()


def quantized(p: torch.Tensor, largest: float, dtype=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows on the grid of a format and their scales, by plain rounding; computed in fp32 as the card does."""
    scale = p.abs().amax(1, keepdim=True) / largest
    values = p * (1 / scale)
    return (values.round() if dtype is None else values.to(dtype).float()).double(), scale.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("four_bits", [True, False])
def test_rows_are_quantized_on_a2(dtype, smooth, four_bits):
    x = make(4, 16, dtype=dtype)
    packed = make(32, 2, dtype=torch.int32, low=-(2**31), high=2**31)
    weight = packed if four_bits else make(32, 16, dtype=torch.int8, low=-9, high=10)
    factors = make(32, dtype=dtype, low=0.5, high=2) if smooth else None
    scale, bias = make(16), make(16, seed=9)
    y, p = torch_npu.npu_all_to_all_quant_matmul(
        x, weight, "softnpu%mirror_2", 2, x1_scale=factors, x2_scale=scale, bias=bias, y_dtype=dtype
    )
    whole = x.cpu()[:2].repeat(1, 2)  # the other rank does what this one does
    assert torch.equal(p.cpu(), whole)
    rows = whole.float() if factors is None else whole.float() * factors.cpu().float()
    q, d = quantized(rows, 7 if four_bits else 127)
    w = unpacked(packed.cpu()) if four_bits else weight.cpu().double()
    want = (q @ w) * d * scale.cpu().double() + bias.cpu().double()
    assert y.dtype == dtype
    assert_accurate(y, want, want.to(dtype))


def test_rows_of_int4():
    x = make(4, 2, dtype=torch.int32, low=-(2**31), high=2**31)
    w = make(32, 2, dtype=torch.int32, low=-(2**31), high=2**31, seed=5)
    s1, s2 = make(4), make(16)
    y, nothing = torch_npu.npu_all_to_all_quant_matmul(
        x, w, "softnpu%mirror_2", 2, x1_scale=s1, x2_scale=s2, x1_quant_mode=3, y_dtype=torch.bfloat16,
        all2all_out_flag=False,
    )  # fmt: skip
    p = unpacked(x.cpu()[:2].repeat(1, 2))
    want = (p @ unpacked(w.cpu())) * s1.cpu()[:2, None].double() * s2.cpu().double()
    assert_accurate(y, want, want.bfloat16())
    assert nothing.numel() == 0


@pytest.mark.parametrize("kind", [None, *FP8])
@pytest.mark.parametrize("y_dtype", [None, torch.float16, torch.bfloat16])
def test_8_bit_floats_on_ascend950(kind, y_dtype):
    x, w = make(4, 16, dtype=torch.bfloat16), make(64, 8).to(torch.float8_e4m3fn)
    s2, bias = make(8), make(8, seed=3)
    with on("A5"):
        y, _ = torch_npu.npu_all_to_all_quant_matmul(
            x, w, "softnpu%mirror_4", 4, x2_scale=s2, bias=bias, y_dtype=y_dtype, x1_quant_dtype=kind,
            comm_mode="ccu",
        )  # fmt: skip
    used = kind or torch.float8_e5m2
    q, d = quantized(x.cpu()[:1].repeat(1, 4).float(), torch.finfo(used).max, used)
    want = (q @ w.cpu().float().double() + bias.cpu().double()) * d * s2.cpu().double()
    assert y.dtype == (y_dtype or torch.float32)
    assert_accurate(y, want, want.to(y.dtype), slack=1e-5)


def test_microscaled_rows():
    x, w = make(4, 64).to(torch.float8_e4m3fn), make(8, 128).to(torch.float8_e5m2).t()
    s1 = make(4, 1, 2, dtype=torch.uint8, low=120, high=130)
    s2 = make(8, 2, 2, dtype=torch.uint8, low=120, high=130)
    with on("A5"):
        y, p = torch_npu.npu_all_to_all_quant_matmul(
            x, w, "softnpu%mirror_2", 2, x1_scale=s1, x2_scale=s2, x1_quant_mode=6, x2_quant_mode=6,
            x1_scale_dtype=293, x2_scale_dtype=293, group_sizes=[1, 1, 32],
        )  # fmt: skip
    power = lambda s: torch.pow(2.0, s.cpu().double().flatten(1) - 127).repeat_interleave(32, 1)  # noqa: E731
    left = (x.cpu().float().double() * power(s1))[:2].repeat(1, 2)
    want = left @ (w.cpu().float().t().double() * power(s2)).t()
    assert_accurate(y, want, want.float())
    assert torch.equal(p.cpu().view(torch.uint8), x.cpu()[:2].view(torch.uint8).repeat(1, 2))


def two_ranks(rank):
    torch.npu.set_device(rank)
    name = backend_of(dist.group.WORLD).get_hccl_comm_name(rank)
    g = torch.Generator().manual_seed(1)
    xs = [torch.randn(4, 16, generator=g).half() for _ in range(2)]
    packed = [torch.randint(-(2**31), 2**31, (4, 2), generator=g).int() for _ in range(2)]
    w = torch.randint(-9, 10, (32, 8), generator=g).to(torch.int8)
    w4 = torch.randint(-(2**31), 2**31, (32, 1), generator=g).int()
    s1, s2 = torch.rand(4, generator=g), torch.rand(8, generator=g)
    mine = slice(2 * rank, 2 * rank + 2)
    y, p = torch_npu.npu_all_to_all_quant_matmul(
        xs[rank].npu(), w.npu(), name, 2, x2_scale=s2.npu(), y_dtype=torch.float16
    )
    whole = torch.cat([x[mine] for x in xs], 1)
    assert torch.equal(p.cpu(), whole)
    q, d = quantized(whole.float(), 127)
    want = (q @ w.double()) * d * s2.double()
    assert_accurate(y, want, want.half())
    y, _ = torch_npu.npu_all_to_all_quant_matmul(
        packed[rank].npu(), w4.npu(), name, 2, x1_scale=s1.npu(), x2_scale=s2.npu(), x1_quant_mode=3,
        y_dtype=torch.float16,
    )  # fmt: skip
    rows = unpacked(torch.cat([x[mine] for x in packed], 1))
    want = (rows @ unpacked(w4)) * s1[mine, None].double() * s2.double()
    assert_accurate(y, want, want.half())


def test_on_two_ranks():
    job.run(two_ranks, 2)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 3}, "'world_size' must be 2, 4 or 8"),
        ({"x1": make(3, 16).half()}, "'x1' must be of rows divisible by 2"),
        ({"x2_scale": None}, "'x2_scale' must be given"),
        ({"x2_scale": make(4)}, r"'x2_scale' must be of shape \(8\)"),
        ({"y_dtype": None}, "'y_dtype' must be torch.float16.*torch.float32"),
        ({"x1_quant_mode": 1}, "'x1_quant_mode' must be 3 or 7.*1"),
        ({"x1_quant_mode": 6}, "'x1_quant_mode' must be 3 or 7 on this chip.*6"),
        ({"x2": make(30, 8, dtype=torch.int8, low=0, high=3)}, r"'x2' must be of shape \(32, \*\)"),
        ({"x1_scale": make(32)}, "'x1_scale' must be of dtype torch.float16"),
        ({"common_scale": make(1)}, "'common_scale' must be left at None"),
        ({"comm_mode": "ccu"}, "'comm_mode' must be None, '' or 'aiv'"),
        ({"all2all_axes": [-1, -2]}, "'all2all_axes' must be"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "x1": make(4, 16).half(),
        "x2": make(32, 8, dtype=torch.int8, low=-9, high=9),
        "hcom": "softnpu%mirror_2",
        "world_size": 2,
        "x2_scale": make(8),
        "y_dtype": torch.float16,
    }
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_all_to_all_quant_matmul(**{**given, **changes})


def test_ascend950_takes_no_factors():
    with (
        on("A5"),
        pytest.raises(RuntimeError, match="'x1_scale' must be None with x1_quant_mode 7"),
    ):
        torch_npu.npu_all_to_all_quant_matmul(
            make(4, 16).half(), make(32, 8).to(FP8[0]), "softnpu%mirror_2", 2, x1_scale=make(32),
            x2_scale=make(8),
        )  # fmt: skip
