"""The fused inference attention of Ascend950 with float8, hifloat8 and float4 caches and queries."""

import pytest
import torch

import torch_npu
from tests.ops.attention.infer_reference import attend, draw, on_device, pack, paginate, unpack
from tests.ops.families import on
from tests.ops.support import make
from torch_npu import _dtypes

HALF, BRAIN, FP8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn
SCALE = 0.1


def fia(*args, **kwargs):
    with on("A5"):
        return torch_npu.npu_fused_infer_attention_score_v2(*args, softmax_scale=SCALE, **kwargs)


def eighth(heads, tokens, size, seed=0):
    """(N, S, D) of float8_e4m3fn."""
    return (draw(heads, tokens, size, torch.float32, seed) * 8).to(FP8)


def close(found, want, dtype=BRAIN):
    assert (found.double() - want).abs().max() <= 2 * torch.finfo(dtype).eps * want.abs().max()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mode", ["channel", "token"])
def test_float8_caches(rows, mode):
    q, k, v = draw(4, rows, 64, BRAIN), eighth(2, 6, 64, 1), eighth(2, 6, 64, 2)
    shape, kind = ((1, 2, 1, 64), BRAIN) if mode == "channel" else ((1, 6), torch.float32)
    scales = [make(*shape, dtype=kind, low=0.05, high=0.1, seed=n) for n in (3, 4)]
    number = 0 if mode == "channel" else 1
    out, _ = fia(
        *(on_device(pack([t], "BNSD")) for t in (q, k, v)), input_layout="BNSD", num_query_heads=4,
        num_key_value_heads=2, dequant_scale_key=scales[0], dequant_scale_value=scales[1],
        key_quant_mode=number, value_quant_mode=number,
    )  # fmt: skip
    factors = [s.cpu().double().view((2, 1, 64) if number == 0 else (1, 6, 1)) for s in scales]
    want, _ = attend(q.double(), k.double() * factors[0], v.double() * factors[1], SCALE)
    close(out[0].cpu(), want)


def test_float8_cache_of_the_first_version():
    q, k, v = draw(2, 1, 64, HALF), eighth(2, 6, 64, 1), eighth(2, 6, 64, 2)
    scale = make(1, 6, low=0.05, high=0.1)
    with on("A5"):
        out, lse = torch_npu.npu_fused_infer_attention_score(
            *(on_device(pack([t], "BSND")) for t in (q, k, v)), input_layout="BSND", num_heads=2,
            scale=SCALE, key_antiquant_scale=scale, value_antiquant_scale=scale,
            key_antiquant_mode=1, value_antiquant_mode=1,
        )  # fmt: skip
    factor = scale.cpu().double().view(1, 6, 1)
    want, _ = attend(q.double(), k.double() * factor, v.double() * factor, SCALE)
    close(unpack(out, "BSND", [1], 2)[0], want, HALF)
    assert lse.shape == (0,)


def test_float8_pages_with_scales_in_pages():
    q, k, v = draw(4, 1, 64, HALF), eighth(2, 40, 64, 1), eighth(2, 40, 64, 2)
    key, table = paginate([k], 32, "BnNBsD")
    value, _ = paginate([v], 32, "BnNBsD")
    scale = make(key.shape[0], 32, low=0.05, high=0.1)
    out, _ = fia(
        on_device(pack([q], "BNSD")), key, value, input_layout="BNSD", num_query_heads=4,
        num_key_value_heads=2, block_table=table, block_size=32, actual_seq_kvlen=[40],
        dequant_scale_key=scale, dequant_scale_value=scale, key_quant_mode=4, value_quant_mode=4,
    )  # fmt: skip
    pages = table.cpu()[0, :2].long()
    factor = scale.cpu().double()[pages].reshape(1, 64, 1)[:, :40]
    want, _ = attend(q.double(), k.double() * factor, v.double() * factor, SCALE)
    close(out[0].cpu(), want, HALF)


#: what the bytes of hifloat8 below stand for
HIFLOAT8 = {0x08: 1.0, 0x0C: 1.5, 0x10: 2.0, 0x88: -1.0, 0x00: 0.0}


def test_hifloat8_cache():
    codes = torch.tensor(list(HIFLOAT8), dtype=torch.uint8)
    picks = torch.randint(0, len(codes), (2, 5, 64), generator=torch.Generator().manual_seed(1))
    values = torch.tensor(list(HIFLOAT8.values()), dtype=torch.float64)[picks]
    cache = on_device(pack([codes[picks]], "BNSD"))
    q, scale = draw(2, 1, 64, HALF), make(2, 64, dtype=HALF, low=0.5, high=1.0)
    out, _ = fia(
        on_device(pack([q], "BNSD")), cache, cache, input_layout="BNSD", num_query_heads=2,
        dequant_scale_key=scale, dequant_scale_value=scale,
        key_dtype=torch_npu.hifloat8, value_dtype=torch_npu.hifloat8,
    )  # fmt: skip
    factor = scale.cpu().double().view(2, 1, 64)
    want, _ = attend(q.double(), values * factor, values * factor, SCALE)
    close(out[0].cpu(), want, HALF)


