"""npu_block_sparse_attention and its gradient: a mask chooses blocks of keys for each block of queries."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _block_sparse
from torch_npu.ops.attention._sparse import check_family, new_chip

LAYOUTS = ("TND", "BNSD")
#: what the gradient takes for none
BLOCK = (128, 128)


@npu_op(
    "npu_block_sparse_attention(Tensor query, Tensor key, Tensor value, Tensor block_sparse_mask, "
    "int[] block_shape, *, str q_input_layout='TND', str kv_input_layout='TND', "
    "int num_key_value_heads=1, float scale_value=0.0, int inner_precise=1, "
    "int[]? actual_seq_lengths=None, int[]? actual_seq_lengths_kv=None, "
    "int? softmax_lse_flag=0) -> (Tensor, Tensor)",
    output_differentiability=(True, False),
    core="MIX_AIC",
    product=True,
)
def npu_block_sparse_attention(
    query,
    key,
    value,
    block_sparse_mask,
    block_shape,
    q_input_layout,
    scale_value,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    softmax_lse_flag,
):
    r"""Attention of each block of queries over the blocks of keys that the mask chooses.

    $$ out = \mathrm{softmax}(scale \cdot Q \tilde K^T) \tilde V $$

    Queries of which no block is chosen give 0.

    Args:
        query: TND (T, N, D), BNSD (B, N, S, D) or on Ascend950 BSND (B, S, N, D), float16 or bfloat16; D is 64 or 128.
        key: (Tkv, Nkv, D) or (B, Nkv, Skv, D).
        value: like `key`.
        block_sparse_mask: (B, N, ceil(S / x), ceil(Skv / y)), int8: 1 where a block is computed.
        block_shape: [x, y], the rows and columns of a block; y is a multiple of 128.
        q_input_layout: 'TND', 'BNSD' or on Ascend950 'BSND'.
        kv_input_layout: `q_input_layout`.
        num_key_value_heads: Nkv, a divisor of N.
        scale_value: factor of the scores.
        inner_precise: 0 for float32 scores, 1 for float16 ones (not with bfloat16), on Ascend950 4; they are float32
            here.
        actual_seq_lengths: the queries of each sequence, needed in TND, where they sum up to T; given with
            `actual_seq_lengths_kv` or not at all.
        actual_seq_lengths_kv: the keys of each sequence.
        softmax_lse_flag: 1 to return the logsumexp.

    Returns:
        The attention, like `query`, and the logsumexp, (T, N, 1) or (B, N, S, 1), float32; without the flag upstream
        leaves it uninitialized, here it is then zero.

    Differs from upstream: intermediate results are float32 with either `inner_precise`.
    """
    out, lse = _results(query)
    problem = _block_sparse.Problem(
        query,
        key,
        value,
        block_sparse_mask,
        block_shape,
        q_input_layout,
        actual_seq_lengths,
        actual_seq_lengths_kv,
        scale_value,
    )
    _block_sparse.forward(problem, out, lse if softmax_lse_flag else None)
    return out, lse


def _results(query):
    return query.new_zeros(query.shape), query.new_zeros(
        (*query.shape[:-1], 1), dtype=torch.float32
    )


@npu_block_sparse_attention.meta
def _(query):
    return _results(query)


def _check(query, key, value, mask, block_shape, layouts, kv_heads, lengths, kv_lengths):
    """What both directions ask for."""
    check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.same_dtype("key", key, "query", query)
    must.same_dtype("value", value, "query", query)
    layout = layouts[0]
    must.choice("q_input_layout", layout, (*LAYOUTS, *(("BSND",) if new_chip() else ())))
    must.hold(
        layouts[1] == layout, "kv_input_layout", f"{layout!r}, as 'q_input_layout'", layouts[1]
    )
    must.ndim("query", query, 3 if layout == "TND" else 4)
    must.ndim("key", key, query.dim())
    must.shape("value", value, tuple(key.shape))
    place = 2 if layout == "BSND" else 1
    heads, own, size = query.shape[place], key.shape[place], query.shape[-1]
    must.hold(key.shape[-1] == size, "key", f"of head size {size}, as 'query'", key.shape[-1])
    must.hold(kv_heads == own, "num_key_value_heads", f"{own}, the heads of 'key'", kv_heads)
    divides = kv_heads > 0 and heads % kv_heads == 0
    must.hold(
        divides, "num_key_value_heads", f"a divisor of the {heads} heads of 'query'", kv_heads
    )
    high, wide = block_shape[:2]
    must.hold(min(high, wide) > 0, "block_shape", "positive", list(block_shape))
    named = {"actual_seq_lengths": lengths, "actual_seq_lengths_kv": kv_lengths}
    if layout == "TND":
        for name, given in named.items():
            expected, said = "given with q_input_layout 'TND'", f"{name} must be specified"
            must.hold(given is not None, name, expected, None, ErrCode.PARAM, said)
    both = (lengths is None) == (kv_lengths is None)
    expected = "given together with 'actual_seq_lengths_kv', or neither"
    must.hold(both, "actual_seq_lengths", expected, lengths, ErrCode.PARAM)
    if layout == "TND":
        batch = len(lengths)
        rows, columns = max(lengths, default=0), max(kv_lengths, default=0)
        for name, given, most in (
            ("actual_seq_lengths", lengths, query.shape[0]),
            ("actual_seq_lengths_kv", kv_lengths, key.shape[0]),
        ):
            expected = f"of {batch} lengths of at least 0, {most} in all"
            fits = len(given) == batch and min(given, default=0) >= 0 and sum(given) == most
            must.hold(fits, name, expected, list(given))
    else:
        batch, rows, columns = query.shape[0], query.shape[3 - place], key.shape[3 - place]
        must.shape("key", key, (batch, None, None, None))
        for name, given, most in (
            ("actual_seq_lengths", lengths, rows),
            ("actual_seq_lengths_kv", kv_lengths, columns),
        ):
            expected = f"of {batch} lengths from 0 to {most}"
            fits = given is None or (len(given) == batch and all(0 <= n <= most for n in given))
            must.hold(fits, name, expected, given)
    needed = (batch, heads, -(-rows // high), -(-columns // wide))
    must.shape("block_sparse_mask", mask, needed)


@npu_block_sparse_attention.check
def _(
    query,
    key,
    value,
    block_sparse_mask,
    block_shape,
    q_input_layout,
    kv_input_layout,
    num_key_value_heads,
    inner_precise,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    softmax_lse_flag,
):
    must.hold(len(block_shape) == 2, "block_shape", "of two numbers", list(block_shape))
    layouts = (q_input_layout, kv_input_layout)
    lengths = (actual_seq_lengths, actual_seq_lengths_kv)
    _check(
        query, key, value, block_sparse_mask, block_shape, layouts, num_key_value_heads, *lengths
    )
    must.dtype("block_sparse_mask", block_sparse_mask, torch.int8)
    size = query.shape[-1]
    must.hold(size in (64, 128), "query", "of head size 64 or 128", size)
    columns = block_shape[1]
    must.hold(columns % 128 == 0, "block_shape", "a multiple of 128 columns", list(block_shape))
    if new_chip():
        must.choice("inner_precise", inner_precise, (4,))
    else:
        must.choice("inner_precise", inner_precise, (0, 1))
        plain = query.dtype != torch.bfloat16 or inner_precise == 0
        must.hold(plain, "inner_precise", "0 with bfloat16", inner_precise)
    must.choice("softmax_lse_flag", softmax_lse_flag, (0, 1, None))


@npu_block_sparse_attention.backward
def _(
    grad,
    *,
    query,
    key,
    value,
    block_sparse_mask,
    block_shape,
    q_input_layout,
    kv_input_layout,
    num_key_value_heads,
    scale_value,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    softmax_lse_flag,
    result0,
    result1,
):
    if not softmax_lse_flag:
        raise RuntimeError("npu_block_sparse_attention: gradients need softmax_lse_flag=1")
    found = npu_block_sparse_attention_backward(
        grad,
        query,
        key,
        value,
        result0,
        result1,
        block_sparse_mask,
        block_shape,
        actual_seq_lengths,
        actual_seq_lengths_kv,
        q_input_layout,
        kv_input_layout,
        num_key_value_heads,
        scale_value,
    )
    return dict(zip(("query", "key", "value"), found, strict=True))


@npu_op(
    "npu_block_sparse_attention_backward(Tensor d_out, Tensor query, Tensor key, Tensor value, "
    "Tensor attention_out, Tensor softmax_lse, Tensor block_sparse_mask, int[]? block_shape, "
    "int[]? actual_seq_lengths, int[]? actual_seq_lengths_kv, str q_input_layout, "
    "str kv_input_layout, int num_key_value_heads, float scale_value) -> (Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_block_sparse_attention_backward(
    d_out,
    query,
    key,
    value,
    attention_out,
    softmax_lse,
    block_sparse_mask,
    block_shape,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    q_input_layout,
    scale_value,
):
    """The gradients of `npu_block_sparse_attention`.

    Args:
        d_out: the gradient of the attention.
        query: as in the forward operator.
        key: as in the forward operator.
        value: as in the forward operator.
        attention_out: the attention.
        softmax_lse: its logsumexp.
        block_sparse_mask: as in the forward operator, or bool or uint8.
        block_shape: [x, y]; [128, 128] if left out.
        actual_seq_lengths: as in the forward operator.
        actual_seq_lengths_kv: as in the forward operator.
        q_input_layout: 'TND' or 'BNSD'.
        kv_input_layout: `q_input_layout`.
        num_key_value_heads: the heads of `key`.
        scale_value: factor of the scores.

    Returns:
        The gradients of query, key and value.
    """
    problem = _block_sparse.Problem(
        query,
        key,
        value,
        block_sparse_mask,
        _blocks(block_shape),
        q_input_layout,
        actual_seq_lengths,
        actual_seq_lengths_kv,
        scale_value,
    )
    found = _block_sparse.backward(problem, d_out, attention_out, softmax_lse)
    return tuple(g.to(t.dtype) for g, t in zip(found, (query, key, value), strict=True))


def _blocks(block_shape):
    return BLOCK if block_shape is None or len(block_shape) < 2 else block_shape


@npu_block_sparse_attention_backward.meta
def _(query, key, value):
    return tuple(t.new_empty(t.shape) for t in (query, key, value))


@npu_block_sparse_attention_backward.check
def _(
    d_out,
    query,
    key,
    value,
    attention_out,
    softmax_lse,
    block_sparse_mask,
    block_shape,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    q_input_layout,
    kv_input_layout,
    num_key_value_heads,
):
    block_shape = _blocks(block_shape)
    layouts = (q_input_layout, kv_input_layout)
    lengths = (actual_seq_lengths, actual_seq_lengths_kv)
    _check(
        query, key, value, block_sparse_mask, block_shape, layouts, num_key_value_heads, *lengths
    )
    kinds = (torch.int8, torch.uint8, torch.bool)
    must.dtype("block_sparse_mask", block_sparse_mask, *kinds)
    size = query.shape[-1]
    fits = size == 128 if new_chip() else size <= 128
    must.hold(fits, "query", "of head size 128" if new_chip() else "of a head size up to 128", size)
    fits = not new_chip() or all(n % 64 == 0 for n in block_shape[:2])
    must.hold(fits, "block_shape", "multiples of 64 on Ascend950", list(block_shape))
    for name, tensor in (("d_out", d_out), ("attention_out", attention_out)):
        must.same_dtype(name, tensor, "query", query)
        must.shape(name, tensor, tuple(query.shape))
    must.dtype("softmax_lse", softmax_lse, torch.float32)
    must.shape("softmax_lse", softmax_lse, (*query.shape[:-1], 1))


def _half(make, *shape, **options):
    return make(*shape, dtype=torch.float16, **options)


def _mask(make, *shape):
    return make(*shape, dtype=torch.int8, low=0, high=2)


npu_block_sparse_attention.samples = [
    Sample(
        lambda make: (
            _half(make, 9, 4, 64),
            _half(make, 140, 2, 64),
            _half(make, 140, 2, 64, seed=2),
            _mask(make, 2, 4, 2, 2),
            [4, 128],
        ),
        {
            "num_key_value_heads": 2,
            "scale_value": 0.1,
            "actual_seq_lengths": [5, 4],
            "actual_seq_lengths_kv": [130, 10],
            "softmax_lse_flag": 1,
        },
    ),
    Sample(
        lambda make: (
            _half(make, 2, 2, 5, 128),
            _half(make, 2, 2, 7, 128),
            _half(make, 2, 2, 7, 128, seed=2),
            _mask(make, 2, 2, 2, 1),
            [4, 128],
        ),
        {
            "num_key_value_heads": 2,
            "scale_value": 0.1,
            "q_input_layout": "BNSD",
            "kv_input_layout": "BNSD",
        },
    ),
]
npu_block_sparse_attention_backward.samples = [
    Sample(
        lambda make: (
            _half(make, 2, 2, 5, 128, seed=3),
            _half(make, 2, 2, 5, 128),
            _half(make, 2, 2, 7, 128),
            _half(make, 2, 2, 7, 128, seed=2),
            _half(make, 2, 2, 5, 128, seed=4),
            make(2, 2, 5, 1, low=2, high=4),
            _mask(make, 2, 2, 2, 1),
            [4, 128],
            None,
            None,
            "BNSD",
            "BNSD",
            2,
            0.1,
        )
    ),
]
