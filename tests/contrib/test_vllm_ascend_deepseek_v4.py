"""DeepSeek-V4's operators of `_C_ascend` against formulas in float64, token by token."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops, replayed, run


@pytest.mark.parametrize("shape", [(3, 4, 16), (2, 1, 4, 32)])
def test_hyper_connections(shape):
    x = torch.randn(shape).bfloat16()
    *tokens, n, width = shape
    weight, scale, base = torch.randn(24, n * width) / 8, torch.rand(3), torch.randn(24)
    layer, post, comb = run(ops.npu_hc_pre_v2, x, weight, scale, base, 4, 5, 1e-6, 1e-3)
    flat = x.double().flatten(-2)
    maps = flat @ weight.double().t() / (flat.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    factors = scale.double().repeat_interleave(torch.tensor([4, 4, 16]))
    maps = maps * factors + base.double()
    gate = 1 / (1 + (-maps[..., :4]).exp()) + 1e-3
    expected = sum(gate[..., i, None] * x[..., i, :].double() for i in range(4))
    torch.testing.assert_close(layer.double(), expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(
        post.double(), 2 / (1 + (-maps[..., 4:8]).exp()), atol=2e-3, rtol=2e-3
    )
    matrix = maps[..., 8:].unflatten(-1, (4, 4)).softmax(-1) + 1e-3
    for step in range(9):
        matrix = matrix / (matrix.sum(-1 if step % 2 else -2, keepdim=True) + 1e-3)
    torch.testing.assert_close(comb.double(), matrix, atol=2e-3, rtol=2e-3)
    with pytest.raises(RuntimeError, match="'hc_fn' must be of shape"):
        ops.npu_hc_pre_v2(*npu(x, weight[:8], scale, base), 4, 5, 1e-6, 1e-3)


def test_streams_after_a_layer():
    x, streams = torch.randn(2, 3, 8).bfloat16(), torch.randn(2, 3, 4, 8).bfloat16()
    post, comb = torch.rand(2, 3, 4), torch.rand(2, 3, 4, 4)
    out = run(ops.npu_hc_post, x, streams, post, comb)
    for j in range(4):
        expected = post[..., j, None].double() * x.double()
        for i in range(4):
            expected = expected + comb[..., i, j, None].double() * streams[..., i, :].double()
        torch.testing.assert_close(out[..., j, :].double(), expected, atol=3e-2, rtol=2e-2)
    with pytest.raises(RuntimeError, match="'comb' must be of shape"):
        ops.npu_hc_post(*npu(x, streams, post, comb[..., :2]))


@pytest.mark.parametrize("kind", [1, 2])
def test_compressor_metadata(kind):
    """Requests of 5, 4 and 1 tokens from positions 2, 3 and 11 on, ratio 4, blocks of 2 compressed tokens."""
    cos, sin = torch.randn(16, 6), torch.randn(16, 6)
    bounds, starts = torch.tensor([0, 5, 9, 10, 30]).int(), torch.tensor([2, 3, 11, 99]).int()
    table = torch.tensor([[3, 8], [-1, 5], [1, 6]]).int()
    given = (cos, sin, bounds, starts, table, 2, kind, 4)
    out = run(ops.compressor_metadata, *given, 5, 3)
    # groups that end: request 0 group 0 (2..6), request 1 group 0, request 2 group 2
    rows = [(3, 0, 0), None, (6, 0, 8), None, None]
    for row, expected in enumerate(rows):
        if expected is None:
            assert (out[0][row] == 1).all() and not out[1][row].any()
            assert out[2][row].tolist() == ([-1, 1] if kind == 2 else -1)
        else:
            block, offset, token = expected
            assert torch.equal(out[0][row, 0, 0], cos[token])
            assert torch.equal(out[1][row, 0, 0], sin[token])
            slot = [block, offset] if kind == 2 else 2 * block + offset
            assert out[2][row].tolist() == slot
    targets = [torch.full_like(t, 7).npu() for t in out]
    ops.compressor_metadata_out(*npu(*given[:5]), *given[5:], 3, *targets)
    assert all(torch.equal(t.cpu(), o) for t, o in zip(targets, out))
    with pytest.raises(RuntimeError, match="'cu_seqlens' must be of at least 6 rows"):
        ops.compressor_metadata(*npu(*given[:5]), *given[5:], 5, 5)


def pages(tokens, block, table):
    """A cache (blocks, block, 1, ...) in which each sequence's tokens lie in the blocks of its table."""
    cache = torch.randn(int(table.max()) + 2, block, 1, tokens[0].shape[-1]).to(tokens[0].dtype)
    for index, sequence in enumerate(tokens):
        for place, token in enumerate(sequence):
            cache[table[index, place // block], place % block, 0] = token
    return cache


@pytest.mark.parametrize("case", ["window", "all", "chosen"])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_over_shared_keys(case, sinks):
    heads, width, ratio, left, block = 3, 16, 4, 3, 4
    lengths, rows = [13, 6], [3, 6]
    bounds = torch.tensor([0, *rows]).cumsum(0).int()
    q = torch.randn(sum(rows), heads, width).bfloat16()
    own = [torch.randn(n, width).bfloat16() for n in lengths]
    small = [torch.randn(n // ratio, width).bfloat16() for n in lengths]
    table = torch.tensor([[2, 0, 5, 1], [3, 6, 0, 0]]).int()
    small_table = torch.tensor([[1, 0], [2, 0]]).int()
    sink = torch.randn(heads) if sinks else None
    chosen = torch.full((sum(rows), 1, 3), -1, dtype=torch.int32)
    options = {
        "ori_kv": pages(own, block, table), "ori_block_table": table, "cu_seqlens_q": bounds,
        "seqused_kv": torch.tensor(lengths).int(), "sinks": sink, "softmax_scale": 0.3,
        "ori_win_left": left, "layout_q": "TND",
    }  # fmt: skip
    if case != "window":
        options |= {"cmp_kv": pages(small, block, small_table), "cmp_block_table": small_table}
        options["cmp_ratio"] = ratio
    expected = torch.zeros(q.shape).double()
    for n, length in enumerate(lengths):
        for i in range(rows[n]):
            row, position = int(bounds[n]) + i, length - rows[n] + i
            keys = [own[n][t] for t in range(max(0, position - left), position + 1)]
            seen = list(range((position + 1) // ratio))
            if case == "chosen":
                seen = seen[::-1][:2]
                chosen[row, 0, : len(seen)] = torch.tensor(seen, dtype=torch.int32)
            keys += [small[n][c] for c in seen] if case != "window" else []
            key = torch.stack(keys).double()
            for h in range(heads):
                score = (key @ q[row, h].double()) * 0.3
                total = score.exp().sum() + (sink[h].double().exp() if sinks else 0)
                expected[row, h] = (score.exp() / total) @ key
    if case == "chosen":
        options["cmp_sparse_indices"] = chosen
    out, lse = run(ops.npu_sparse_attn_sharedkv, q, **options)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    assert lse.numel() == 0


def test_attention_over_shared_keys_is_captured_and_checked():
    q, kv = npu(torch.randn(1, 2, 2, 8).half(), torch.randn(2, 4, 1, 8).half())
    table, length = torch.tensor([[1, 0]]).int().npu(), torch.tensor([6]).int().npu()
    options = {"ori_kv": kv, "ori_block_table": table, "seqused_kv": length, "softmax_scale": 1.0}
    out = replayed(lambda: ops.npu_sparse_attn_sharedkv(q, **options)[0], lambda: length.fill_(3))
    assert torch.equal(out, ops.npu_sparse_attn_sharedkv(q, **options)[0])
    metadata = ops.npu_sparse_attn_sharedkv_metadata(2, 1, 8, seqused_kv=length, device="npu:0")
    assert metadata.shape == (1024,) and metadata.device == q.device
    assert ops.npu_vllm_quant_lightning_indexer_metadata(64, 1, 128, 0, 0).shape == (1024,)
    with pytest.raises(NotImplementedError, match="'ori_sparse_indices' must be left at None"):
        ops.npu_sparse_attn_sharedkv(q, ori_sparse_indices=table, **options)
    with pytest.raises(RuntimeError, match="'cmp_ratio' must be positive with 'cmp_kv'"):
        ops.npu_sparse_attn_sharedkv(q, cmp_kv=kv, cmp_block_table=table, **options)


@pytest.mark.parametrize("mode", [0, 3])
def test_indexer_over_compressed_keys(mode):
    heads, width, ratio, block = 4, 32, 4, 4
    lengths, rows = [30, 9], [5, 2]
    q = torch.randint(-99, 99, (sum(rows), heads, width), dtype=torch.int8)
    keys = [torch.randint(-99, 99, (n // ratio, width), dtype=torch.int8) for n in lengths]
    scales = [torch.rand(n // ratio, 1).half() / 50 + 0.01 for n in lengths]
    table = torch.tensor([[3, 1], [0, 2]]).int()
    weights, step = torch.rand(sum(rows), heads).half(), torch.rand(sum(rows), heads).half() / 50
    indices, values = run(
        ops.npu_vllm_quant_lightning_indexer, q, pages([k.float() for k in keys], block, table).to(
            torch.int8
        ), weights, step, pages(scales, block, table)[..., 0].half(),
        actual_seq_lengths_query=torch.tensor(rows).cumsum(0).int(),
        actual_seq_lengths_key=torch.tensor(lengths).int(), block_table=table,
        layout_query="TND", layout_key="PA_BSND", sparse_count=4, sparse_mode=mode,
        cmp_ratio=ratio,
    )  # fmt: skip
    assert values.numel() == 0
    row = 0
    for n, length in enumerate(lengths):
        for i in range(rows[n]):
            position = length - rows[n] + i
            seen = length // ratio if mode == 0 else (position + 1) // ratio
            score = torch.zeros(seen).double()
            for h in range(heads):
                product = keys[n][:seen].double() @ q[row, h].double()
                product = product * scales[n][:seen, 0].double() * step[row, h].double()
                score += weights[row, h].double() * product.clamp(min=0)
            best = score.argsort(descending=True)[:4].tolist()
            got = indices[row, 0].tolist()
            assert got[: len(best)] == best and set(got[len(best) :]) <= {-1}
            row += 1


@pytest.mark.parametrize("coff", [1, 2])
def test_compressor_goes_on_from_its_state(coff):
    """Two steps over two sequences; the groups of a sequence are those of all its tokens at once."""
    ratio, width, hidden, rope, block = 4, 8, 16, 4, 4
    whole = [torch.randn(n, hidden).bfloat16() for n in (11, 9)]
    weights = [(torch.randn(coff * width, hidden) / 4).bfloat16() for _ in range(2)]
    ape, gamma = torch.randn(ratio, coff * width), torch.randn(width).bfloat16()
    cos, sin = torch.randn(6, rope).bfloat16(), torch.randn(6, rope).bfloat16()
    cache, table = (
        torch.zeros(7, block, 2 * coff * width).npu(),
        torch.tensor([[1, 2, 3], [4, 5, 6]]),
    )
    found = [[], []]
    for starts, ends in (([0, 0], [6, 3]), ([6, 3], [11, 9])):
        parts = [w[a:b] for w, a, b in zip(whole, starts, ends)]
        bounds = torch.tensor([0, len(parts[0]), len(parts[0]) + len(parts[1])]).int()
        out = ops.compressor(
            *npu(torch.cat(parts), *weights), cache, *npu(ape, gamma, sin[:5], cos[:5]),
            *npu(table.int(), bounds), None, torch.tensor(starts).int().npu(), rope, ratio, coff,
            1e-6, 2, 1,
        ).cpu()  # fmt: skip
        assert out.shape == (5, width) and out.dtype == torch.bfloat16
        row = 0
        for n in range(2):
            for group in range(starts[n] // ratio, ends[n] // ratio):
                found[n].append((group, row, out[row].double()))
                row += 1
        assert not out[row:].any()
    for n, sequence in enumerate(whole):
        assert [group for group, _, _ in found[n]] == list(range(len(sequence) // ratio))
        value, score = (sequence.double() @ w.double().t() for w in weights)
        for group, row, got in found[n]:
            first = group * ratio
            columns = []
            for channel in range(width):
                terms = []
                for p in range(first - (coff - 1) * ratio, first + ratio):
                    c = channel + (coff - 1) * width * (p >= first)
                    if p >= 0:
                        terms.append((score[p, c] + ape[p % ratio, c].double(), value[p, c]))
                total = sum(s.exp() for s, _ in terms)
                columns.append(sum(s.exp() / total * v for s, v in terms))
            one = torch.stack(columns)
            one = one / (one.square().mean() + 1e-6).sqrt() * gamma.double()
            tail, turned = one[-rope:], one[-rope:].clone()
            for i in range(0, rope, 2):
                turned[i] = tail[i] * cos[row, i] - tail[i + 1] * sin[row, i]
                turned[i + 1] = tail[i + 1] * cos[row, i + 1] + tail[i] * sin[row, i + 1]
            expected = torch.cat((one[:-rope], turned))
            torch.testing.assert_close(got, expected, atol=3e-2, rtol=3e-2)
    assert not cache[0].any()


def test_a_compressor_that_does_not_fit_raises():
    x, weight = torch.randn(4, 16).half(), torch.randn(8, 16).half()
    rest = torch.zeros(2, 4, 16), torch.zeros(4, 8), torch.zeros(8).half()
    rope, table = torch.zeros(2, 4).half(), torch.tensor([[1]]).int()
    bounds, tail = torch.tensor([0, 4]).int(), (4, 4, 1, 1e-6, 2, 1)
    with pytest.raises(RuntimeError, match="'wgate' must be of shape"):
        ops.compressor(
            *npu(x, weight, weight[:4], *rest, rope, rope, table, bounds), None, None, *tail
        )
    with pytest.raises(RuntimeError, match="'cu_seqlens' must be given"):
        ops.compressor(*npu(x, weight, weight, *rest, rope, rope, table), None, None, None, *tail)
