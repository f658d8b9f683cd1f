"""npu_nsa_compress_infer: in decoding, the window that the newest token completes."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.nsa import _blocks

_STRIDES, _PAGES = (16, 32, 48, 64), (64, 128)
_MAX_HEADS_ODD, _MAX_HEADS, _WIDEST, _MAX_KEYS, _MAX_BATCH = 50, 64, 256, 64, 2048


@npu_op(
    "npu_nsa_compress_infer.cache(Tensor input, Tensor weight, Tensor slot_mapping, "
    "int compress_block_size, int compress_stride, int page_block_size, *, Tensor? block_table=None, "
    "int[]? actual_seq_len=None, Tensor(a!) cache) -> Tensor(a!)",
    chips=("A2", "A3"),
    ge="NsaCompressWithCache",
)
def npu_nsa_compress_infer(
    input,
    weight,
    slot_mapping,
    compress_block_size,
    compress_stride,
    page_block_size,
    block_table,
    actual_seq_len,
    cache,
):
    r"""Compresses the last window of each sequence whose newest token completes one, and stores it.

    $$ cache_{slot_b} = \sum_{j=0}^{l-1} w_j \odot x_{s_b - l + j}
       \quad \text{where } s_b \ge l,\ (s_b - l) \bmod d = 0 $$

    Args:
        input: x, pages (blocks, page_block_size, N, D) with a block table, else (T, N, D), the sequences one after the
            other; float16 or bfloat16, D a multiple of 16 up to 256, N at most 64, even above 50.
        weight: w, (l, N), of the dtype of `input`.
        slot_mapping: (B,), int32, B at most 2048: the row of `cache` of each sequence.
        compress_block_size: l, a multiple of 16 up to 64.
        compress_stride: d: 16, 32, 48 or 64, at most l.
        page_block_size: 64 or 128.
        block_table: (B, blocks of a sequence), int32.
        actual_seq_len: s, the length of each sequence.
        cache: (rows, N, D), of the dtype of `input`; written.

    Returns:
        `cache`.
    """
    starts = [start for start, _ in _blocks.of_lengths(actual_seq_len)]
    for index, length in enumerate(actual_seq_len):
        over = length - compress_block_size
        if over < 0 or over % compress_stride:
            continue
        rows = torch.arange(over, length, device=input.device)
        if block_table is None:
            window = input[starts[index] + rows]
        else:
            pages = block_table[index].long()[rows // page_block_size]
            window = input[pages, rows % page_block_size]
        y = torch.einsum("jnd,jn->nd", wide(window), wide(weight))
        cache.index_copy_(0, slot_mapping[index : index + 1].long(), y.to(cache.dtype).unsqueeze(0))
    return cache


@npu_nsa_compress_infer.check
def _(
    input,
    weight,
    slot_mapping,
    compress_block_size,
    compress_stride,
    page_block_size,
    block_table,
    actual_seq_len,
    cache,
):
    must.dtype("input", input, *_blocks.HALF)
    must.ndim("input", input, 3 if block_table is None else 4)
    heads, width = input.shape[-2:]
    _blocks.check_size("input", width, _WIDEST, "of a head size that is ")
    must.hold(0 < heads <= _MAX_HEADS, "input", f"of 1 to {_MAX_HEADS} heads", heads)
    ok = heads <= _MAX_HEADS_ODD or heads % 2 == 0
    must.hold(ok, "input", f"of an even number of heads above {_MAX_HEADS_ODD}", heads)
    _blocks.check_size("compress_block_size", compress_block_size, _MAX_KEYS)
    must.choice("compress_stride", compress_stride, _STRIDES)
    ok = compress_stride <= compress_block_size
    must.hold(ok, "compress_stride", f"at most {compress_block_size}", compress_stride)
    must.choice("page_block_size", page_block_size, _PAGES)
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (compress_block_size, heads))
    must.same_dtype("cache", cache, "input", input)
    must.shape("cache", cache, (None, heads, width))
    must.dtype("slot_mapping", slot_mapping, torch.int32)
    must.ndim("slot_mapping", slot_mapping, 1)
    must.present("actual_seq_len", actual_seq_len, "(the length of each sequence)")
    count = slot_mapping.shape[0]
    must.hold(count <= _MAX_BATCH, "slot_mapping", f"of at most {_MAX_BATCH} sequences", count)
    ok = len(actual_seq_len) == count and min(actual_seq_len, default=0) >= 0
    must.hold(ok, "actual_seq_len", f"{count} lengths", list(actual_seq_len))
    must.dtype("block_table", block_table, torch.int32)
    longest = max(actual_seq_len, default=0)
    if block_table is None:
        total = sum(actual_seq_len)
        ok = total <= input.shape[0]
        must.hold(ok, "actual_seq_len", f"of a sum up to {input.shape[0]}", total)
    else:
        must.shape("input", input, (None, page_block_size, None, None))
        must.ndim("block_table", block_table, 2)
        ok = block_table.shape[0] == count and block_table.shape[1] * page_block_size >= longest
        expected = f"of {count} rows for sequences of up to {longest} tokens"
        must.hold(ok, "block_table", expected, tuple(block_table.shape))
        _blocks.check_table(block_table, actual_seq_len, page_block_size, input.shape[0])
    if must.has_data(slot_mapping) and count:
        low, high = int(slot_mapping.min()), int(slot_mapping.max())
        ok = low >= 0 and high < cache.shape[0]
        must.hold(ok, "slot_mapping", f"in [0, {cache.shape[0]})", f"{low} to {high}")


def _full(make, *shape, value):
    return torch.full_like(make(*shape, dtype=torch.int32, low=0, high=2), value)


npu_nsa_compress_infer.samples = [
    Sample(
        lambda make: (make(3, 64, 2, 16).half(), make(32, 2).half(), _full(make, 2, value=1), 32, 16, 64),
        lambda make: {"block_table": _full(make, 2, 2, value=2), "actual_seq_len": [30, 80],
                      "cache": make(4, 2, 16).half()},
    ),
    Sample(
        lambda make: (make(60, 1, 16).bfloat16(), make(16, 1).bfloat16(), _full(make, 1, value=0), 16, 16, 128),
        lambda make: {"actual_seq_len": [48], "cache": make(1, 1, 16).bfloat16()},
    ),
]  # fmt: skip
