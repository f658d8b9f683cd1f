"""Quantized caches of `_C_ascend` on Ascend950, byte by byte: the epilogs, and attention over what they wrote."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from ascend_ops import npu, ops, replayed, run

E4M3 = torch.float8_e4m3fn


def byte(value: float, dtype: torch.dtype = E4M3) -> int:
    return int(torch.tensor([value], dtype=torch.float32).to(dtype).view(torch.uint8))


def bfloat16_bytes(values: torch.Tensor) -> list[int]:
    return values.bfloat16().contiguous().view(torch.uint8).tolist()


def single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def row_by_float(x: torch.Tensor, dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """The 8-bit floats and the float32 scales of a row, as bytes, one element after the other."""
    inverse, values, scales = single(1 / torch.finfo(dtype).max), [], []
    for start in range(0, x.numel(), 128):
        group = x[start : start + 128].double().tolist()
        scale = single(max(abs(v) for v in group if math.isfinite(v)) * inverse)
        scales += list(struct.pack("f", scale))
        for v in group:
            quotient = single(v / scale) if scale and math.isfinite(v) else v
            values.append(byte(quotient, dtype))
    return values, scales


def row_by_power(x: torch.Tensor, dtype: torch.dtype, size: int) -> tuple[list[int], list[int]]:
    limit, values, scales = torch.finfo(dtype).max, [], []
    for start in range(0, x.numel(), size):
        group = x[start : start + size].double().tolist()
        top = single(max(max(abs(v) for v in group), single(1e-4)) * single(1 / limit))
        exponent = math.frexp(top)[1]  # top < 2 ** exponent, at most twice
        scales.append(exponent + 127)
        values += [byte(min(max(v / 2.0**exponent, -limit), limit), dtype) for v in group]
    return values, scales


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
@pytest.mark.parametrize(("mode", "size"), [(1, 128), (2, 64), (2, 128)])
def test_rows(dtype, mode, size):
    x = (
        torch.randn(4, 256 + 64).bfloat16()
        * torch.tensor([[1.0], [30.0], [1e-6], [0.25]]).bfloat16()
    )
    slots = torch.tensor([3, -1, 0, 5])
    cache = torch.zeros(6, 1, 512, dtype=torch.uint8).view(dtype)
    before = cache.view(torch.uint8).fill_(7).clone()
    (device,) = npu(cache)
    ops.kv_compress_epilog(device, *npu(x, slots), size, mode, True, 1)
    got = device.cpu().view(torch.uint8)
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        first, rope = x[row, :-64], bfloat16_bytes(x[row, -64:])
        if mode == 1:
            values, scales = row_by_float(first, dtype)
            expected = values + rope + scales
        else:
            values, scales = row_by_power(first, dtype, size)
            expected = rope + values + scales
        expected += [0] * (-len(expected) % 128)
        assert got[slot, 0, : len(expected)].tolist() == expected
        before[slot, 0, : len(expected)] = got[slot, 0, : len(expected)]
    assert torch.equal(got, before)  # nothing else was written


def test_a_power_of_two_still_doubles_its_scale():
    """448 / 448 is 1, and the kernel's scale for it 2."""
    x = torch.zeros(1, 128).bfloat16()
    x[0, 0] = 448
    (cache,) = npu(torch.zeros(1, 1, 256, dtype=torch.uint8).view(E4M3))
    ops.kv_compress_epilog(cache, *npu(x, torch.tensor([0])), 64, 2, True, 1)
    data = cache.cpu().view(torch.uint8)[0, 0]
    assert data[128].item() == byte(224.0)
    assert data[128 + 64].item() == 128


