"""The all-to-all and quantized products and the barrier on real ranks, against fp64."""

from __future__ import annotations

import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.comm.test_products_on_ranks import numbers
from tests.ops.support import assert_accurate
from torch_npu.distributed.distributed_c10d import backend_of

HALF = (torch.float16, torch.bfloat16)


def all_to_all(rank: int, ranks: int, name: str) -> None:
    for dtype in HALF:
        xs = [numbers(r, 3 * ranks, 8, dtype=dtype) for r in range(ranks)]
        w = numbers(rank, 8 * ranks, 5, dtype=dtype, what=1)
        y, p = torch_npu.npu_all_to_all_matmul(xs[rank].npu(), w.npu(), name, ranks)
        whole = torch.cat([x[3 * rank : 3 * rank + 3] for x in xs], 1)
        assert torch.equal(p.cpu(), whole)
        want = whole.double() @ w.double()
        assert_accurate(y, want, want.to(dtype))
        xs = [numbers(r, 3, 16, dtype=dtype, what=2) for r in range(ranks)]
        ws = [numbers(r, 16, 4 * ranks, dtype=dtype, what=3) for r in range(ranks)]
        y = torch_npu.npu_matmul_all_to_all(xs[rank].npu(), ws[rank].npu(), name, ranks)
        parts = [x.double() @ w.double() for x, w in zip(xs, ws, strict=True)]
        want = torch.cat([p[:, 4 * rank : 4 * rank + 4] for p in parts])
        assert_accurate(y, want, want.to(dtype))


def quantized(rank: int, ranks: int, name: str) -> None:
    xs = [numbers(r, 2 * ranks, 64, dtype=torch.int8) for r in range(ranks)]
    ws = [numbers(r, 64, 5, dtype=torch.int8, what=1) for r in range(ranks)]
    s1 = [numbers(r, 2 * ranks, 1, what=3) for r in range(ranks)]
    s2 = [numbers(r, 1, 5, what=4) for r in range(ranks)]
    scales = {"x1_scale": s1[rank].npu(), "x2_scale": s2[rank].npu(), "y_dtype": 15}
    given = (xs[rank].npu(), ws[rank].npu(), name, ranks)
    y, kept, _ = torch_npu.npu_all_gather_quant_mm(*given, **scales)
    want = torch.cat([x.double() @ ws[rank].double() * s.double() for x, s in zip(xs, s1)])
    want = want * s2[rank].double()
    assert torch.equal(kept.cpu(), torch.cat(xs))
    assert_accurate(y, want, want.bfloat16())
    y, _ = torch_npu.npu_quant_mm_reduce_scatter(*given, **scales)
    given = zip(xs, ws, s1, s2, strict=True)
    parts = [x.double() @ w.double() * a.double() * b.double() for x, w, a, b in given]
    mine = slice(2 * rank, 2 * rank + 2)
    plain = parts[0].bfloat16()
    for part in parts[1:]:
        plain = plain + part.bfloat16()  # as the ranks exchange them
    assert_accurate(y, sum(parts)[mine], plain[mine])


def everything(rank: int) -> None:
    ranks = dist.get_world_size()
    name = backend_of().get_hccl_comm_name(rank)
    all_to_all(rank, ranks, name)
    quantized(rank, ranks, name)
    x = torch.arange(3.0).npu() + rank
    assert torch.equal(torch_npu._npu_distribute_barrier(x, name, ranks).cpu(), x.cpu())


def test_products():
    job.run(everything, 2)
