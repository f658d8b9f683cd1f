"""npu_fused_infer_attention_score where upstream's host code takes more or less than its page says."""

import pytest
import torch

from tests.ops.attention.infer_reference import (
    SCALE,
    batch,
    compare,
    fia,
    on_device,
    paginate,
    run,
    triangle,
    unpack,
)
from tests.ops.families import on
from tests.ops.support import make

HALF = torch.float16


@pytest.mark.parametrize("family,layout,counts", [
    ("A2", "BNSD", False), ("A2", "BNSD_BSND", True), ("A5", "BNSD", True), ("A5", "BSH", True),
])  # fmt: skip
def test_sparse_mode_of_one_query_token(family, layout, counts):
    """A band of one query token: the plain layouts of A2 see all keys, the others the band."""
    q, k, v = batch((1,), (6,), size=64)
    options = {"sparse_mode": 4, "pre_tokens": 2, "next_tokens": 0, "atten_mask": triangle()}
    source, _, target = layout.partition("_")
    heads = {"num_heads": 4, "num_key_value_heads": 2}
    with on(family):
        out, _ = run(layout, q, k, v, source=source, **heads, **options)
    found = unpack(out, target or source, [1], 4)[0]
    compare(found, q[0], k[0], v[0], HALF, scale=SCALE, hidden=lambda i, j: counts and j < 3)


def test_block_table_of_more_rows():
    q, k, v = batch((1, 1), (9, 20))
    keys, table = paginate(k, 16, "BnNBsD")
    values, _ = paginate(v, 16, "BnNBsD")
    longer = torch.cat([table, table.new_zeros(3, table.shape[1])])
    query = on_device(torch.stack(q))
    options = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": SCALE}
    options |= {"block_size": 16, "actual_seq_lengths_kv": [9, 20]}
    want, _ = fia(query, keys, values, block_table=table, **options)
    found, _ = fia(query, keys, values, block_table=longer, **options)
    assert torch.equal(found, want)
    for b in range(2):
        compare(found[b], q[b], k[b], v[b], HALF, scale=SCALE)


def refuse(match, *args, **options):
    with pytest.raises(RuntimeError, match="npu_fused_infer_attention_score: argument " + match):
        fia(*args, **{"num_heads": 4, "input_layout": "BNSD", **options})


def test_every_inner_precise_with_one_query_token():
    q = make(1, 4, 1, 16, dtype=HALF)
    options = {"num_heads": 4, "input_layout": "BNSD"}
    results = [fia(q, q, q, inner_precise=n, **options)[0] for n in range(4)]
    assert all(torch.equal(r, results[0]) for r in results)


def test_windows_that_are_empty():
    q, mask = make(1, 4, 3, 16, dtype=HALF), make(3, 3, dtype=torch.bool)
    window = {"pre_tokens": 1, "next_tokens": -2, "atten_mask": mask}
    refuse("'next_tokens' must be at least -1, so that a window is left.*-2", q, q, q, **window)
    refuse("'next_tokens' must be at least 1", q, q, q, **{
        **window, "pre_tokens": -1, "next_tokens": -1,
    })  # fmt: skip


@pytest.mark.family("A2")
def test_flat_masks():
    """A mask of two dimensions goes with BSH, BSND, BNSD and BNSD_BSND and equal head sizes."""
    q, k = make(1, 3, 4, 64, dtype=HALF), make(3, 3, dtype=torch.bool)
    refuse("'atten_mask' must be of 3 or 4 dimensions for layout BSND_BNSD", q, q, q,
           input_layout="BSND_BNSD", atten_mask=k)  # fmt: skip
    wide, narrow = make(1, 4, 3, 192, dtype=HALF), make(1, 4, 3, 128, dtype=HALF)
    refuse("'atten_mask' must be of 3 or 4 dimensions", wide, wide, narrow, atten_mask=k)


def test_quantized_output_layouts():
    q, one = make(1, 3, 4, 64, dtype=HALF), torch.ones(1).npu()
    refuse("'input_layout' must be 'BSH', 'BSND', 'BNSD' or 'BNSD_BSND'", q, q, q,
           input_layout="BSND_BNSD", quant_scale2=one)  # fmt: skip
    wide, narrow = make(1, 4, 3, 192, dtype=HALF), make(1, 4, 3, 128, dtype=HALF)
    refuse("'value' must be of the query's head size .192.", wide, wide, narrow, quant_scale2=one)


def test_padding_asks_for_lengths():
    q = make(1, 4, 3, 16, dtype=HALF)
    size = torch.tensor([1]).npu()
    refuse("'actual_seq_lengths' must be given with query_padding_size", q, q, q,
           query_padding_size=size)  # fmt: skip
    refuse("'actual_seq_lengths_kv' must be given with kv_padding_size", q, q, q,
           kv_padding_size=size)  # fmt: skip
