"""npu_fused_infer_attention_score over int8 and int4 caches, and with int8 products."""

import pytest
import torch

from tests.ops.attention.infer_reference import (
    attend,
    draw,
    fia,
    on_device,
    pack,
    paginate,
    unpack,
)
from tests.ops.support import make

HALF, BRAIN = torch.float16, torch.bfloat16
SCALE = 0.2


def integers(heads, tokens, size, seed, low=-128, high=128):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (heads, tokens, size), generator=generator)


def check_cache(out, layout, q, keys, values, dtype):
    """The output over dequantized (fp64) keys and values."""
    for b, found in enumerate(unpack(out, layout, [q[0].shape[1]] * len(q), 4)):
        want, _ = attend(q[b].double(), keys[b], values[b], SCALE)
        error = (found.double() - want).abs().max()
        assert error <= 2 * torch.finfo(dtype).eps * want.abs().max()


def spread(scale, mode, b):
    """A scale as it multiplies sequence b, (N, S, D)."""
    scale = scale.cpu().double()
    if scale.numel() == 1:
        return scale.reshape(1, 1, 1)
    if mode == 0:
        return scale.reshape(2, 1, -1)
    if mode == 1:
        return scale.reshape(-1, scale.shape[-1])[b][None, :, None]
    return scale.reshape(2, 1, 1) if mode == 2 else scale[b][:, :, None]


SHAPES = [
    (0, (1,)), (0, (1, 2, 1, 32)), (0, (1, 2, 32)), (0, (1, 64)), (0, (2, 1, 32)), (0, (2, 32)), (0,
    (64,)), (1, (1, 2, 6)), (1, (2, 6)), (1, (1, 2, 9)), (2, (2,)), (3, (2, 2, 6)),
]  # fmt: skip


@pytest.mark.parametrize("mode,shape", SHAPES)
@pytest.mark.parametrize("offset", [False, True])
def test_int8_cache(mode, shape, offset):
    dtype = HALF
    kind = dtype if mode in (0, 2) else torch.float32
    q = [draw(4, 1, 32, dtype, seed=b) for b in range(2)]
    caches = [[integers(2, 6, 32, 10 * s + b) for b in range(2)] for s in range(2)]
    scales = [make(*shape, dtype=kind, low=0.01, high=0.02, seed=s) for s in range(2)]
    offsets = [
        make(*shape, dtype=kind, low=-9, high=9, seed=s + 5) if offset else None for s in range(2)
    ]
    out, _ = fia(
        on_device(pack(q, "BSH")), *(on_device(pack(c, "BSH").to(torch.int8)) for c in caches),
        num_heads=4, num_key_value_heads=2, scale=SCALE, key_antiquant_scale=scales[0],
        value_antiquant_scale=scales[1], key_antiquant_offset=offsets[0],
        value_antiquant_offset=offsets[1], key_antiquant_mode=mode, value_antiquant_mode=mode,
    )  # fmt: skip
    wide = [
        [
            (c.double() + (spread(o, mode, b)[:, :6] if offset else 0)) * spread(s, mode, b)[:, :6]
            for b, c in enumerate(cache)
        ]
        for cache, s, o in zip(caches, scales, offsets, strict=True)
    ]
    check_cache(out, "BSH", q, *wide, dtype)


@pytest.mark.parametrize("mode", [4, 5])
def test_scales_in_pages(mode):
    lengths = [40, 64]
    q = [draw(4, 1, 32, HALF, seed=b) for b in range(2)]
    caches = [[integers(2, n, 32, s + n) for n in lengths] for s in (1, 2)]
    heads = 1 if mode == 4 else 2
    factors = [[draw(heads, n, 1, torch.float32, seed=s + n) / 50 for n in lengths] for s in (3, 4)]
    pages = [paginate([c.to(torch.int8) for c in cache], 32, "BnBsH") for cache in caches]
    scales = [paginate(f, 32, "BnNBsD")[0].squeeze(-1) for f in factors]
    out, _ = fia(
        on_device(pack(q, "BSH")), pages[0][0], pages[1][0], block_table=pages[0][1], block_size=32,
        actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2, scale=SCALE,
        key_antiquant_scale=scales[0].squeeze(1) if mode == 4 else scales[0],
        value_antiquant_scale=scales[1].squeeze(1) if mode == 4 else scales[1],
        key_antiquant_mode=mode, value_antiquant_mode=mode,
    )  # fmt: skip
    wide = [
        [c.double() * f.double() for c, f in zip(*pair, strict=True)]
        for pair in zip(caches, factors, strict=True)
    ]
    check_cache(out, "BSH", q, *wide, HALF)


