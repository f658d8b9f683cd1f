"""npu_fused_infer_attention_score: head sizes, groups and layouts as CANN's host code has them."""

import pytest
import torch

from tests.ops.attention.infer_reference import (
    SCALE,
    batch,
    compare,
    fia,
    on_device,
    run,
    triangle,
    unpack,
)
from tests.ops.support import make

HALF, BRAIN = torch.float16, torch.bfloat16


@pytest.mark.parametrize("size,value", [(192, 128), (192, 192), (128, 128), (256, 256), (72, 72)])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_ragged_head_sizes(size, value, kv_heads):
    q, k, v = batch((3,), (4,), heads=2, kv_heads=kv_heads, size=size, value=value, dtype=BRAIN)
    heads = {"num_heads": 2, "num_key_value_heads": kv_heads}
    out, _ = run("TND", q, k, v, actual_seq_lengths=[3], actual_seq_lengths_kv=[4], **heads)
    compare(out.transpose(0, 1), q[0], k[0], v[0], BRAIN, scale=SCALE)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("rows", [1, 3])
def test_values_narrower_than_keys(layout, rows):
    q, k, v = batch((rows,), (4,), heads=2, size=192, value=128, dtype=BRAIN)
    source, _, target = layout.partition("_")
    out, _ = run(layout, q, k, v, source=source, num_heads=2)
    found = unpack(out, target or source, [rows], 2)[0]
    compare(found, q[0], k[0], v[0], BRAIN, scale=SCALE)


def test_one_key_head_for_many_query_heads():
    q, k, v = batch((2,), (5,), heads=96, kv_heads=1)
    out, _ = run("BNSD", q, k, v, num_heads=96, num_key_value_heads=1)
    compare(out[0], q[0], k[0], v[0], HALF, scale=SCALE)


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


@pytest.mark.family("A2")
def test_refuses_head_sizes_and_layouts():
    lengths = {"actual_seq_lengths": [2, 4], "actual_seq_lengths_kv": [2, 4]}
    small = make(4, 2, 32, dtype=HALF)
    triple, ragged = (small, small, small), {"num_heads": 2, **lengths}
    mask = triangle()
    mode = {"sparse_mode": 2, "atten_mask": mask}
    refuse("head size 64, 128 or 192 for layout TND", *triple, input_layout="TND", **mode, **ragged)
    refuse("head size 64 or 128 for layout NTD", *triple, input_layout="NTD", **{
        **ragged, "num_heads": 4, "actual_seq_lengths": [1, 2], "actual_seq_lengths_kv": [1, 2],
    })  # fmt: skip
    wide = make(4, 2, 272, dtype=HALF)
    refuse("head size 64, 128 or 192", wide, wide, wide, input_layout="TND", **ragged)
    odd = make(1, 3, 2, 24, dtype=HALF)
    dense = {"num_heads": 2, "input_layout": "BSND"}
    refuse(
        "'query' must be of a head size divisible by 16, but received 24", odd, odd, odd, **dense
    )
    narrow = make(1, 3, 2, 16, dtype=HALF)
    query = make(1, 3, 2, 32, dtype=HALF)
    pair = "'query' must be of head sizes .query, value. equal or .192, 128., but received .32, 16."
    refuse(pair, query, query, narrow, **dense)
    refuse("'input_layout' must be .*'BSND_NBSD'", query, query, query, **{
        **dense, "input_layout": "BSND_NBSD",
    })  # fmt: skip
    grouped, key = make(4, 2, 64, dtype=HALF), make(4, 1, 64, dtype=HALF)
    refuse(
        "'atten_mask' must be left out with sparse_mode 0 in TND with fewer key heads",
        *(grouped, key, key),
        input_layout="TND",
        num_key_value_heads=1,
        atten_mask=on_device(torch.zeros(1, 2, 2, dtype=torch.bool)),
        **ragged,
    )


def test_odd_head_size_of_one_token():
    q, k, v = batch((1,), (5,), size=24)
    out, _ = run("BSND", q, k, v)
    compare(unpack(out, "BSND", [1], 4)[0], q[0], k[0], v[0], HALF, scale=SCALE)
