"""npu_grouped_matmul of 8-bit floats on Ascend950: every way of scaling, groups of rows and of depths."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.matmul._packing import HIFLOAT8, cut_scale, hifloat8, pack_scale
from tests.ops.matmul.test_npu_grouped_matmul import group_list, longs, loop, on_device
from tests.ops.support import assert_accurate, make

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def eights(*shape, dtype=E4M3, seed=0):
    return make(*shape, seed=seed).to(dtype)


@pytest.mark.parametrize("scale_shape", [(2,), (2, 1), (2, 8)], ids=str)
@pytest.mark.parametrize("token_shape", [None, (2,), (2, 1), (6,)], ids=str)
@pytest.mark.parametrize("dtype", [F16, F32])
def test_float8_rows_scaled_by_group_or_row(scale_shape, token_shape, dtype):
    x, weight = eights(6, 16), eights(2, 16, 8, dtype=E5M2, seed=1)
    scale = make(*scale_shape)
    token = make(*token_shape) if token_shape else None
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[scale], per_token_scale=None if token is None else [token],
            group_list=longs([2, 6]), split_item=2, group_type=0, output_dtype=dtype,
        )  # fmt: skip
    of_row = torch.tensor([0] * 2 + [1] * 4)
    want = loop(x.float(), weight.float(), [2, 4]) * scale.cpu().double().reshape(2, -1)[of_row]
    if token is not None:
        factor = token.cpu().double().flatten()
        want = want * (factor if len(factor) == 6 else factor[of_row])[:, None]
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("scale_shape", [(3,), (3, 1), (3, 5)], ids=str)
@pytest.mark.parametrize("token_shape", [None, (3,), (3, 1), (3, 4)], ids=str)
def test_float8_depths_scaled_by_group_or_row(scale_shape, token_shape):
    counts = [4, 0, 5]
    x, weight = eights(9, 4).t(), eights(9, 5, dtype=E5M2, seed=1)
    scale = make(*scale_shape)
    token = make(*token_shape) if token_shape else None
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[scale], per_token_scale=None if token is None else [token],
            split_item=3, group_type=2, output_dtype=F32, **group_list(counts, 1),
        )  # fmt: skip
    want = torch.zeros(3, 4, 5, dtype=torch.float64)
    a, b, start = x.cpu().double(), weight.cpu().double(), 0
    for group, count in enumerate(counts):
        part = slice(start, start + count)
        want[group] = (a[:, part] @ b[part]) * scale.cpu().double()[group]
        if token is not None:
            want[group] *= token.cpu().double()[group].reshape(-1, 1)
        start += count
    assert_accurate(y, want, want.float())


@pytest.mark.parametrize("k,n", [(100, 40), (260, 200)])
def test_float8_rows_scaled_by_tiles(k, n):
    blocks, columns, counts = -(-k // 128), -(-n // 128), [2, 3]
    x, weight = eights(5, k), eights(2, k, n, seed=1)
    scale, token = make(2, blocks, columns), make(5, blocks)
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[scale], per_token_scale=[token], split_item=3, group_type=0,
            output_dtype=BF16, **group_list(counts, 1),
        )  # fmt: skip
    depth, column = torch.arange(k) // 128, torch.arange(n) // 128
    rows_ = x.cpu().double() * token.cpu().double()[:, depth]
    full = weight.cpu().double() * scale.cpu().double()[:, depth][:, :, column]
    want = loop(rows_, full, counts)
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize("counts", [[130, 70], [0, 200], [128, 72]], ids=str)
def test_float8_depths_scaled_by_tiles(counts):
    """The tiles of a group begin anew: those of the g-th, which starts at depth d, at d // 128 + g."""
    k, n, slots = 200, 140, 200 // 128 + 2
    x, weight = eights(k, 3).t(), eights(k, n, seed=1)
    scale, token = make(slots, 2), make(slots, 3)
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[scale], per_token_scale=[token.t()], split_item=3, group_type=2,
            output_dtype=F32, **group_list(counts, 1),
        )  # fmt: skip
    want = torch.zeros(2, 3, n, dtype=torch.float64)
    a, b, column = x.cpu().double(), weight.cpu().double(), torch.arange(n) // 128
    start = 0
    for group, count in enumerate(counts):
        for depth in range(start, start + count):
            slot = start // 128 + group + (depth - start) // 128
            left = a[:, depth] * token.cpu().double()[slot]
            want[group] += left[:, None] * (b[depth] * scale.cpu().double()[slot][column])
        start += count
    assert_accurate(y, want, want.float())


@pytest.mark.parametrize("scale_kind", ["float32", "packed"])
def test_float8_on_950(scale_kind):
    x, weight = make(6, 16).to(torch.float8_e4m3fn), make(2, 16, 8).to(torch.float8_e4m3fn)
    scale = make(2, 8)
    words = pack_scale(scale.cpu().flatten()).reshape(2, 8)
    given = on_device(words) if scale_kind == "packed" else scale
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[given], group_list=longs([2, 6]), split_item=2, group_type=0,
            output_dtype=F32,
        )  # fmt: skip
    used = cut_scale(scale.cpu()) if scale_kind == "packed" else scale.cpu().double()
    want = loop(x.float(), weight.float(), [2, 4]) * used[torch.tensor([0] * 2 + [1] * 4)]
    assert_accurate(y, want, want.float())


def test_hifloat8_on_950():
    x = make(6, 16, dtype=torch.uint8, low=0x10, high=0x40)
    weight = make(2, 16, 8, dtype=torch.uint8, low=0x90, high=0xC0)
    scale, token = make(2, 8), make(6)
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[scale], per_token_scale=[token], group_list=longs([2, 6]),
            split_item=2, group_type=0, output_dtype=BF16, x_dtype=HIFLOAT8, weight_dtype=HIFLOAT8,
        )  # fmt: skip
    values = [
        torch.tensor([hifloat8(b) for b in t.cpu().flatten().tolist()]).reshape(t.shape)
        for t in (x, weight)
    ]
    factors = scale.cpu().double()[torch.tensor([0] * 2 + [1] * 4)] * token.cpu().double()[:, None]
    want = loop(*values, [2, 4]) * factors
    assert_accurate(y, want, want.bfloat16())