@pytest.mark.parametrize("kind", [*map(str, _dtypes.FLOAT4), "bytes"])
def test_float4_cache(kind):
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.randint(0, 16, (2, 5, 64), generator=torch.Generator().manual_seed(1))
    values = grid.double()[codes]
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    cache = on_device(pack([packed], "BNSD"))
    options = {"key_dtype": torch_npu.float4_e2m1fn_x2, "value_dtype": torch_npu.float4_e2m1fn_x2}
    if kind != "bytes":
        cache, options = cache.view(*_dtypes.FLOAT4), {}
    powers = torch.randint(124, 128, (1, 1, 2, 5, 2), generator=torch.Generator().manual_seed(2))
    scale = on_device(powers.to(torch.uint8)).view(torch.float8_e8m0fnu)
    q = draw(2, 1, 64, BRAIN)
    out, _ = fia(
        on_device(pack([q], "BNSD")), cache, cache, input_layout="BNSD", num_query_heads=2,
        dequant_scale_key=scale, dequant_scale_value=scale, key_quant_mode=6, value_quant_mode=6,
        **options,
    )  # fmt: skip
    assert out.shape == (1, 2, 1, 64)
    factor = (2.0 ** (powers.double() - 127))[0, 0].repeat_interleave(32, -1)
    want, _ = attend(q.double(), values * factor, values * factor, SCALE)
    close(out[0].cpu(), want)


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND"])
def test_latent_attention_of_a_float8_query(layout):
    q, k = eighth(4, 2, 512), eighth(1, 6, 512, 1)
    ropes = draw(4, 2, 64, BRAIN, 3), draw(1, 6, 64, BRAIN, 4)
    shape = {"BSND": (1, 2, 4), "BNSD": (1, 4, 2), "TND": (2, 4)}[layout]
    scale, one = make(*shape, low=0.01, high=0.02), make(1, low=0.01, high=0.02)
    ragged = {"actual_seq_qlen": [2], "actual_seq_kvlen": [6]} if layout == "TND" else {}
    query, cache, query_rope, key_rope = (
        on_device(pack([t], layout)) for t in (q, k, ropes[0], ropes[1])
    )
    out, lse = fia(
        query, cache, cache, query_rope=query_rope, key_rope=key_rope, input_layout=layout,
        num_query_heads=4, num_key_value_heads=1, dequant_scale_query=scale, dequant_scale_key=one,
        dequant_scale_value=one, query_quant_mode=3, return_softmax_lse=True, **ragged,
    )  # fmt: skip
    factor = scale.cpu().double()
    factor = factor.view(4, 2, 1) if layout == "BNSD" else factor.view(2, 4).T[:, :, None]
    full = torch.cat((q.double() * factor, ropes[0].double()), 2)
    keys = torch.cat((k.double() * one.item(), ropes[1].double()), 2)
    want, logs = attend(full, keys, k.double() * one.item(), SCALE)
    assert out.dtype == BRAIN
    close(unpack(out, layout, [2], 4)[0], want)
    found = lse.cpu()[..., 0].squeeze(0) if layout != "TND" else lse.cpu()[..., 0].T
    assert torch.allclose(found.double(), logs, atol=1e-4)


