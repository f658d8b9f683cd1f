"""npu_all_gather_base_mm, npu_mm_reduce_scatter_base, npu_mm_all_reduce_base on real ranks, against fp64 loops."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.support import assert_accurate
from torch_npu.distributed.distributed_c10d import backend_of

HALF = (torch.float16, torch.bfloat16)


def numbers(
    rank: int, *shape: int, dtype: torch.dtype = torch.float32, what: int = 0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * what + rank)
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator).to(dtype)
    return (torch.rand(shape, generator=generator) - 0.5).to(dtype)


def added(parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The sum of what the ranks have, in the dtype in which they exchange it."""
    total = parts[0].to(dtype)
    for part in parts[1:]:
        total = total + part.to(dtype)
    return total


def gathered_product(rank: int, ranks: int, name: str) -> None:
    for dtype in HALF:
        xs = [numbers(r, 3, 256, dtype=dtype) for r in range(ranks)]
        x2 = numbers(rank, 7, 256, dtype=dtype, what=1).t()
        bias = numbers(rank, 7, dtype=dtype, what=2)
        whole = torch.cat(xs)
        for given in (None, bias):
            y, gathered = torch_npu.npu_all_gather_base_mm(
                xs[rank].npu(), x2.npu(), name, ranks, bias=None if given is None else given.npu()
            )
            want = whole.double() @ x2.double() + (0 if given is None else given.double())
            assert_accurate(y, want, want.to(dtype))
            assert torch.equal(gathered.cpu(), whole)
        y, nothing = torch_npu.npu_all_gather_base_mm(
            xs[rank].npu(), x2.npu(), name, ranks, gather_output=False
        )
        assert nothing.numel() == 0
    xs = [numbers(r, 3, 256, dtype=torch.int8) for r in range(ranks)]
    scales = [numbers(r, 3, 1, what=3) for r in range(ranks)]
    x2, s2 = numbers(0, 256, 5, dtype=torch.int8, what=4), numbers(0, 1, 5, what=5)
    want = (torch.cat(xs).double() @ x2.double()) * torch.cat(scales).double() * s2.double()
    for dtype in (None, *HALF):
        y, _ = torch_npu.npu_all_gather_base_mm(
            xs[rank].npu(), x2.npu(), name, ranks, x1_scale=scales[rank].npu(), x2_scale=s2.npu(),
            output_dtype=dtype, comm_mode="aiv",
        )  # fmt: skip
        assert y.dtype == (dtype or torch.bfloat16)
        assert_accurate(y, want, want.to(y.dtype))
    packed = torch_npu.npu_trans_quant_param(s2.view(-1).npu()).view(1, -1)
    y, _ = torch_npu.npu_all_gather_base_mm(
        xs[rank].npu(), x2.npu(), name, ranks, x2_scale=packed, comm_mode="aiv"
    )
    want = (torch.cat(xs).double() @ x2.double()) * s2.double()
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.cpu().double(), want, rtol=2e-3, atol=2e-2)


def scattered_product(rank: int, ranks: int, name: str) -> None:
    rows = slice(2 * rank, 2 * rank + 2)
    for dtype in HALF:
        xs = [numbers(r, 2 * ranks, 256, dtype=dtype) for r in range(ranks)]
        ws = [numbers(r, 256, 5, dtype=dtype, what=1) for r in range(ranks)]
        bias = numbers(0, 5, dtype=dtype, what=2)
        y = torch_npu.npu_mm_reduce_scatter_base(
            xs[rank].npu(), ws[rank].npu(), name, ranks, bias=bias.npu()
        )
        parts = [x.double() @ w.double() + bias.double() for x, w in zip(xs, ws, strict=True)]
        assert_accurate(y, sum(parts)[rows], added(parts, dtype)[rows])
    xs = [numbers(r, 2 * ranks, 256, dtype=torch.int8) for r in range(ranks)]
    ws = [numbers(r, 256, 5, dtype=torch.int8, what=1) for r in range(ranks)]
    s1 = [numbers(r, 2 * ranks, 1, what=3) for r in range(ranks)]
    s2 = [numbers(r, 1, 5, what=4) for r in range(ranks)]
    y = torch_npu.npu_mm_reduce_scatter_base(
        xs[rank].npu(), ws[rank].npu(), name, ranks, x1_scale=s1[rank].npu(), x2_scale=s2[rank].npu(),
        comm_mode="aiv", output_dtype=torch.float16,
    )  # fmt: skip
    parts = [
        (x.double() @ w.double()) * a.double() * b.double() for x, w, a, b in zip(xs, ws, s1, s2, strict=True)
    ]  # fmt: skip
    assert_accurate(y, sum(parts)[rows], added(parts, torch.float16)[rows])


