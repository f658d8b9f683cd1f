"""npu_fused_infer_attention_score_v2 in fp64: its names, sinks, tree masks, int8 queries."""

import inspect

import pytest
import torch

import torch_npu
from tests.ops.attention.infer_reference import (
    attend,
    compare,
    draw,
    on_device,
    pack,
    triangle,
    unpack,
)
from tests.ops.support import assert_accurate, make

HALF, BRAIN = torch.float16, torch.bfloat16
SCALE = 0.25


def fia(*args, **kwargs):
    return torch_npu.npu_fused_infer_attention_score_v2(*args, **kwargs)


def heads(**options):
    return {"num_query_heads": 4, "num_key_value_heads": 2, "softmax_scale": SCALE, **options}


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_dense(layout, dtype):
    q, k, v = (
        [draw(n, t, 16, dtype, b + s) for b in range(2)]
        for s, n, t in ((0, 4, 3), (9, 2, 7), (5, 2, 7))
    )
    source, _, target = layout.partition("_")
    tensors = [on_device(pack(t, source)) for t in (q, k, v)]
    out, lse = fia(
        *tensors, input_layout=layout, actual_seq_qlen=[3, 2], actual_seq_kvlen=[7, 5],
        return_softmax_lse=True, sparse_mode=3, atten_mask=triangle(), **heads(),
    )  # fmt: skip
    for b, (found, n, m) in enumerate(
        zip(unpack(out, target or source, [3, 2], 4), (3, 2), (7, 5), strict=True)
    ):
        hidden = lambda i, j, c=m - n: j > i + c  # noqa: E731
        query, key, value = q[b][:, :n], k[b][:, :m], v[b][:, :m]
        compare(found, query, key, value, dtype, scale=SCALE, hidden=hidden)
        _, want = attend(query.double(), key.double(), value.double(), SCALE, hidden)
        assert_accurate(lse[b, :, :n, 0], want, want.float(), 1e-5)


@pytest.mark.parametrize("layout", ["TND", "NTD_TND"])
def test_learnable_sink(layout):
    q, k, v = (
        [draw(n, t, 64, BRAIN, s + t) for t in ts]
        for s, n, ts in ((0, 4, (2, 3)), (3, 2, (5, 4)), (6, 2, (5, 4)))
    )
    sink = draw(1, 1, 4, BRAIN).flatten() * 3
    tensors = [on_device(pack(t, layout.partition("_")[0])) for t in (q, k, v)]
    out, lse = fia(
        *tensors, input_layout=layout, actual_seq_qlen=[2, 5], actual_seq_kvlen=[5, 9],
        learnable_sink=on_device(sink), return_softmax_lse=True, **heads(),
    )  # fmt: skip
    for b, found in enumerate(unpack(out, "TND", [2, 3], 4)):
        compare(found, q[b], k[b], v[b], BRAIN, scale=SCALE, sink=sink)
    _, want = attend(q[0].double(), k[0].double(), v[0].double(), SCALE, sink=sink)
    assert_accurate(lse[:2, :, 0].transpose(0, 1), want, want.float(), 1e-5)


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
def test_tree_mask(layout, dtype):
    rows, lengths = [3, 3], [7, 5]
    q, rope_q = ([draw(4, n, d, BRAIN, b) for b, n in enumerate(rows)] for d in (128, 64))
    k, rope_k, v = (
        [draw(2, n, d, BRAIN, n + d + s) for n in lengths] for d, s in ((128, 0), (64, 0), (128, 1))
    )
    trees = [
        torch.triu(torch.ones(3, 3), 1).bool(),
        torch.tensor([[0, 1, 1], [0, 0, 1], [0, 1, 0]]).bool(),
    ]
    mask = torch.stack(trees).to(dtype)
    options = {"actual_seq_kvlen": lengths}
    if layout == "TND":
        mask, options = mask.flatten(), {"actual_seq_qlen": [3, 6], "actual_seq_kvlen": [7, 12]}
        caches = [on_device(pack(t, layout)) for t in (k, v, rope_k)]
    else:
        pad = lambda s: torch.nn.functional.pad(s, (0, 0, 0, 7 - s.shape[1]))  # noqa: E731
        caches = [on_device(pack([pad(s) for s in t], layout)) for t in (k, v, rope_k)]
    out, _ = fia(
        on_device(pack(q, layout)), caches[0], caches[1], query_rope=on_device(pack(rope_q,
        layout)), key_rope=caches[2], input_layout=layout, sparse_mode=9,
        atten_mask=on_device(mask), **options, **heads(softmax_scale=0.05),
    )  # fmt: skip
    for b, found in enumerate(unpack(out, layout, rows, 4)):
        first = lengths[b] - 3
        hidden = lambda i, j, b=b, f=first: j >= f and bool(trees[b][i, j - f])  # noqa: E731
        query, key = torch.cat((q[b], rope_q[b]), 2), torch.cat((k[b], rope_k[b]), 2)
        compare(found, query, key, v[b], BRAIN, scale=0.05, hidden=hidden)