def test_scales_behind_the_tokens_of_a_block():
    x = torch.randn(3, 192).bfloat16()
    slots = torch.tensor([5, 0, 2], dtype=torch.int32)
    block, value, scale = 4, 128 + 128, 8
    (cache,) = npu(torch.zeros(2, block, 1, value + scale, dtype=torch.uint8).view(E4M3))
    ops.kv_compress_epilog(cache, *npu(x, slots), 64, 2, True, 2)
    data = cache.cpu().view(torch.uint8).view(2, -1)
    for row, slot in enumerate(slots.tolist()):
        page, place = divmod(slot, block)
        values, scales = row_by_power(x[row, :-64], E4M3, 64)
        start = place * value
        assert data[page, start : start + value].tolist() == values + bfloat16_bytes(x[row, -64:])
        start = block * value + place * scale
        assert data[page, start : start + len(scales)].tolist() == scales


def test_indexer():
    x = torch.randn(3, 1, 256).bfloat16()
    x[1, 0, :128] = 0
    x[2, 0, 5] = torch.inf
    slots = torch.tensor([1, 6, 3], dtype=torch.int32)
    (cache,) = npu(torch.zeros(2, 4, 1, 256 + 8, dtype=torch.uint8))
    ops.indexer_compress_epilog_v2(cache, *npu(x, slots))
    data = cache.cpu().view(2, -1)
    for row, slot in enumerate(slots.tolist()):
        page, place = divmod(slot, 4)
        values, scales = row_by_float(x[row, 0], E4M3)
        assert data[page, place * 256 : (place + 1) * 256].tolist() == values
        start = 4 * 256 + place * 8
        assert data[page, start : start + 8].tolist() == scales


def test_indexer_warms_up_with_one_token():
    (cache,) = npu(torch.zeros(1, 1, 1, 128, dtype=torch.uint8))
    ops.indexer_compress_epilog_v2(cache, *npu(torch.ones(1, 128).bfloat16(), torch.zeros(1).int()))
    assert cache.cpu().unique().tolist() == [byte(448.0)]


def test_replay_writes_what_changed():
    x, slots = npu(torch.zeros(2, 128).bfloat16(), torch.tensor([1, -1]))
    (cache,) = npu(torch.zeros(3, 1, 256, dtype=torch.uint8).view(E4M3))
    fresh = torch.randn(2, 128).bfloat16()

    def change():
        x.copy_(fresh)
        slots.copy_(torch.tensor([-1, 2]))

    replayed(lambda: ops.kv_compress_epilog(cache, x, slots, 64, 2, True, 1), change)
    (other,) = npu(torch.zeros(3, 1, 256, dtype=torch.uint8).view(E4M3))
    ops.kv_compress_epilog(other, x, npu(torch.tensor([-1, 2]))[0], 64, 2, True, 1)
    got, expected = (t.cpu().view(torch.uint8) for t in (cache, other))
    assert torch.equal(got[2], expected[2])


def test_what_does_not_fit_raises():
    x, slots = npu(torch.randn(2, 128).bfloat16(), torch.tensor([0, 1]))
    (small,) = npu(torch.zeros(2, 1, 128, dtype=torch.uint8).view(E4M3))
    with pytest.raises(RuntimeError, match="'kv_compress_cache' must be of at least 256 bytes"):
        ops.kv_compress_epilog(small, x, slots, 64, 2, True, 1)
    with pytest.raises(RuntimeError, match="'quant_group_size' must be 64 or 128"):
        ops.kv_compress_epilog(small, x, slots, 32, 2, True, 1)
    with pytest.raises(RuntimeError, match="'slot_mapping' must be of shape"):
        ops.kv_compress_epilog(small, x, slots[:1], 64, 2, True, 1)
    with pytest.raises(RuntimeError, match="'layout' must be 2"):
        ops.indexer_compress_epilog_v2(small.view(torch.uint8).unsqueeze(2), x, slots.int(), 1)


# --- attention ------------------------------------------------------------------------------------------

HEADS, WIDTH, ROPE, TILE, BLOCK, WINDOW, RATIO = 4, 192, 64, 64, 16, 5, 4


