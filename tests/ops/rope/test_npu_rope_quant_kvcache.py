"""npu_rope_quant_kvcache and npu_dequant_rope_quant_kvcache against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

D, HEADS, QUERIES = 16, 2, 4
SPLITS = [QUERIES * D, HEADS * D, HEADS * D]
WIDTH = sum(SPLITS)


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def expected(x, cos, sin, scales, offsets):
    """q, k, v in fp64 (B, S, N, D), and the integers of k and v."""
    q, k, v = (t.unflatten(-1, (-1, D)) for t in x.split(SPLITS, -1))
    q, k = rope(q, cos, sin), rope(k, cos, sin)
    whole = [
        (t / s.view(HEADS, D) + (0 if o is None else o.view(HEADS, D))).round().clamp(-128, 127)
        for t, s, o in zip((k, v), scales, offsets, strict=True)
    ]
    return q, k, v, whole


def run(operator, x, real, dtype, paged, offset, out, flat=False, **more):
    batch, length = x.shape[0], 1 if flat else x.shape[1]
    angles = (batch, D) if flat else (batch, length, 1, D)
    cos, sin = make(*angles, dtype=dtype, seed=1), make(*angles, dtype=dtype, seed=2)
    caches = [make(5, 6, HEADS, D, dtype=torch.int8, low=-99, high=99, seed=s) for s in (3, 4)]
    before = [c.cpu().clone() for c in caches]
    scales = [make(HEADS * D, low=0.01, high=0.03, seed=s) for s in (5, 6)]
    offsets = [make(HEADS * D, low=-3, high=3, seed=s) if offset else None for s in (7, 8)]
    count = batch * length if paged else batch
    places = torch.randperm(
        30 if paged else 6 - length, generator=torch.Generator().manual_seed(2)
    )[:count].int()
    q, k, v, kc, vc = operator(
        x, cos, sin, *caches, places.npu(), *scales, SPLITS, offset_k=offsets[0], offset_v=offsets[1],
        kv_output=out, cache_mode="page" if paged else "contiguous", **more,
    )  # fmt: skip
    assert kc.data_ptr() == caches[0].data_ptr() and vc.data_ptr() == caches[1].data_ptr()
    wide = [t.cpu().double().view(batch, length, 1, D) for t in (cos, sin)]
    plain = [None if o is None else o.cpu().double() for o in offsets]
    right = expected(
        real.view(batch, length, WIDTH), *wide, [s.cpu().double() for s in scales], plain
    )
    assert q.dtype == dtype and q.shape == (*x.shape[:-1], QUERIES, D)
    assert_accurate(q, right[0].view(q.shape), right[0].view(q.shape).to(dtype), slack=1e-3)
    if out:
        for got, want in ((k, right[1]), (v, right[2])):
            assert got.shape == (*x.shape[:-1], HEADS, D)
            assert_accurate(got, want.view(got.shape), want.view(got.shape).to(dtype), slack=1e-3)
    else:
        assert k.numel() == 0 and v.numel() == 0
    for cache, old, whole in zip(caches, before, right[3], strict=True):
        new = old.double()
        if paged:
            new.view(-1, HEADS, D)[places.long()] = whole.flatten(0, 1)
        else:
            for b in range(batch):
                new[b, places[b] : places[b] + length] = whole[b]
        difference = (cache.cpu().double() - new).abs()
        assert difference.max() <= 1  # where k' is rounded to half first, ties fall otherwise
        assert (difference > 0).double().mean() < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_floats(dtype, paged, offset, flat):
    x = make(*((3, WIDTH) if flat else (3, 2, WIDTH)), dtype=dtype)
    run(
        torch_npu.npu_rope_quant_kvcache,
        x,
        x.cpu().double(),
        dtype,
        paged,
        offset,
        flat != paged,
        flat,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [None, torch.int32, torch.float32, torch.float16])
@pytest.mark.parametrize("activation", [True, False])
def test_integers(dtype, bias, activation):
    x = make(3, 2, WIDTH, dtype=torch.int32, low=-99, high=100)
    weight = make(WIDTH, low=0.001, high=0.01)
    rows = make(6, low=0.5, high=2) if activation else None
    added = None if bias is None else (make(WIDTH, low=-5, high=5).to(bias))
    real = x.cpu().double()
    if bias == torch.int32:
        real = real + added.cpu().double()
    real = real * weight.cpu().double() * (1 if rows is None else rows.cpu().double().view(3, 2, 1))
    if bias not in (None, torch.int32):
        real = real + added.cpu().double()
    run(
        torch_npu.npu_dequant_rope_quant_kvcache, x, real, dtype, True, True, True,
        weight_scale=weight, activation_scale=rows, bias=added,
    )  # fmt: skip


@pytest.mark.parametrize("queries", [1, 270])
def test_any_number_of_heads(queries):
    """No multiple of 64 is asked for, nor less than 4096: the card takes what its memory holds."""
    splits = [queries * D, D, D]
    x = make(2, sum(splits), dtype=torch.float16)
    caches = [torch.zeros(2, 6, 1, D, dtype=torch.int8).npu() for _ in range(2)]
    angle = make(2, D, dtype=torch.float16)
    q, *_ = torch_npu.npu_rope_quant_kvcache(
        x, angle, angle, *caches, torch.zeros(2).int().npu(), make(D), make(D), splits
    )
    assert q.shape == (2, queries, D)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": make(2, 3, 100, dtype=torch.float16)}, "'size_splits' must be three sizes of 100 together"),
        ({"size_splits": [16, 48, 64]}, "'size_splits' must be a multiple of 16, 32, 32"),
        ({"quant_mode": 1}, "'quant_mode' must be left at 0"),
        ({"input_layout": "BNSD"}, "'input_layout' must be 'BSND'"),
        ({"cache_mode": "PA"}, "'cache_mode' must be 'contiguous' or 'page'"),
        ({"indices": torch.tensor([0, 6]).int()}, r"'indices' must be in \[0, 4\)"),
        ({"indices": torch.tensor([0]).int()}, r"'indices' must be of shape \(2\)"),
        ({"offset_k": make(32)}, "'offset_v' must be given with 'offset_k'"),
        ({"scale_k": make(16)}, "'scale_k' must be of 32 elements"),
        ({"cos": make(2, 3, 1, 16)}, "'cos' must be of the dtype of 'x'"),
        ({"x": make(2, 3, WIDTH)}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "x": make(2, 3, 128, dtype=torch.float16),
        "cos": make(2, 3, 1, 16, dtype=torch.float16),
        "sin": make(2, 3, 1, 16, dtype=torch.float16),
        "k_cache": make(2, 6, HEADS, D, dtype=torch.int8, low=0, high=2),
        "v_cache": make(2, 6, HEADS, D, dtype=torch.int8, low=0, high=2),
        "indices": torch.zeros(2).int(),
        "scale_k": make(32),
        "scale_v": make(32),
        "size_splits": [64, 32, 32],
    }
    merged = {**given, **changes}
    merged = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in merged.items()}
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_rope_quant_kvcache(**merged)


def test_integers_need_their_scales():
    x = torch.zeros(2, 128).int().npu()
    cache = torch.zeros(2, 6, 2, 16).to(torch.int8).npu()
    angle, scale = make(2, 16, dtype=torch.float16), make(32)
    call = (x, angle, angle, cache, cache, torch.zeros(2).int().npu(), scale, scale, [64, 32, 32])
    with pytest.raises(RuntimeError, match="'weight_scale' must be given"):
        torch_npu.npu_dequant_rope_quant_kvcache(*call)
    with pytest.raises(
        RuntimeError, match="'x' must be of dtype torch.int32.*x dtype should be Int32"
    ):
        torch_npu.npu_dequant_rope_quant_kvcache(x.half(), *call[1:])