@pytest.mark.parametrize(
    "layout,shape", [("BSH", (2, 2, 4)), ("BSND", (2, 2, 4)), ("BNSD", (2, 4, 2)), ("TND", (4, 4))]
)
def test_int8_latent_query(layout, shape):
    generator = torch.Generator().manual_seed(1)
    q = [torch.randint(-128, 128, (4, 2, 512), generator=generator) for _ in range(2)]
    k, v = (
        [torch.randint(-128, 128, (1, 6, 512), generator=generator) for _ in range(2)]
        for _ in range(2)
    )
    rope_q, rope_k = ([draw(n, t, 64, BRAIN, b) for b in range(2)] for n, t in ((4, 2), (1, 6)))
    scale = make(*shape, low=0.001, high=0.002)
    key_scale, value_scale = make(1, low=0.01, high=0.02), make(1, low=0.01, high=0.02, seed=3)
    ragged = {"actual_seq_qlen": [2, 4], "actual_seq_kvlen": [6, 12]} if layout == "TND" else {}
    whole = [on_device(pack(t, layout).to(torch.int8)) for t in (q, k, v)]
    ropes = [on_device(pack(t, layout)) for t in (rope_q, rope_k)]
    out, _ = fia(
        *whole, query_rope=ropes[0], key_rope=ropes[1], input_layout=layout,
        dequant_scale_query=scale, dequant_scale_key=key_scale, dequant_scale_value=value_scale,
        query_quant_mode=3, **heads(num_key_value_heads=1), **ragged,
    )  # fmt: skip
    assert out.dtype == BRAIN
    factors = scale.cpu().double().view(2, 2, 4).transpose(1, 2)
    if layout == "BNSD":
        factors = scale.cpu().double()
    for b, found in enumerate(unpack(out, layout, [2, 2], 4)):
        query = torch.cat((q[b] * factors[b][:, :, None], rope_q[b].double()), 2)
        key = torch.cat((k[b].double() * key_scale.item(), rope_k[b].double()), 2)
        want, _ = attend(query, key, v[b].double() * value_scale.item(), SCALE)
        assert (found.double() - want).abs().max() <= 2 * torch.finfo(BRAIN).eps * want.abs().max()


@pytest.mark.parametrize(
    "mode,shape", [(0, (1, 2, 1, 64)), (1, (1, 1, 6)), (2, (2,)), (3, (1, 2, 6))]
)
def test_int8_cache(mode, shape):
    q = draw(4, 1, 64, BRAIN)
    generator = torch.Generator().manual_seed(mode)
    k, v = (torch.randint(-128, 128, (2, 6, 64), generator=generator) for _ in range(2))
    kind = BRAIN if mode in (0, 2) else torch.float32
    scale, offset = (
        make(*shape, dtype=kind, low=0.01, high=0.02),
        make(*shape, dtype=kind, low=-9, high=9),
    )
    out, _ = fia(
        on_device(q[None]), *(on_device(c[None].to(torch.int8)) for c in (k, v)),
        input_layout="BNSD", dequant_scale_key=scale, dequant_offset_key=offset,
        dequant_scale_value=scale, dequant_offset_value=offset, key_quant_mode=mode,
        value_quant_mode=mode, **heads(),
    )  # fmt: skip
    spread = {0: (2, 1, 64), 1: (1, 6, 1), 2: (2, 1, 1), 3: (2, 6, 1)}[mode]
    times, plus = (t.cpu().double().view(spread) for t in (scale, offset))
    want, _ = attend(q.double(), (k + plus) * times, (v + plus) * times, SCALE)
    assert (out[0].cpu().double() - want).abs().max() <= 2 * torch.finfo(
        BRAIN
    ).eps * want.abs().max()


