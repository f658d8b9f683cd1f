"""npu_fused_infer_attention_score over pages, and with rope halves (latent attention)."""

import pytest
import torch

from tests.ops.attention.infer_reference import (
    compare,
    draw,
    fia,
    on_device,
    pack,
    paginate,
    triangle,
    unpack,
)
from tests.ops.support import make

HALF, BRAIN = torch.float16, torch.bfloat16
SCALE = 0.2


@pytest.mark.parametrize(
    "layout,form",
    [("BSH", "BnBsH"), ("BSND", "BnBsH"), ("BNSD", "BnNBsD"), ("BNSD", "NZ"), ("BSH", "BnNBsD")],
)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_paged_decoding(layout, form, dtype):
    lengths, size = [20, 32, 0], 64 if form == "NZ" else 16
    q = [draw(4, 1, size, dtype, seed=b) for b in range(3)]
    k, v = ([draw(2, n, size, dtype, seed=s + n) for n in lengths] for s in (1, 2))
    key, table = paginate(k, 16, form)
    value, _ = paginate(v, 16, form)
    out, lse = fia(
        on_device(pack(q, layout)), key, value, block_table=table, block_size=16,
        actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2, input_layout=layout,
        scale=SCALE, softmax_lse_flag=True,
    )  # fmt: skip
    for b, found in enumerate(unpack(out, layout, [1, 1, 1], 4)):
        compare(found, q[b], k[b], v[b], dtype, scale=SCALE)
    assert torch.isposinf(lse[2]).all() and lse[:2].isfinite().all()


@pytest.mark.parametrize("form", ["BnBsH", "BnNBsD"])
def test_paged_ragged_prompt_and_decode(form):
    rows, lengths = [3, 1], [19, 7]
    q = [draw(4, n, 64, HALF, seed=n) for n in rows]
    k, v = ([draw(2, n, 64, HALF, seed=s + n) for n in lengths] for s in (1, 2))
    key, table = paginate(k, 16, form)
    value, _ = paginate(v, 16, form)
    out, _ = fia(
        on_device(pack(q, "TND")), key, value, block_table=table, block_size=16,
        actual_seq_lengths=[3, 4], actual_seq_lengths_kv=lengths, num_heads=4,
        num_key_value_heads=2, input_layout="TND", scale=SCALE, sparse_mode=3,
        atten_mask=triangle(),
    )  # fmt: skip
    for b, found in enumerate(unpack(out, "TND", rows, 4)):
        corner = lengths[b] - rows[b]
        compare(found, q[b], k[b], v[b], HALF, scale=SCALE, hidden=lambda i, j, c=corner: j > i + c)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("form", ["BnBsH", "BnNBsD"])
@pytest.mark.parametrize("block", [16, 48, 1024])
def test_paged_prompt(layout, form, block):
    source, _, target = layout.partition("_")
    q = [draw(4, 3, 32, HALF)]
    k, v = ([draw(2, 50, 32, HALF, seed=s)] for s in (1, 2))
    key, table = paginate(k, block, form)
    value, _ = paginate(v, block, form)
    out, _ = fia(
        on_device(pack(q, source)), key, value, block_table=table, block_size=block,
        actual_seq_lengths_kv=[50], num_heads=4, num_key_value_heads=2, scale=SCALE,
        input_layout=layout,
    )  # fmt: skip
    compare(unpack(out, target or source, [3], 4)[0], q[0], k[0], v[0], HALF, scale=SCALE)


@pytest.mark.parametrize("form", ["BnBsH", "NZ"])
def test_ragged_pages_of_head_size_192(form):
    rows, lengths = [3, 1], [19, 7]
    q = [draw(4, n, 192, HALF, seed=n) for n in rows]
    k, v = ([draw(2, n, 192, HALF, seed=s + n) for n in lengths] for s in (1, 2))
    (key, table), (value, _) = (paginate(t, 16, form) for t in (k, v))
    out, _ = fia(
        on_device(pack(q, "TND")), key, value, block_table=table, block_size=16,
        actual_seq_lengths=[3, 4], actual_seq_lengths_kv=lengths, num_heads=4,
        num_key_value_heads=2, input_layout="TND", scale=SCALE,
    )  # fmt: skip
    for b, found in enumerate(unpack(out, "TND", rows, 4)):
        compare(found, q[b], k[b], v[b], HALF, scale=SCALE)


