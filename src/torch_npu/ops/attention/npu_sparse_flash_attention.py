"""npu_sparse_flash_attention and its gradient: latent attention over chosen keys."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _sparse, _sparse_attend

HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
#: what the gradient takes on Ascend950
GRADIENT_HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
ABSORB = 2


@npu_op(
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    "int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, "
    "int attention_mode=0, bool return_softmax_lse=False, Tensor? sinks=None) "
    "-> (Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, False),
    core="MIX_AIC",
    product=True,
)
def npu_sparse_flash_attention(
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    query_rope,
    key_rope,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    return_softmax_lse,
    sinks,
):
    r"""Attention of each query over the keys that its `sparse_indices` choose, in the absorbed form of MLA.

    $$ out = \mathrm{softmax}(scale \cdot [q, q_r] [\tilde K, \tilde K_r]^T) \tilde V $$

    Index b chooses the tokens from b * `sparse_block_size` on; the first negative index ends a row. Queries without
    keys give 0.

    Args:
        query: (B, S1, N, 512) or TND (T1, N, 512); bfloat16 or float16; N a power of two up to 128, any up to 128 on
            Ascend950.
        key: (B, S2, 1, 512), TND (T2, 1, 512) or PA_BSND (blocks, block, 1, 512).
        value: like `key`.
        sparse_indices: (B, S1, 1, n) or (T1, 1, n), int32.
        scale_value: factor of the scores.
        block_table: (B, blocks), int32, in PA_BSND.
        actual_seq_lengths_query: int32; tokens of each sequence, sums of them in TND, where it is needed.
        actual_seq_lengths_kv: the same for keys; needed in TND and PA_BSND, in which it holds no sums.
        query_rope: (..., N, 64), needed.
        key_rope: (..., 1, 64), needed.
        sparse_block_size: tokens of an index, a power of two up to 128; 1 on Ascend950. Divides the block in PA_BSND.
        layout_query: 'BSND' or 'TND'.
        layout_kv: 'PA_BSND' or `layout_query`.
        sparse_mode: 0, or 3 for a causal edge at the lower right corner.
        pre_tokens: left at its default.
        next_tokens: left at its default.
        attention_mode: 2, the absorbed form.
        return_softmax_lse: whether the maxima and sums are returned, not in PA_BSND.
        sinks: (N,), float32, Ascend950: a score that each head's softmax also counts; not in PA_BSND.

    Returns:
        The attention, like `query`; the maxima and the sums of the scores, (B, 1, S1, N) or (1, T1, N), float32,
        empty without `return_softmax_lse`.
    """
    out, peaks, sums = _results(query, key, return_softmax_lse)
    out.zero_()
    rows = torch.cat((_sparse.tokens(query), _sparse.tokens(query_rope)), -1)
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    target = _sparse.tokens(out)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv)
    for span in _sparse.spans(query, key, layout_query, layout_kv, *lengths):
        own = slice(span.start, span.start + span.rows)
        source = tuple(
            _sparse.keys(t, span, layout_kv, block_table)[:, 0] for t in (key, key_rope, value)
        )
        keys, values = wide(torch.cat(source[:2], -1)), wide(source[2])
        if span.columns == 0:
            continue
        blocks = _sparse_attend.parts(
            span, sparse_mode, places[own], sparse_block_size, keys.shape[1]
        )
        for part, place, unseen in blocks:
            found, peak, total = _sparse_attend.forward(
                wide(rows[own]), keys, values, part, place, unseen, scale_value, sinks
            )
            where = slice(span.start + part.start, span.start + part.stop)
            target[where] = found.to(out.dtype)
            if return_softmax_lse:
                _by_token(peaks, query)[where] = peak
                _by_token(sums, query)[where] = total
    return out, peaks, sums


@npu_sparse_flash_attention.native
def _(
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    query_rope,
    key_rope,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    return_softmax_lse,
    sinks,
):
    out, peaks, sums = _results(query, key, return_softmax_lse)
    rows, turned = _sparse.tokens(query), _sparse.tokens(query_rope)
    target, heads = _sparse.tokens(out), query.shape[-2]
    spans = _sparse.spans(
        query, key, layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv
    )
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    chosen, kept = _sparse_attend.chosen_rows(
        spans, rows.shape[0], sparse_mode, places, sparse_block_size, key, layout_kv, block_table
    )
    keys, ropes, values = (_sparse.tokens(t)[:, 0] for t in (key, key_rope, value))
    for part in _sparse.steps(rows.shape[0], heads * chosen.shape[1]):
        width = max(1, int(kept[part].max()))
        own = chosen[part, :width]
        bias = wide(turned[part]) @ wide(ropes[own]).mT * scale_value
        found = _sparse_attend.natively(
            rows[part], keys, values, own, kept[part], scale_value, sinks, bias
        )
        target[part] = found[0]
        if return_softmax_lse:
            _by_token(peaks, query)[part], _by_token(sums, query)[part] = found[1:]
    return out, peaks, sums


def _by_token(statistics, query):
    """A view (tokens, N) of maxima or sums (B, 1, S, N) or (1, T, N)."""
    return statistics.view(-1, query.shape[-2])


def _results(query, key, return_softmax_lse):
    shape: tuple[int, ...]
    if not return_softmax_lse:
        shape = (0,)
    elif query.dim() == 3:
        shape = (1, query.shape[0], query.shape[1])
    else:
        shape = (query.shape[0], 1, query.shape[1], query.shape[2])
    new = [query.new_zeros(shape, dtype=torch.float32) for _ in range(2)]
    return query.new_empty(query.shape), *new


@npu_sparse_flash_attention.meta
def _(query, key, return_softmax_lse):
    return _results(query, key, return_softmax_lse)


@npu_sparse_flash_attention.check
def _(
    query,
    key,
    value,
    sparse_indices,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    query_rope,
    key_rope,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
    return_softmax_lse,
    sinks,
):
    _sparse.check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    named = {"key": key, "value": value, "query_rope": query_rope, "key_rope": key_rope}
    must.choice("attention_mode", attention_mode, (ABSORB,))
    must.present("query_rope", query_rope, "with attention_mode 2")
    must.present("key_rope", key_rope, "with attention_mode 2")
    for name, tensor in named.items():
        must.same_dtype(name, tensor, "query", query)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv, block_table)
    names = ("actual_seq_lengths_query", "actual_seq_lengths_kv", "layout_query", "layout_kv")
    _sparse.check_layouts(query, key, layout_query, layout_kv, *lengths, names)
    check_heads(query.shape[-2])
    must.hold(query.shape[-1] == 512, "query", "of head size 512", query.shape[-1])
    must.hold(tuple(key.shape[-2:]) == (1, 512), "key", "of 1 head of 512", tuple(key.shape))
    must.shape("value", value, tuple(key.shape))
    must.shape("query_rope", query_rope, (*query.shape[:-1], 64))
    must.shape("key_rope", key_rope, (*key.shape[:-1], 64))
    check_indices(query, key, sparse_indices, sparse_block_size, layout_kv, 128)
    must.choice("sparse_mode", sparse_mode, (0, 3))
    _sparse.check_tokens_limits(pre_tokens, next_tokens)
    if return_softmax_lse:
        paged = layout_kv == "PA_BSND"
        expected = "False with layout_kv 'PA_BSND'"
        must.hold(not paged, "return_softmax_lse", expected, return_softmax_lse)
    check_sinks(sinks, query)
    paged = layout_kv == "PA_BSND"
    must.hold(sinks is None or not paged, "sinks", "None with layout_kv 'PA_BSND'", "a tensor")


def check_heads(heads, new=range(1, 129)):
    """A power of two up to 128; Ascend950 takes those of `new`."""
    counts = new if _sparse.new_chip() else HEADS
    expected = (
        "of 1 to 128 heads" if isinstance(counts, range) else f"of {must.one_of(counts)} heads"
    )
    must.hold(heads in counts, "query", expected, heads)


def check_sinks(sinks, query):
    """A float32 for each head, on Ascend950."""
    if sinks is not None:
        _sparse.check_family("sinks", "A5")
        must.dtype("sinks", sinks, torch.float32)
        must.shape("sinks", sinks, (query.shape[-2],))


def check_indices(query, key, indices, size, layout_kv, most):
    """The positions and how many tokens each stands for."""
    must.dtype("sparse_indices", indices, torch.int32)
    must.shape("sparse_indices", indices, (*query.shape[:-2], 1, None))
    must.hold(indices.shape[-1] > 0, "sparse_indices", "not empty", tuple(indices.shape))
    if _sparse.new_chip():
        must.hold(size == 1, "sparse_block_size", "1 on Ascend950", size)
    powers = [2**i for i in range(8) if 2**i <= most]
    must.hold(size in powers, "sparse_block_size", f"a power of two up to {most}", size)
    if layout_kv == "PA_BSND":
        block = key.shape[1]
        expected = f"a divisor of the {block} tokens of a block"
        must.hold(block % size == 0, "sparse_block_size", expected, size)


@npu_sparse_flash_attention.backward
def _(
    grad,
    *,
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    sparse_block_size,
    query_rope,
    key_rope,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    layout_query,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
    return_softmax_lse,
    result0,
    result1,
    result2,
):
    if not return_softmax_lse:
        raise RuntimeError("npu_sparse_flash_attention: gradients need return_softmax_lse=True")
    names = ("query", "key", "value", "query_rope", "key_rope")
    found = npu_sparse_flash_attention_grad(
        query,
        key,
        value,
        sparse_indices,
        grad,
        result0,
        result1,
        result2,
        scale_value,
        sparse_block_size,
        query_rope,
        key_rope,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        layout_query,
        sparse_mode,
        pre_tokens,
        next_tokens,
        attention_mode,
    )
    return dict(zip(names, found, strict=True))


@npu_op(
    "npu_sparse_flash_attention_grad(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "Tensor d_out, Tensor out, Tensor softmax_max, Tensor softmax_sum, float scale_value, "
    "int sparse_block_size, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, "
    'str? layout="BSND", int? sparse_mode=3, int? pre_tokens=9223372036854775807, '
    "int? next_tokens=9223372036854775807, int? attention_mode=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_sparse_flash_attention_grad(
    query,
    key,
    value,
    sparse_indices,
    d_out,
    out,
    softmax_max,
    softmax_sum,
    scale_value,
    sparse_block_size,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_kvlen,
    layout,
    sparse_mode,
):
    """The gradients of `npu_sparse_flash_attention`.

    Args:
        query: as in the forward operator, BSND or TND.
        key: as in the forward operator.
        value: as in the forward operator.
        sparse_indices: as in the forward operator.
        d_out: the gradient of the attention.
        out: the attention.
        softmax_max: the maxima that the forward operator returned.
        softmax_sum: its sums.
        scale_value: factor of the scores.
        sparse_block_size: tokens of an index.
        query_rope: (..., N, 64).
        key_rope: (..., 1, 64).
        actual_seq_qlen: int32, tokens of each sequence, sums of them in TND.
        actual_seq_kvlen: the same for keys.
        layout: 'BSND' or 'TND'.
        sparse_mode: 0 or 3.
        pre_tokens: read nowhere.
        next_tokens: read nowhere.
        attention_mode: read nowhere.

    On Ascend950 each query has a multiple of 1024 indices up to 8192.

    Returns:
        The gradients of query, key, value, query_rope and key_rope; the last two are empty without ropes.
    """
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    rows, all_keys = _joined(query, query_rope), _joined(key, key_rope)
    all_values = wide(_sparse.tokens(value))
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    gradient, result = wide(_sparse.tokens(d_out)), wide(_sparse.tokens(out))
    peaks, sums = softmax_max.reshape(-1, query.shape[-2]), softmax_sum.reshape(-1, query.shape[-2])
    found = [torch.zeros_like(t) for t in (rows, all_keys, all_values)]
    for span in _sparse.spans(query, key, layout, layout, actual_seq_qlen, actual_seq_kvlen):
        if span.columns == 0:
            continue
        own = slice(span.start, span.start + span.rows)
        columns = slice(span.kv_start, span.kv_start + span.columns)
        of_span = (
            rows[own], all_keys[columns, 0], all_values[columns, 0], gradient[own], result[own],
            peaks[own], sums[own],
        )  # fmt: skip
        blocks = _sparse_attend.parts(
            span, sparse_mode, places[own], sparse_block_size, rows.shape[-1]
        )
        for part, place, unseen in blocks:
            of_query, of_key, of_value = _sparse_attend.backward(
                *of_span, part, place, unseen, scale_value
            )
            found[0][span.start + part.start : span.start + part.stop] = of_query
            found[1][columns, 0] += of_key
            found[2][columns, 0] += of_value
    size = query.shape[-1]
    pieces = (found[0][..., :size], found[1][..., :size], found[2])
    made = [
        g.reshape(t.shape).to(t.dtype) for g, t in zip(pieces, (query, key, value), strict=True)
    ]
    for g, t, like in ((found[0], query_rope, query), (found[1], key_rope, key)):
        made.append(like.new_empty(0) if t is None else g[..., size:].reshape(t.shape).to(t.dtype))
    return tuple(made)


def _joined(tensor, rope):
    rows = wide(_sparse.tokens(tensor))
    return rows if rope is None else torch.cat((rows, wide(_sparse.tokens(rope))), -1)


@npu_sparse_flash_attention_grad.meta
def _(query, key, value, query_rope, key_rope):
    new = [t.new_empty(t.shape) for t in (query, key, value)]
    for rope, like in ((query_rope, query), (key_rope, key)):
        new.append(like.new_empty(0 if rope is None else rope.shape))
    return tuple(new)


@npu_sparse_flash_attention_grad.check
def _(
    query,
    key,
    value,
    sparse_indices,
    d_out,
    out,
    softmax_max,
    softmax_sum,
    sparse_block_size,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_kvlen,
    layout,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
):
    _sparse.check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.anything(attention_mode, pre_tokens, next_tokens)
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    named = {"key": key, "value": value, "d_out": d_out, "out": out}
    for name, tensor in named.items():
        must.same_dtype(name, tensor, "query", query)
    names = ("actual_seq_qlen", "actual_seq_kvlen", "layout", "layout")
    lengths = (actual_seq_qlen, actual_seq_kvlen, None)
    _sparse.check_layouts(query, key, layout, layout, *lengths, names)
    check_heads(query.shape[-2], GRADIENT_HEADS)
    size = query.shape[-1]
    must.hold(tuple(key.shape[-2:]) == (1, size), "key", f"of 1 head of {size}", tuple(key.shape))
    must.shape("value", value, (*key.shape[:-1], None))
    depth = value.shape[-1]
    must.hold(depth <= size, "value", f"of a head size up to {size}", depth)
    must.shape("d_out", d_out, (*query.shape[:-1], depth))
    must.shape("out", out, (*query.shape[:-1], depth))
    if _sparse.new_chip():
        must.hold(size == 512, "query", "of head size 512", size)
        count = sparse_indices.shape[-1]
        fits = 0 < count <= 8192 and count % 1024 == 0
        must.hold(fits, "sparse_indices", "of a multiple of 1024 keys up to 8192", count)
    check_indices(query, key, sparse_indices, sparse_block_size, layout, 128)
    tokens = query.shape[:-2]
    shape = (1, *tokens) if query.dim() == 3 else (tokens[0], 1, tokens[1])
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, (*shape, query.shape[-2]))
    for name, rope, tensor in (("query_rope", query_rope, query), ("key_rope", key_rope, key)):
        must.same_dtype(name, rope, "query", query)
        must.shape(name, rope, (*tensor.shape[:-1], 64))
    must.choice("sparse_mode", sparse_mode, (0, 3))


def _half(make, *shape, **options):
    return make(*shape, dtype=torch.bfloat16, **options)


def _ropes(make, query, key):
    return {
        "query_rope": _half(make, *query, 64),
        "key_rope": _half(make, *key, 64),
        "attention_mode": 2,
    }


npu_sparse_flash_attention.samples = [
    Sample(
        lambda make: (
            _half(make, 2, 3, 4, 512),
            _half(make, 2, 9, 1, 512),
            _half(make, 2, 9, 1, 512, seed=2),
            make(2, 3, 1, 5, dtype=torch.int32, low=0, high=9),
            0.05,
        ),
        lambda make: _ropes(make, (2, 3, 4), (2, 9, 1)) | {"return_softmax_lse": True},
    ),
    Sample(
        lambda make: (
            _half(make, 4, 2, 512),
            _half(make, 4, 16, 1, 512),
            _half(make, 4, 16, 1, 512, seed=2),
            make(4, 1, 3, dtype=torch.int32, low=-1, high=5),
            0.05,
        ),
        lambda make: (
            _ropes(make, (4, 2), (4, 16, 1))
            | {
                "actual_seq_lengths_query": make(2, dtype=torch.int32, low=2, high=3)
                .cumsum(0)
                .int(),
                "actual_seq_lengths_kv": make(2, dtype=torch.int32, low=12, high=20),
                "block_table": make(2, 2, dtype=torch.int32, low=0, high=4),
                "layout_query": "TND",
                "layout_kv": "PA_BSND",
                "sparse_block_size": 4,
            }
        ),
    ),
]
npu_sparse_flash_attention_grad.samples = [
    Sample(
        lambda make: (
            _half(make, 2, 3, 4, 512),
            _half(make, 2, 9, 1, 512),
            _half(make, 2, 9, 1, 512, seed=2),
            make(2, 3, 1, 5, dtype=torch.int32, low=0, high=9),
            _half(make, 2, 3, 4, 512, seed=3),
            _half(make, 2, 3, 4, 512, seed=4),
            make(2, 1, 3, 4, low=1, high=2),
            make(2, 1, 3, 4, low=3, high=5),
            0.05,
            1,
        ),
        lambda make: _ropes(make, (2, 3, 4), (2, 9, 1)),
    ),
]