@pytest.mark.parametrize("kind", [None, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn])
def test_quantized_output(kind):
    q, k, v = draw(4, 3, 32, BRAIN), draw(2, 7, 32, BRAIN, 1), draw(2, 7, 32, BRAIN, 2)
    scale, offset = make(1, 4, 1, 32, low=20, high=40), make(1, 4, 1, 32, low=-3, high=3)
    out, _ = fia(
        *(on_device(t[None]) for t in (q, k, v)), input_layout="BNSD", quant_scale_out=scale,
        quant_offset_out=offset, out_dtype=kind, **heads(),
    )  # fmt: skip
    assert out.dtype == (kind or torch.int8)
    want, _ = attend(q.double(), k.double(), v.double(), SCALE)
    want = want * scale.cpu().double()[0] + offset.cpu().double()[0]
    error = (out[0].cpu().double() - want).abs()
    step = 0.501 if out.dtype == torch.int8 else want.abs() * torch.finfo(out.dtype).eps / 2 + 0.02
    assert (error <= step).all()


def test_paged_decoding():
    q = [draw(4, 1, 16, HALF, b) for b in range(2)]
    pages = [make(5, 16, 32, dtype=HALF, seed=s) for s in (1, 2)]
    table = torch.tensor([[4, 2], [0, 3]], dtype=torch.int32)
    out, _ = fia(
        on_device(pack(q, "BSH")),
        *pages,
        block_table=on_device(table),
        block_size=16,
        actual_seq_kvlen=[20, 9],
        **heads(),
    )
    for b, (found, n) in enumerate(zip(unpack(out, "BSH", [1, 1], 4), (20, 9), strict=True)):
        k, v = (
            torch.cat([p.cpu()[i] for i in table[b].tolist()])[:n].view(n, 2, 16).transpose(0, 1)
            for p in pages
        )
        compare(found, q[b], k, v, HALF, scale=SCALE)


def test_position_bias():
    q, k, v = draw(4, 3, 16, HALF), draw(2, 7, 16, HALF, 1), draw(2, 7, 16, HALF, 2)
    shift = make(1, 4, 3, 7, dtype=HALF)
    out, _ = fia(
        *(on_device(t[None]) for t in (q, k, v)), input_layout="BNSD", pse_shift=shift, **heads()
    )
    compare(out[0], q, k, v, HALF, scale=SCALE, bias=shift.cpu()[0])


def test_out_form_with_workspace():
    tensors = [make(2, n, s, 16, dtype=HALF) for n, s in ((4, 3), (2, 7), (2, 7))]
    options = heads(input_layout="BNSD", return_softmax_lse=True)
    workspace = torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace(*tensors, **options)
    keep = {n: v for n, v in options.items() if n != "softmax_scale"}
    out, lse = torch_npu._npu_fused_infer_attention_score_v2_infer_output(
        tensors[0], tensors[2], **keep
    )
    torch_npu.npu_fused_infer_attention_score_v2.out(
        *tensors, workspace=workspace, out=[out, lse], **options
    )
    want = fia(*tensors, **options)
    assert torch.equal(out, want[0]) and torch.equal(lse, want[1])


def test_both_versions_agree():
    tensors = [make(2, s, 64, dtype=HALF) for s in (3, 7, 7)]
    new, _ = fia(*tensors, num_query_heads=4, softmax_scale=SCALE, actual_seq_kvlen=[5])
    old, _ = torch_npu.npu_fused_infer_attention_score(
        *tensors, num_heads=4, scale=SCALE, actual_seq_lengths_kv=[5]
    )
    assert torch.equal(new, old)


def test_public_signature():
    parameters = inspect.signature(torch_npu.npu_fused_infer_attention_score_v2).parameters
    assert list(parameters)[:3] == ["query", "key", "value"]
    assert parameters["softmax_scale"].default == 1.0 and parameters["out_dtype"].default is None


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