def test_key_per_channel_and_value_per_token():
    q = [draw(4, 1, 32, HALF)]
    key, value = integers(2, 6, 32, 1), integers(2, 6, 32, 2)
    channel, token = (
        make(1, 64, dtype=HALF, low=0.01, high=0.02),
        make(1, 1, 6, low=0.01, high=0.02),
    )
    out, _ = fia(
        on_device(pack(q, "BNSD")), *(on_device(c[None].to(torch.int8)) for c in (key, value)),
        num_heads=4, num_key_value_heads=2, input_layout="BNSD", scale=SCALE,
        key_antiquant_scale=channel, value_antiquant_scale=token, key_antiquant_mode=0,
        value_antiquant_mode=1,
    )  # fmt: skip
    check_cache(out, "BNSD", q, [key * spread(channel, 0, 0)], [value * spread(token, 1, 0)], HALF)


@pytest.mark.parametrize(
    "rows,shape,mode", [(1, (2, 2, 1, 32), 0), (3, (2, 64), 0), (1, (2,), 0), (1, (2, 2, 6), 1)]
)
@pytest.mark.parametrize("offset", [False, True])
def test_common_scales(rows, shape, mode, offset):
    q = [draw(4, rows, 32, HALF, seed=b) for b in range(2)]
    caches = [[integers(2, 6, 32, 10 * s + b) for b in range(2)] for s in range(2)]
    kind = torch.float32 if mode else HALF
    scale = make(*shape, dtype=kind, low=0.01, high=0.02)
    shift = make(*shape, dtype=kind, low=-9, high=9, seed=3) if offset else None
    out, _ = fia(
        on_device(pack(q, "BSND")), *(on_device(pack(c, "BSND").to(torch.int8)) for c in caches),
        num_heads=4, num_key_value_heads=2, input_layout="BSND", scale=SCALE, antiquant_scale=scale,
        antiquant_offset=shift, antiquant_mode=mode,
    )  # fmt: skip
    wide = [
        [
            (c.double() + (spread(shift[s], mode, b) if offset else 0)) * spread(scale[s], mode, b)
            for b, c in enumerate(caches[s])
        ]
        for s in range(2)
    ]
    check_cache(out, "BSND", q, *wide, HALF)


@pytest.mark.parametrize("mode,shape", [(0, (1, 2, 1, 64)), (1, (1, 1, 6)), (3, (1, 2, 6))])
def test_int4_cache(mode, shape):
    q = [draw(4, 1, 64, BRAIN)]
    caches = [integers(2, 6, 64, s, -8, 8) for s in range(2)]
    words = [
        sum((c[..., n::8] & 15) << (4 * n) for n in range(8)).to(torch.int32)[None] for c in caches
    ]
    scales = [
        make(*shape, dtype=torch.float32 if mode else BRAIN, low=0.1, high=0.2, seed=s)
        for s in range(2)
    ]
    out, _ = fia(
        on_device(pack(q, "BNSD")), *map(on_device, words), num_heads=4, num_key_value_heads=2,
        input_layout="BNSD", scale=SCALE, key_antiquant_scale=scales[0],
        value_antiquant_scale=scales[1], key_antiquant_mode=mode, value_antiquant_mode=mode,
    )  # fmt: skip
    assert out.shape == (1, 4, 1, 64)
    wide = [[c * spread(s, mode, 0)] for c, s in zip(caches, scales, strict=True)]
    check_cache(out, "BNSD", q, *wide, BRAIN)


@pytest.mark.parametrize("rows", [1, 3])
def test_int8_nz_pages_with_a_bfloat16_query(rows):
    lengths = [130, 128]
    q = [draw(4, rows, 128, BRAIN, seed=b) for b in range(2)]
    caches = [[integers(2, n, 128, s + n) for n in lengths] for s in (1, 2)]
    pages = [paginate([c.to(torch.int8) for c in cache], 128, "NZ") for cache in caches]
    scales = [make(2, 1, 128, dtype=BRAIN, low=0.01, high=0.02, seed=s) for s in range(2)]
    out, _ = fia(
        on_device(pack(q, "BNSD")), pages[0][0], pages[1][0], block_table=pages[0][1],
        block_size=128, actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2,
        input_layout="BNSD", scale=SCALE, key_antiquant_scale=scales[0],
        value_antiquant_scale=scales[1], inner_precise=1,
    )  # fmt: skip
    wide = [[c * spread(s, 0, 0) for c in cache] for cache, s in zip(caches, scales, strict=True)]
    check_cache(out, "BNSD", q, *wide, BRAIN)