def written(tokens: torch.Tensor, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache with the tokens in its first slots, by the epilog, and the values that they stand for, in float64."""
    width = 2 * ROPE + (WIDTH - ROPE) + (WIDTH - ROPE) // TILE
    width += -width % 128
    (cache,) = npu(torch.zeros(pages * BLOCK, 1, width, dtype=torch.uint8).view(E4M3))
    ops.kv_compress_epilog(cache, *npu(tokens, torch.arange(len(tokens))), TILE, 2, True, 1)
    values = []
    for token in tokens:
        floats, scales = row_by_power(token[:-ROPE], E4M3, TILE)
        decoded = torch.tensor(floats, dtype=torch.uint8).view(E4M3).double()
        factor = torch.tensor([2.0 ** (s - 127) for s in scales]).double().repeat_interleave(TILE)
        values.append(torch.cat(((decoded * factor).bfloat16(), token[-ROPE:])).double())
    return cache.view(torch.uint8).view(pages, BLOCK, 1, -1).view(E4M3), torch.stack(values)


@pytest.mark.parametrize(("compressed", "chosen"), [(False, False), (True, False), (True, True)])
def test_attention_over_quantized_caches(compressed, chosen):
    rows, length = 3, 21
    q = torch.randn(rows, HEADS, WIDTH).bfloat16()
    cache, values = written(torch.randn(length, WIDTH).bfloat16(), 2)
    packed, smaller = written(torch.randn(length // RATIO, WIDTH).bfloat16(), 1)
    sinks = torch.randn(HEADS)
    indices = torch.tensor([[3, 1, -1], [4, 0, 2], [0, -1, -1]], dtype=torch.int32).unsqueeze(1)
    given = {
        "ori_kv": cache, "ori_block_table": torch.tensor([[0, 1]]).int(),
        "cu_seqlens_q": torch.tensor([0, rows]).int(), "seqused_kv": torch.tensor([length]).int(),
        "sinks": sinks, "metadata": torch.zeros(1024).int(), "tile_size": TILE, "rope_head_dim": ROPE,
        "softmax_scale": 0.07, "cmp_ratio": RATIO, "ori_win_left": WINDOW, "layout_q": "TND",
    }  # fmt: skip
    if compressed:
        given |= {"cmp_kv": packed, "cmp_block_table": torch.tensor([[0]]).int()}
    if chosen:
        given["cmp_sparse_indices"] = indices
    out, _ = run(ops.npu_kv_quant_sparse_attn_sharedkv, q, 1, **given)
    expected = torch.zeros(q.shape).double()
    for row in range(rows):
        position = length - rows + row
        seen = [values[p] for p in range(max(0, position - WINDOW), position + 1)]
        if compressed:
            there = [c for c in range(len(smaller)) if (c + 1) * RATIO <= position + 1]
            picked = indices[row, 0].tolist() if chosen else there
            seen += [smaller[c] for c in picked if c in there]
        keys = torch.stack(seen)
        for head in range(HEADS):
            scores = torch.cat(
                (0.07 * keys @ q[row, head].double(), sinks[head : head + 1].double())
            )
            expected[row, head] = scores.softmax(0)[:-1] @ keys
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)


def test_attention_refuses():
    q = torch.randn(1, HEADS, WIDTH).bfloat16().npu()
    with pytest.raises(RuntimeError, match="'kv_quant_mode' must be 1"):
        ops.npu_kv_quant_sparse_attn_sharedkv(q, 0)
    options = {"layout_q": "TND", "cu_seqlens_q": torch.tensor([0, 1]).int().npu()}
    with pytest.raises(RuntimeError, match="'seqused_kv' must be given"):
        ops.npu_kv_quant_sparse_attn_sharedkv(q, 1, **options)


def test_metadata():
    lengths = torch.tensor([3]).int().npu()
    made = ops.npu_kv_quant_sparse_attn_sharedkv_metadata(64, 1, 512, 1, seqused_kv=lengths)
    assert made.device.type == "npu"
    assert made.shape == (1024,)
