"""Attention of a few query rows over caches of keys and values: heads side by side or apart, in pages, of any width."""

from __future__ import annotations

import pytest
import torch

import torch_npu  # noqa: F401

BATCH, KV_HEADS = 2, 3
HALF = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def cache(length, width, dtype, together, seed):
    """(B, heads, tokens, width): the heads of a token side by side, or the tokens of a head."""
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, length, KV_HEADS, width) if together else (BATCH, KV_HEADS, length, width)
    made = torch.randn(shape, generator=generator).to(dtype)
    return made.transpose(1, 2) if together else made


def reference(query, key, value, scale, hidden=None):
    """(output, maximum, sum of exponentials) in fp64, one head of queries after the other."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.double().repeat_interleave(group, 1) for t in (key, value))
    scores = query.double() @ key.transpose(2, 3) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    return weights @ value / weights.sum(-1, keepdim=True), top, weights.sum(-1, keepdim=True)


def run(query, key, value, **options):
    out = query.new_full((*query.shape[:3], value.shape[3]), float("nan"))
    most, total = (torch.empty(*query.shape[:3], 1) for _ in range(2))
    torch.ops.softnpu.attention(query, key, value, out, most, total, **options)
    return out, most, total


def compare(found, want):
    out, most, total = found
    torch.testing.assert_close(
        out.double(), want[0], atol=HALF[out.dtype] * 4, rtol=HALF[out.dtype]
    )
    torch.testing.assert_close(most.double(), want[1], atol=2e-5, rtol=2e-6)
    torch.testing.assert_close(total.double(), want[2], atol=0, rtol=1e-4)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "width,values", [(128, 128), (64, 96), (40, 33), (7, 80), (1, 1), (192, 128)]
)
def test_widths_and_layouts(dtype, together, width, values):
    for group, length in ((1, 1), (4, 300), (3, 261)):
        query = torch.randn(BATCH, KV_HEADS * group, 1, width).to(dtype)
        key = cache(length, width, dtype, together, 1)
        value = cache(length, values, dtype, together, 2)
        compare(run(query, key, value, scale=0.3), reference(query, key, value, 0.3))


@pytest.mark.parametrize("rows,group", [(1, 16), (2, 7), (3, 5), (5, 3), (16, 1), (4, 4)])
def test_rows_of_a_group(rows, group):
    """Several query tokens with a causal band, where the last of them sees everything."""
    length, width = 530, 48
    query = torch.randn(BATCH, KV_HEADS * group, rows, width).bfloat16()
    key, value = (cache(length, width, torch.bfloat16, True, seed) for seed in (3, 4))
    late = torch.arange(length) > torch.arange(rows)[:, None] + length - rows
    found = run(query, key, value, scale=0.2, band_high=[length - rows])
    compare(found, reference(query, key, value, 0.2, late))


def test_lengths_and_pages():
    """Segments of other lengths, one of them 0, over pages in any order."""
    size, width, lengths = 16, 64, [37, 0]
    query = torch.randn(BATCH, KV_HEADS * 2, 1, width).bfloat16()
    key, value = (cache(48, width, torch.bfloat16, True, seed) for seed in (5, 6))
    order = torch.randperm(BATCH * 3, generator=torch.Generator().manual_seed(0))
    pages = order.argsort().view(BATCH, 3)

    def paged(tokens):
        blocks = tokens.transpose(1, 2).reshape(-1, size, KV_HEADS, width)
        return blocks[order].transpose(1, 2)

    found = run(
        query, paged(key), paged(value), scale=0.5, pages=pages, q_len=[1, 1], kv_len=lengths
    )
    first = [t[:1] for t in found]
    compare(first, reference(query[:1], key[:1, :, :37], value[:1, :, :37], 0.5))
    assert torch.equal(found[0][1], torch.zeros_like(found[0][1]))


def test_nothing_past_the_row_is_read():
    """Widths that are no whole vectors, at the end of a storage; what follows the tensors is NaN."""
    width, length = 72, 65
    room = torch.full((length * KV_HEADS * width + 64,), float("nan")).bfloat16()
    key = room[: length * KV_HEADS * width].view(1, length, KV_HEADS, width).copy_(torch.ones(()))
    query = torch.ones(1, KV_HEADS, 1, width).bfloat16()
    out, most, total = run(query, key.transpose(1, 2), key.transpose(1, 2), scale=1 / width)
    assert torch.equal(out, torch.ones_like(out))
    assert most.unique().tolist() == [1.0]
    assert total.unique().tolist() == [65.0]


def test_mask_and_sink():
    width, length, group = 32, 90, 2
    query = torch.randn(BATCH, KV_HEADS * group, 1, width).half()
    key, value = (cache(length, width, torch.float16, True, seed) for seed in (7, 8))
    hidden = torch.rand(BATCH, 1, 1, length, generator=torch.Generator().manual_seed(1)) > 0.4
    compare(
        run(query, key, value, scale=0.2, mask=hidden), reference(query, key, value, 0.2, hidden)
    )
    sink = torch.linspace(-1, 2, KV_HEADS * group)
    found = run(query, key, value, scale=0.2, mask=hidden, sink=sink)
    out, top, total = reference(query, key, value, 0.2, hidden)
    more = total + (sink.double()[:, None, None] - top).exp()
    torch.testing.assert_close(found[0].double(), out * total / more, atol=2e-3, rtol=2e-3)