def test_float8_query_over_pages():
    rows, lengths = [2, 1], [130, 7]
    q = [eighth(4, n, 128, n) for n in rows]
    k, v = ([eighth(2, n, 128, n + s) for n in lengths] for s in (1, 2))
    key, table = paginate(k, 128, "BnNBsD")
    value, _ = paginate(v, 128, "BnNBsD")
    q_scale = make(4, 3, low=0.1, high=0.2)
    k_scale = make(key.shape[0], 2, 128, low=0.1, high=0.2)
    v_scale = make(2, low=0.1, high=0.2)
    out, _ = fia(
        on_device(pack(q, "NTD")), key, value, input_layout="NTD_TND", num_query_heads=4,
        num_key_value_heads=2, block_table=table, block_size=128, actual_seq_qlen=[2, 3],
        actual_seq_kvlen=lengths, dequant_scale_query=q_scale, dequant_scale_key=k_scale,
        dequant_scale_value=v_scale, query_quant_mode=3, key_quant_mode=3, value_quant_mode=2,
        quant_scale_p=make(1), out_dtype=BRAIN,
    )  # fmt: skip
    assert out.dtype == BRAIN and out.shape == (3, 4, 128)
    starts = [0, 2]
    for b, found in enumerate(unpack(out, "TND", rows, 4)):
        factor = q_scale.cpu().double()[:, starts[b] : starts[b] + rows[b], None]
        pages = table.cpu()[b, : -(-lengths[b] // 128)].long()
        by_key = k_scale.cpu().double()[pages].transpose(0, 1).reshape(2, -1, 1)[:, : lengths[b]]
        by_value = v_scale.cpu().double().view(2, 1, 1)
        want, _ = attend(
            q[b].double() * factor, k[b].double() * by_key, v[b].double() * by_value, SCALE
        )
        close(found, want)


@pytest.mark.parametrize("layout", ["BNSD", "NTD_TND"])
def test_float8_query_with_factors_of_blocks(layout):
    rows, columns = ([130, 130], [300, 300]) if layout == "BNSD" else ([130, 3], [300, 5])
    q = [eighth(2, n, 64, n + b) for b, n in enumerate(rows)]
    k, v = ([eighth(2, n, 64, n + s + b) for b, n in enumerate(columns)] for s in (3, 5))
    ragged = layout != "BNSD"
    source = "NTD" if ragged else "BNSD"
    if ragged:
        shapes = (2, 133 // 128 + 2, 1), (2, 305 // 256 + 2, 1)
        lengths = {"actual_seq_qlen": [130, 133], "actual_seq_kvlen": [300, 305]}
    else:
        shapes, lengths = ((2, 2, 2, 1), (2, 2, 2, 1)), {}
    q_scale = make(*shapes[0], low=0.1, high=0.3)
    k_scale, v_scale = (make(*shapes[1], low=0.1, high=0.3, seed=s) for s in (7, 8))
    out, _ = fia(
        *(on_device(pack(t, source)) for t in (q, k, v)), input_layout=layout, num_query_heads=2,
        dequant_scale_query=q_scale, dequant_scale_key=k_scale, dequant_scale_value=v_scale,
        query_quant_mode=7, key_quant_mode=7, value_quant_mode=7, **lengths,
    )  # fmt: skip
    firsts = {"q": [0, 130 // 128 + 1], "k": [0, 300 // 256 + 1]}

    def spread(scale, b, size, count, which):
        scale = scale.cpu().double()
        blocks = scale[:, firsts[which][b] :, 0] if ragged else scale[b, :, :, 0]
        return blocks.repeat_interleave(size, 1)[:, :count, None]

    for b, found in enumerate(unpack(out, "TND" if ragged else "BNSD", rows, 2)):
        want, _ = attend(
            q[b].double() * spread(q_scale, b, 128, rows[b], "q"),
            k[b].double() * spread(k_scale, b, 256, columns[b], "k"),
            v[b].double() * spread(v_scale, b, 256, columns[b], "k"),
            SCALE,
        )
        close(found, want, HALF)


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


@pytest.mark.family("A2")
def test_refusals():
    q, cache = make(1, 2, 1, 64, dtype=HALF), on_device(pack([eighth(2, 6, 64)], "BNSD"))
    options = {"num_query_heads": 2, "input_layout": "BNSD"}
    scale = make(2, 64, dtype=HALF)
    pair = {"dequant_scale_key": scale, "dequant_scale_value": scale}
    name = "npu_fused_infer_attention_score_v2: argument "
    with pytest.raises(RuntimeError, match=name + "'key' must be float16, bfloat16 or an integer"):
        torch_npu.npu_fused_infer_attention_score_v2(q, cache, cache, **pair, **options)
    refuse("'dequant_scale_key' must be given with a float8_e4m3fn key", q, cache, cache, **options)
    refuse("'dequant_scale_key' must be of dtype torch.float16", q, cache, cache, **options, **{
        **pair, "dequant_scale_key": scale.float(),
    })  # fmt: skip
    refuse("'key_quant_mode' must be 0, 1 or 4, but received 3", q, cache, cache, **pair, **{
        **options, "key_quant_mode": 3, "value_quant_mode": 3,
    })  # fmt: skip
    refuse("'value' must be of the format of key", q, cache, make(1, 2, 6, 64, dtype=HALF), **pair,
           **options)  # fmt: skip
    whole = {"dequant_scale_query": make(1), **pair}
    refuse("MXFP8.* not emulated", cache, cache, cache, **whole, **{
        **options, "query_quant_mode": 6, "key_quant_mode": 6, "value_quant_mode": 8,
    })  # fmt: skip
    refuse("'query_quant_mode' must be with those of key and value", cache, cache, cache, **whole,
           **options)  # fmt: skip
    refuse("'key_dtype' must be a type that torch.float16 holds", q, q, q, **{
        **options, "key_dtype": torch_npu.hifloat8,
    })  # fmt: skip