def test_paged_prompt_with_a_mask():
    q = [draw(4, 3, 16, HALF)]
    k, v = ([draw(4, 140, 16, HALF, seed=s)] for s in (1, 2))
    key, table = paginate(k, 128, "BnBsH")
    value, _ = paginate(v, 128, "BnBsH")
    mask = make(1, 1, 3, 3 * 128, dtype=torch.bool)
    out, _ = fia(
        on_device(pack(q, "BSH")), key, value, block_table=table, block_size=128,
        actual_seq_lengths_kv=[140], num_heads=4, scale=SCALE, atten_mask=mask,
    )  # fmt: skip
    hidden = mask.cpu()[0, 0]
    found = unpack(out, "BSH", [3], 4)[0]
    compare(found, q[0], k[0], v[0], HALF, scale=SCALE, hidden=lambda i, j: bool(hidden[i, j]))


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND", "TND", "NTD_TND"])
def test_rope_of_head_size_128(layout):
    q, k, v = draw(4, 3, 128, BRAIN), draw(2, 5, 128, BRAIN, 1), draw(2, 5, 128, BRAIN, 2)
    rope_q, rope_k = draw(4, 3, 64, BRAIN, 3), draw(2, 5, 64, BRAIN, 4)
    source, _, target = layout.partition("_")
    tensors = [on_device(pack([t], source)) for t in (q, k, v, rope_q, rope_k)]
    ragged = {"actual_seq_lengths": [3], "actual_seq_lengths_kv": [5]} if "T" in layout else {}
    out, lse = fia(
        *tensors[:3], query_rope=tensors[3], key_rope=tensors[4], num_heads=4,
        num_key_value_heads=2, scale=0.05, input_layout=layout, softmax_lse_flag=True, **ragged,
    )  # fmt: skip
    found = unpack(out, target or source, [3], 4)[0]
    compare(found, torch.cat((q, rope_q), 2), torch.cat((k, rope_k), 2), v, BRAIN, scale=0.05)
    assert lse.shape == ((3, 4, 1) if ragged else (1, 4, 3, 1))


@pytest.mark.parametrize("form", ["BnBsH", "BnNBsD", "NZ"])
@pytest.mark.parametrize("layout", ["BNSD", "TND", "TND_NTD", "BNSD_NBSD"])
def test_latent_attention_in_pages(form, layout):
    rows, lengths = [2, 2], [20, 5]
    source, _, target = layout.partition("_")
    q = [draw(2, n, 512, BRAIN, seed=b) / 4 for b, n in enumerate(rows)]
    rope_q = [draw(2, n, 64, BRAIN, seed=b + 9) for b, n in enumerate(rows)]
    k = [draw(1, n, 512, BRAIN, seed=n) for n in lengths]
    rope_k = [draw(1, n, 64, BRAIN, seed=n) for n in lengths]
    key, table = paginate(k, 16, form)
    rope, _ = paginate(rope_k, 16, form)
    ragged = {"actual_seq_lengths": [2, 4]} if source == "TND" else {}
    out, lse = fia(
        on_device(pack(q, source)), key, key, query_rope=on_device(pack(rope_q, source)),
        key_rope=rope, block_table=table, block_size=16, actual_seq_lengths_kv=lengths, num_heads=2,
        num_key_value_heads=1, scale=0.1, input_layout=layout, sparse_mode=3, atten_mask=triangle(),
        softmax_lse_flag=True, **ragged,
    )  # fmt: skip
    assert lse.shape == ((4, 2, 1) if ragged else (2, 2, 2, 1)) and lse.isfinite().all()
    for b, found in enumerate(unpack(out, target or source, rows, 2)):
        query, full = torch.cat((q[b], rope_q[b]), 2), torch.cat((k[b], rope_k[b]), 2)
        corner = lengths[b] - rows[b]
        compare(found, query, full, k[b], BRAIN, scale=0.1, hidden=lambda i, j, c=corner: j > i + c)