def reduced_product(rank: int, ranks: int, name: str) -> None:
    for dtype in HALF:
        xs = [numbers(r, 2, 3, 64, dtype=dtype) for r in range(ranks)]
        ws = [numbers(r, 64, 5, dtype=dtype, what=1) for r in range(ranks)]
        bias, x3 = numbers(0, 5, dtype=dtype, what=2), numbers(rank, 2, 3, 5, dtype=dtype, what=3)
        x3s = [numbers(r, 2, 3, 5, dtype=dtype, what=3) for r in range(ranks)]
        y = torch_npu.npu_mm_all_reduce_base(
            xs[rank].npu(), ws[rank].npu(), name, reduce_op="sum", bias=bias.npu(), x3=x3.npu()
        )
        parts = [x.double() @ w.double() + bias.double() for x, w in zip(xs, ws, strict=True)]
        want = sum(parts) + sum(a.double() for a in x3s)
        rounded = [p.to(dtype) + a for p, a in zip(parts, x3s, strict=True)]
        assert_accurate(y, want, added(rounded, dtype))
        if ranks == 2:  # the order of two does not matter
            assert torch.equal(y.cpu(), rounded[0] + rounded[1])
    # weights in int8
    ws = [numbers(r, 64, 5, dtype=torch.int8, what=1) for r in range(ranks)]
    for shape, group in (((1,), 0), ((5,), 0), ((1, 5), 0), ((2, 5), 32)):
        scale = numbers(0, *shape, dtype=torch.bfloat16, what=6)
        offset = numbers(0, *shape, dtype=torch.bfloat16, what=7)
        y = torch_npu.npu_mm_all_reduce_base(
            xs[rank].npu(), ws[rank].npu(), name, antiquant_scale=scale.npu(), antiquant_offset=offset.npu(),
            antiquant_group_size=group,
        )  # fmt: skip
        wide = [
            t.repeat_interleave(32, 0) if group else t for t in (scale.double(), offset.double())
        ]
        exact = [(w.double() + wide[1]) * wide[0] for w in ws]
        want = sum(x.double() @ w for x, w in zip(xs, exact, strict=True))
        plain = [x.double() @ w.bfloat16().double() for x, w in zip(xs, exact, strict=True)]
        assert_accurate(y, want, added(plain, torch.bfloat16))
    # both in int8
    xs = [numbers(r, 6, 64, dtype=torch.int8) for r in range(ranks)]
    bias = numbers(0, 5, dtype=torch.int32, what=8)
    token = [numbers(r, 6, what=9) for r in range(ranks)]
    products = [x.double() @ w.double() + bias.double() for x, w in zip(xs, ws, strict=True)]
    for scale in (numbers(0, 5, what=10), numbers(0, 1, 5, dtype=torch.bfloat16, what=10)):
        y = torch_npu.npu_mm_all_reduce_base(
            xs[rank].npu(), ws[rank].npu(), name, bias=bias.npu(), dequant_scale=scale.npu(),
            pertoken_scale=token[rank].npu(),
        )  # fmt: skip
        parts = [
            p * scale.double() * t.double().unsqueeze(1)
            for p, t in zip(products, token, strict=True)
        ]
        assert y.dtype == (torch.bfloat16 if scale.dtype == torch.bfloat16 else torch.float16)
        assert_accurate(y, sum(parts), added(parts, y.dtype))
    packed = torch_npu.npu_trans_quant_param(torch.full((5,), 0.5).npu())
    y = torch_npu.npu_mm_all_reduce_base(xs[rank].npu(), ws[rank].npu(), name, dequant_scale=packed)
    parts = [x.double() @ w.double() * 0.5 for x, w in zip(xs, ws, strict=True)]
    assert_accurate(y, sum(parts), added(parts, torch.float16))
    # int8 on the wire: each rank's part and the sum are rounded to the scales' grid
    one, two = (
        torch.full((5,), 64.0, dtype=torch.bfloat16),
        torch.full((5,), 128.0, dtype=torch.bfloat16),
    )
    ones = torch.ones(1, dtype=torch.bfloat16)
    y = torch_npu.npu_mm_all_reduce_base(
        xs[rank].npu(), ws[rank].npu(), name, dequant_scale=ones.npu(), comm_quant_scale_1=one.npu(),
        comm_quant_scale_2=two.npu(),
    )  # fmt: skip
    parts = [
        ((x.double() @ w.double()) / 64).round().clamp(-128, 127) * 64
        for x, w in zip(xs, ws, strict=True)
    ]
    assert torch.equal(y.cpu().double(), (sum(parts) / 128).round().clamp(-128, 127) * 128)


def compiled(rank: int, ranks: int, name: str) -> None:
    x, w = (
        numbers(rank, 4, 256, dtype=torch.float16).npu(),
        numbers(0, 256, 8, dtype=torch.float16).npu(),
    )

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y, _ = torch_npu.npu_all_gather_base_mm(x, w, name, ranks)
        return torch_npu.npu_mm_all_reduce_base(y.relu(), w.t(), name)

    want = layer(x, w)
    have = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, w)
    assert torch.equal(want.cpu(), have.cpu())


def everything(rank: int) -> None:
    ranks = dist.get_world_size()
    name = backend_of().get_hccl_comm_name(rank)
    for part in (gathered_product, scattered_product, reduced_product, compiled):
        part(rank, ranks, name)
    with pytest.raises(
        RuntimeError, match=rf"'world_size' must be the number of ranks of the group \({ranks}\)"
    ):
        torch_npu.npu_all_gather_base_mm(
            torch.ones(2, 256, device="npu").half(),
            torch.ones(256, 2, device="npu").half(),
            name,
            8,
        )


def test_products():
    job.run(everything, 2)
