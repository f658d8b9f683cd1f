"""npu_fused_infer_attention_score against the formula in fp64: layouts, lengths, masks, biases."""

import pytest
import torch

from tests.ops.attention.infer_reference import (
    SCALE,
    attend,
    batch,
    compare,
    fia,
    on_device,
    pack,
    packed,
    run,
    triangle,
    unpack,
)
from tests.ops.support import assert_accurate, make
from torch_npu.ops._shared import _engine
from torch_npu.ops.attention.npu_fused_infer_attention_score import npu_fused_infer_attention_score

HALF, BRAIN = torch.float16, torch.bfloat16


DENSE = {
    "BSH": "BSH", "BSND": "BSND", "BNSD": "BNSD", "BNSD_BSND": "BSND", "BSH_BNSD": "BNSD",
    "BSND_BNSD": "BNSD",
}  # fmt: skip


@pytest.mark.parametrize("layout", DENSE)
def test_dense_layouts(layout):
    q, k, v = batch((3, 3), (7, 7), size=64)
    out, lse = run(layout, q, k, v, source=layout.partition("_")[0], softmax_lse_flag=True)
    shapes = {"BSH": (2, 3, 256), "BSND": (2, 3, 4, 64), "BNSD": (2, 4, 3, 64)}
    assert out.shape == shapes[DENSE[layout]] and out.dtype == HALF and out.is_contiguous()
    assert lse.shape == (2, 4, 3, 1) and lse.dtype == torch.float32
    for b, found in enumerate(unpack(out, DENSE[layout], [3, 3], 4)):
        compare(found, q[b], k[b], v[b], HALF, scale=SCALE)
        _, want = attend(q[b].double(), k[b].double(), v[b].double(), SCALE)
        assert_accurate(lse[b, :, :, 0], want, want.float(), 1e-5)


@pytest.mark.parametrize("layout", ["TND", "NTD", "NTD_TND"])
def test_ragged_layouts(layout):
    q, k, v = batch((2, 0, 3), (5, 4, 7), size=64)
    source, _, target = layout.partition("_")
    lengths = {"actual_seq_lengths": [2, 2, 5], "actual_seq_lengths_kv": [5, 9, 16]}
    out, lse = run(layout, q, k, v, source=source, softmax_lse_flag=True, **lengths)
    assert out.shape == ((4, 5, 64) if (target or source) == "NTD" else (5, 4, 64))
    assert lse.shape == (5, 4, 1)
    for b, found in enumerate(unpack(out, target or source, [2, 0, 3], 4)):
        compare(found, q[b], k[b], v[b], HALF, scale=SCALE)
    _, want = attend(q[2].double(), k[2].double(), v[2].double(), SCALE)
    assert_accurate(lse[2:, :, 0].transpose(0, 1), want, want.float(), 1e-5)


def test_one_sequence_layout():
    q, k, v = batch((3,), (7,))
    out, _ = run("NSD", q, k, v)
    compare(out, q[0], k[0], v[0], HALF, scale=SCALE)


@pytest.mark.parametrize("lengths,keys", [([2, 3], [7, 0]), ([3], [4]), ([1, 2, 9], [5, 6, 9])])
def test_lengths(lengths, keys):
    q, k, v = batch((3, 3), (7, 7))
    out, lse = run(
        "BNSD",
        q,
        k,
        v,
        actual_seq_lengths=lengths,
        actual_seq_lengths_kv=keys,
        softmax_lse_flag=True,
    )
    for b in range(2):
        n = lengths[b] if len(lengths) > 1 else lengths[0]
        m = keys[b] if len(keys) > 1 else keys[0]
        compare(out[b, :, :n], q[b][:, :n], k[b][:, :m], v[b][:, :m], HALF, scale=SCALE)
        assert not out[b, :, n:].any()
        assert torch.isinf(lse[b, :, n:]).all() and bool((lse[b, :, :n] < 100).all()) == (m > 0)


def window(mode, rows, columns, before, after):
    """What sparse_mode hides, as upstream's page draws it."""
    corner = columns - rows
    return {
        0: lambda i, j: j < i - before or j > i + after,
        2: lambda i, j: j > i,
        3: lambda i, j: j > i + corner,
        4: lambda i, j: j < i + corner - before or j > i + corner + after,
    }[mode]


@pytest.mark.parametrize("mode", [0, 2, 3, 4])
@pytest.mark.parametrize("rows,columns", [(4, 7), (6, 3)])
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_windows(mode, rows, columns, layout):
    q, k, v = batch((rows,), (columns,), kv_heads=4, size=64)
    options = {"actual_seq_lengths": [rows], "actual_seq_lengths_kv": [columns]}
    options["num_key_value_heads"] = 4
    mask = triangle()
    if mode == 0:
        mask = on_device(torch.zeros(1, rows, columns, dtype=torch.uint8))
    out, _ = run(
        layout, q, k, v, sparse_mode=mode, atten_mask=mask, pre_tokens=2, next_tokens=1, **options
    )
    hidden = window(mode, rows, columns, 2, 1)
    compare(unpack(out, layout, [rows], 4)[0], q[0], k[0], v[0], HALF, scale=SCALE, hidden=hidden)