@pytest.mark.parametrize("form", ["BnBsH", "BnNBsD"])
def test_rope_of_head_size_128_in_ragged_pages(form):
    rows, lengths = [2, 1], [20, 5]
    q, rope_q = ([draw(4, n, d, BRAIN, seed=n) for n in rows] for d in (128, 64))
    k, rope_k = ([draw(2, n, d, BRAIN, seed=n) for n in lengths] for d in (128, 64))
    v = [draw(2, n, 128, BRAIN, seed=n + 1) for n in lengths]
    (key, table), (value, _), (rope, _) = (paginate(t, 16, form) for t in (k, v, rope_k))
    out, lse = fia(
        on_device(pack(q, "TND")), key, value, query_rope=on_device(pack(rope_q, "TND")),
        key_rope=rope, block_table=table, block_size=16, actual_seq_lengths=[2, 3],
        actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2, scale=0.05,
        input_layout="TND", softmax_lse_flag=True,
    )  # fmt: skip
    assert lse.shape == (3, 4, 1)
    for b, found in enumerate(unpack(out, "TND", rows, 4)):
        query, full = torch.cat((q[b], rope_q[b]), 2), torch.cat((k[b], rope_k[b]), 2)
        compare(found, query, full, v[b], BRAIN, scale=0.05)


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


@pytest.mark.family("A2")
def test_refuses_bad_pages():
    q, cache = make(2, 1, 64, dtype=HALF), make(4, 16, 64, dtype=HALF)
    table = on_device(torch.zeros(2, 2, dtype=torch.int32))
    good = {
        "num_heads": 4,
        "block_table": table,
        "block_size": 16,
        "actual_seq_lengths_kv": [20, 32],
    }
    refuse(
        "'block_table' must be of dtype torch.int32",
        q,
        cache,
        cache,
        **{**good, "block_table": table.long()},
    )
    refuse(
        "'block_size' must be a multiple of 16 up to 1024",
        q,
        cache,
        cache,
        **{**good, "block_size": 8},
    )
    refuse(r"'key' must be of shape \(\*, 32, 64\)", q, cache, cache, **{**good, "block_size": 32})
    refuse(
        "'actual_seq_lengths_kv' must be given with block_table",
        q,
        cache,
        cache,
        **{**good, "actual_seq_lengths_kv": None},
    )
    refuse(
        "'actual_seq_lengths_kv' must be from 0 to 32",
        q,
        cache,
        cache,
        **{**good, "actual_seq_lengths_kv": [40]},
    )
    refuse(
        "'kv_padding_size' must be left out with block_table",
        q,
        cache,
        cache,
        kv_padding_size=on_device(torch.tensor([1])),
        **good,
    )
    refuse(
        "'block_table' must be of block numbers from 0 to 3, but received 7",
        q,
        cache,
        cache,
        **{**good, "block_table": table + 7},
    )
    nz = make(4, 4, 1, 16, 16, dtype=HALF)
    refuse("'query' must be of head size 64 or 128 in NZ pages", q, nz, nz, **good)


def test_refuses_bad_rope():
    q, rope = make(1, 4, 3, 128, dtype=HALF), make(1, 4, 3, 64, dtype=HALF)
    options = {"num_heads": 4, "input_layout": "BNSD"}
    refuse("'key_rope' must be given with query_rope", q, q, q, query_rope=rope, **options)
    refuse(
        r"'key_rope' must be of shape \(1, 4, 3, 64\)",
        q,
        q,
        q,
        query_rope=rope,
        key_rope=rope[..., :32],
        **options,
    )
    refuse(
        "'pse_shift' must be left out with query_rope",
        q,
        q,
        q,
        query_rope=rope,
        key_rope=rope,
        pse_shift=make(1, 4, 3, 3, dtype=HALF),
        **options,
    )
    small = make(1, 4, 3, 64, dtype=HALF)
    refuse("head size 128 or 512", small, small, small, query_rope=rope, key_rope=rope, **options)