@pytest.mark.family("A2")
def test_refuses_bad_arguments():
    q = make(2, 4, 3, 16, dtype=HALF)
    options = {"num_query_heads": 4, "input_layout": "BNSD"}
    name = "npu_fused_infer_attention_score_v2: argument "
    refuse(
        name + "'num_query_heads' must be the query's number of heads",
        q,
        q,
        q,
        num_query_heads=8,
        input_layout="BNSD",
    )
    refuse("'sparse_mode' must be 0, 1, 2, 3, 4 or 9", q, q, q, sparse_mode=5, **options)
    refuse("'actual_seq_qlen' must be from 0 to 3", q, q, q, actual_seq_qlen=[4], **options)
    refuse("'quant_scale_p' must be left at None", q, q, q, quant_scale_p=make(1), **options)
    refuse("'key_dtype' must be a type that torch.float16 holds", q, q, q, key_dtype=1, **options)
    refuse("'key_rope_dtype' must be left at None", q, q, q, key_rope_dtype=1, **options)
    refuse(
        "'dequant_scale_query' must be left out unless query is int8",
        q,
        q,
        q,
        dequant_scale_query=make(1),
        **options,
    )
    refuse(
        "'out_dtype' must be torch.float16, but received .*int8",
        q,
        q,
        q,
        out_dtype=torch.int8,
        **options,
    )
    refuse(
        "'dequant_scale_value' must be given with dequant_scale_key",
        q,
        q,
        q,
        dequant_scale_key=make(1),
        **options,
    )
    odd = make(2, 4, 3, 24, dtype=HALF)
    refuse("head size divisible by 16", odd, odd, odd, **options)
    tree = make(2, 3, 3, dtype=torch.bool)
    refuse(
        "'sparse_mode' must be 9 only with query_rope",
        q,
        q,
        q,
        sparse_mode=9,
        atten_mask=tree,
        **options,
    )


def test_refuses_bad_sinks():
    q = make(4, 2, 64, dtype=BRAIN)
    options = {
        "num_query_heads": 2,
        "input_layout": "TND",
        "actual_seq_qlen": [4],
        "actual_seq_kvlen": [4],
    }
    refuse(
        "'learnable_sink' must be of dtype torch.bfloat16",
        q,
        q,
        q,
        learnable_sink=make(2),
        **options,
    )
    refuse(
        r"'learnable_sink' must be of shape \(2\)",
        q,
        q,
        q,
        learnable_sink=make(3, dtype=BRAIN),
        **options,
    )
    half = make(4, 2, 128, dtype=HALF)
    brain = {"learnable_sink": make(2, dtype=BRAIN)}
    refuse("'learnable_sink' must be of dtype torch.float16", half, half, half, **brain, **options)
    refuse("'inner_precise' must be 0", half, half, half, **{
        **options, "learnable_sink": make(2, dtype=HALF), "inner_precise": 2,
    })  # fmt: skip


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_learnable_sink_of_dense_layouts(layout):
    q, k, v = ([draw(n, t, 64, BRAIN, n)] for n, t in ((4, 3), (2, 5), (2, 5)))
    sink = draw(1, 1, 4, BRAIN).flatten() * 3
    tensors = [on_device(pack(t, layout)) for t in (q, k, v)]
    out, _ = fia(*tensors, input_layout=layout, learnable_sink=on_device(sink), **heads())
    compare(unpack(out, layout, [3], 4)[0], q[0], k[0], v[0], BRAIN, scale=SCALE, sink=sink)


def test_refuses_an_incomplete_int8_query():
    q, k = (
        make(1, 4, 1, 512, dtype=torch.int8, low=-9, high=9),
        make(1, 1, 6, 512, dtype=torch.int8, low=-9, high=9),
    )
    options = {"num_query_heads": 4, "num_key_value_heads": 1, "input_layout": "BNSD"}
    refuse("'query_rope' must be given with an int8 query", q, k, k, **options)
    ropes = {
        "query_rope": make(1, 4, 1, 64, dtype=BRAIN),
        "key_rope": make(1, 1, 6, 64, dtype=BRAIN),
    }
    refuse("'dequant_scale_query' must be given", q, k, k, **ropes, **options)