def test_window_far_below_the_diagonal():
    q, k, v = batch((4,), (9,))
    out, _ = run(
        "BNSD", q, k, v, sparse_mode=4, atten_mask=triangle(), pre_tokens=3, next_tokens=-2
    )
    compare(out[0], q[0], k[0], v[0], HALF, scale=SCALE, hidden=window(4, 4, 9, 3, -2))


@pytest.mark.parametrize(
    "shape", [(3, 7), (1, 3, 7), (2, 3, 7), (2, 1, 3, 7), (1, 1, 3, 7), (1, 16, 32)]
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8])
def test_mask_shapes(shape, dtype):
    q, k, v = batch((3, 3), (7, 7))
    mask = make(*shape, dtype=torch.bool)
    mask[..., 1, :] = True  # a row that sees nothing
    out, lse = run("BNSD", q, k, v, atten_mask=mask.to(dtype), sparse_mode=1, softmax_lse_flag=True)
    full = mask.cpu().reshape(-1, *shape[-2:])
    for b in range(2):
        of = full[b % full.shape[0]]
        compare(
            out[b], q[b], k[b], v[b], HALF, scale=SCALE, hidden=lambda i, j, of=of: bool(of[i, j])
        )
    assert not out[:, :, 1].any() and torch.isposinf(lse[:, :, 1]).all()


@pytest.mark.family("A2")
def test_decode_ignores_sparse_mode_and_window():
    q, k, v = batch((1, 1), (7, 7))
    mask = make(2, 7, dtype=torch.bool)
    out, _ = run(
        "BSH",
        q,
        k,
        v,
        atten_mask=mask,
        pre_tokens=0,
        next_tokens=0,
        actual_seq_lengths=[29],
        inner_precise=1,
    )
    hidden = mask.cpu()
    for b, found in enumerate(unpack(out, "BSH", [1, 1], 4)):
        compare(
            found, q[b], k[b], v[b], HALF, scale=SCALE, hidden=lambda i, j, b=b: bool(hidden[b, j])
        )
    out, _ = run("BSH", q, k, v, sparse_mode=2, atten_mask=triangle())
    compare(unpack(out, "BSH", [1, 1], 4)[1], q[1], k[1], v[1], HALF, scale=SCALE)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("rows,shape", [(3, (2, 4, 3, 7)), (3, (1, 4, 8, 16)), (1, (2, 4, 1, 7))])
def test_position_bias(dtype, rows, shape):
    q, k, v = batch((rows, rows), (7, 7), dtype=dtype)
    shift = make(*shape, dtype=dtype)
    out, _ = run("BNSD", q, k, v, pse_shift=shift, actual_seq_lengths_kv=[7, 5])
    for b, m in enumerate((7, 5)):
        bias = shift.cpu()[b % shape[0]][..., :m]
        compare(out[b], q[b], k[b][:, :m], v[b][:, :m], dtype, scale=SCALE, bias=bias)


@pytest.mark.parametrize("rows", [1, 3])
def test_no_keys_give_zeros(rows):
    q, k, v = batch((rows, rows), (0, 0))
    out, lse = run("BNSD", q, k, v, softmax_lse_flag=True)
    assert out.shape == (2, 4, rows, 16) and not out.any() and torch.isposinf(lse).all()


def test_no_queries_and_no_sequences():
    out, _ = fia(
        make(0, 3, 64, dtype=HALF),
        make(0, 5, 64, dtype=HALF),
        make(0, 5, 64, dtype=HALF),
        num_heads=4,
    )
    assert out.shape == (0, 3, 64)


def test_without_the_flag_softmax_lse_is_empty():
    q, k, v = batch((3,), (7,))
    _, lse = run("BNSD", q, k, v)
    assert lse.dtype == torch.float32 and lse.shape == (0,)


def test_non_contiguous_inputs():
    q, k, v = batch((3, 3), (7, 7))
    tensors = [t.transpose(1, 2) for t in packed((q, k, v), "BNSD")]
    out, _ = fia(*tensors, num_heads=4, num_key_value_heads=2, input_layout="BSND", scale=SCALE)
    compare(unpack(out, "BSND", [3, 3], 4)[1], q[1], k[1], v[1], HALF, scale=SCALE)


def test_every_inner_precise_is_the_same():
    q, k, v = batch((3,), (7,))
    results = [run("BNSD", q, k, v, inner_precise=n)[0] for n in range(4)]
    assert all(torch.equal(r, results[0]) for r in results)