@pytest.mark.parametrize("word", [torch.float32, torch.uint64, torch.int64])
@pytest.mark.parametrize("quantized", [False, True])
def test_int8_products(word, quantized):
    q, k, v = (integers(2, n, 32, n) for n in (3, 9, 10))
    v = v[:, :9]
    factors = torch.tensor([0.003, 100.0, 0.02])

    def encode(x):
        return x if word == torch.float32 else x.view(torch.int32).to(torch.int64).view(word)

    first, last = (on_device(encode(factors[n : n + 1])) for n in (0, 2))
    options = {"quant_scale2": make(1, low=0.3, high=0.4)} if quantized else {}
    out, _ = fia(
        *(on_device(t[None].to(torch.int8)) for t in (q, k, v)), num_heads=2, input_layout="BNSD",
        scale=SCALE, dequant_scale1=first, quant_scale1=on_device(factors[1:2]),
        dequant_scale2=last, **options,
    )  # fmt: skip
    scores = (q @ k.mT).double() * factors[0].double() * SCALE
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = (weights * factors[1].double()).round().clamp(-128, 127)
    want = rounded @ v.double() * factors[2].double() / weights.sum(-1, keepdim=True)
    if quantized:
        assert out.dtype == torch.int8
        want = (want * options["quant_scale2"].cpu().double()).clamp(-128, 127)
        assert (out[0].cpu().double() - want).abs().max() <= 0.501
    else:
        assert out.dtype == HALF
        assert (out[0].cpu().double() - want).abs().max() <= 2 * torch.finfo(
            HALF
        ).eps * want.abs().max()


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


def test_refuses_bad_scales():
    q, cache = make(2, 1, 64, dtype=HALF), make(2, 6, 64, dtype=torch.int8, low=-9, high=9)
    scale = make(1, 64, dtype=HALF)
    pair = {"key_antiquant_scale": scale, "value_antiquant_scale": scale, "num_heads": 2}
    refuse("'key_antiquant_scale' must be given with an integer key", q, cache, cache, num_heads=2)
    refuse(
        "'value_antiquant_scale' must be given with key_antiquant_scale",
        q,
        cache,
        cache,
        key_antiquant_scale=scale,
        num_heads=2,
    )
    refuse(
        "'key_antiquant_scale' must be of dtype torch.float16",
        q,
        cache,
        cache,
        **{**pair, "key_antiquant_scale": make(1, 64)},
    )
    refuse(
        "'value_antiquant_mode' must be key_antiquant_mode .1.",
        q,
        cache,
        cache,
        key_antiquant_mode=1,
        value_antiquant_mode=3,
        **pair,
    )
    refuse(
        "'key_antiquant_mode' must be .*received 6",
        q,
        cache,
        cache,
        key_antiquant_mode=6,
        value_antiquant_mode=6,
        **pair,
    )
    refuse(
        "in mode 0, but received .1, 32.",
        q,
        cache,
        cache,
        **{**pair, "key_antiquant_scale": make(1, 32, dtype=HALF)},
    )
    refuse(
        "'query' must be of dtype torch.bfloat16", make(2, 3, 64, dtype=HALF), cache, cache, **pair
    )
    refuse(
        "'antiquant_scale' must be left out unless key is int8",
        q,
        q,
        q,
        antiquant_scale=scale,
        num_heads=2,
    )


def test_refuses_incomplete_integer_products():
    q = make(1, 2, 3, 32, dtype=torch.int8, low=-9, high=9)
    options = {
        "num_heads": 2,
        "input_layout": "BNSD",
        "dequant_scale1": make(1),
        "quant_scale1": make(1),
    }
    refuse("'dequant_scale2' must be given with an int8 query", q, q, q, **options)
    half = make(1, 2, 3, 32, dtype=HALF)
    refuse("'dequant_scale1' must be left out unless query is int8", half, half, half, **options)
    refuse(
        "'query' must be of more than one token",
        q[:, :, :1],
        q,
        q,
        dequant_scale2=make(1),
        **options,
    )