@pytest.mark.parametrize("mode,masked", [(0, False), (0, True), (3, False), (4, False)])
def test_native_form_agrees_with_the_formula_in_blocks(mode, masked, monkeypatch):
    monkeypatch.setattr(_engine, "BLOCK", 4096)  # many blocks of rows
    q, k, v = batch((70, 70), (133, 133), size=32)
    tensors = [pack(t, "BNSD") for t in (q, k, v)]
    options = {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "BNSD",
        "scale": 2.0,
        "sparse_mode": mode,
    }
    options |= {
        "pre_tokens": 40,
        "next_tokens": 9,
        "actual_seq_lengths": [70, 31],
        "softmax_lse_flag": True,
    }
    mask = (
        triangle().cpu()
        if mode
        else torch.rand(2, 1, 70, 133, generator=torch.Generator().manual_seed(1)) < 0.9
    )
    mask = mask if mode or masked else None
    want, logs = npu_fused_infer_attention_score.as_function("kernel")(
        *tensors, atten_mask=mask, **options
    )
    moved = None if mask is None else on_device(mask)
    out, lse = fia(*map(on_device, tensors), atten_mask=moved, **options)
    assert_accurate(out, want.double(), want + torch.finfo(HALF).eps)
    assert_accurate(lse, logs.double(), logs + 1e-5)


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


@pytest.mark.family("A2")
def test_refuses_bad_arguments():
    q, k, v = (make(2, 4, 3, 16, dtype=HALF) for _ in range(3))
    options = {"num_heads": 4, "input_layout": "BNSD"}
    name = "npu_fused_infer_attention_score: argument "
    refuse(name + "'input_layout' must be .*'SBH'", q, k, v, num_heads=4, input_layout="SBH")
    refuse(name + "'query' must be of dtype .*float32", q.float(), k, v, **options)
    refuse("'value' must be of the dtype of 'key'", q, k, v.to(BRAIN), **options)
    refuse(
        "'num_heads' must be the query's number of heads .4., but received 8",
        q,
        k,
        v,
        num_heads=8,
        input_layout="BNSD",
    )
    refuse("'key' must be of .B, N, S. = .2, 2, 3.", q, k, v, num_key_value_heads=2, **options)
    refuse(
        "'sparse_mode' must be 0, 1, 2, 3, 4 or 9, but received 5",
        q,
        k,
        v,
        sparse_mode=5,
        **options,
    )
    refuse("'atten_mask' must be given with sparse_mode 3", q, k, v, sparse_mode=3, **options)
    refuse(
        "'atten_mask' must be of shape .2048, 2048.",
        q,
        k,
        v,
        sparse_mode=3,
        atten_mask=make(3, 3, dtype=torch.bool),
        **options,
    )
    refuse(
        "'atten_mask' must be of shape .*KV_S >= 3",
        q,
        k,
        v,
        atten_mask=make(3, 2, dtype=torch.bool),
        **options,
    )
    refuse(
        "'actual_seq_lengths' must be of 1 or 2 entries", q, k, v, actual_seq_lengths=[], **options
    )
    refuse(
        "'actual_seq_lengths_kv' must be from 0 to 3, but received 4",
        q,
        k,
        v,
        actual_seq_lengths_kv=[4],
        **options,
    )
    refuse("'inner_precise' must be", q, k, v, inner_precise=4, **options)
    refuse(
        "'key_rope_antiquant_scale' must be left",
        q,
        k,
        v,
        key_rope_antiquant_scale=make(1),
        **options,
    )
    refuse(
        "'quant_offset2' must be left out without quant_scale2",
        q,
        k,
        v,
        quant_offset2=make(1),
        **options,
    )
    refuse("'value_shared_prefix' must be given", q, k, v, key_shared_prefix=k[:1], **options)
    refuse(
        "head size divisible by 16", *(make(2, 4, 3, 12, dtype=HALF) for _ in range(3)), **options
    )


def test_refuses_a_mask_that_is_not_the_template():
    q, k, v = (make(1, 4, 3, 16, dtype=HALF) for _ in range(3))
    inverted = on_device(torch.tril(torch.ones(2048, 2048, dtype=torch.bool)))
    match = "'atten_mask' must be 1 above the diagonal"
    refuse(match, q, k, v, num_heads=4, input_layout="BNSD", sparse_mode=3, atten_mask=inverted)


def test_refuses_ragged_lengths():
    q = make(4, 2, 64, dtype=HALF)
    options = {"num_heads": 2, "input_layout": "TND"}
    refuse("'actual_seq_lengths' must be given for layout TND", q, q, q, **options)
    kv = {"actual_seq_lengths_kv": [2, 4]}
    refuse(
        "'actual_seq_lengths' must be cumulative .from 3 to 4",
        q,
        q,
        q,
        actual_seq_lengths=[3, 2],
        **kv,
        **options,
    )
    refuse(
        "'actual_seq_lengths_kv' must be of 1 entries",
        q,
        q,
        q,
        actual_seq_lengths=[4],
        **kv,
        **options,
    )
    refuse(
        "'actual_seq_lengths' must be 4, the number of tokens, at the end, but received 3",
        *(q, q, q),
        actual_seq_lengths=[2, 3],
        **kv,
        **options,
    )
    refuse(
        "'actual_seq_lengths_kv' must be 4, the number of tokens, at the end, but received 3",
        *(q, q, q),
        actual_seq_lengths=[2, 4],
        actual_seq_lengths_kv=[2, 3],
        **options,
    )
