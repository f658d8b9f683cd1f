"""Attention of sgl-kernel-npu's library; where it equals another operator, that one is the reference."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import ops as ascend
from sgl_ops import close, library, npu, ops  # noqa: F401  # a fixture

i32 = torch.int32
BF16 = torch.bfloat16


def test_batch_matmul_transpose():
    a, b = torch.randn(5, 3, 8).to(BF16), torch.randn(3, 8, 4).to(BF16)
    c = torch.zeros(5, 12, dtype=BF16).npu()
    ops.batch_matmul_transpose(*npu(a, b), c)
    close(c, torch.einsum("mhk,hkn->mhn", a.double(), b.double()).flatten(1), 5e-2)
    with pytest.raises(RuntimeError, match="'tensor_c' must be of 5 x 3 x 4 elements"):
        ops.batch_matmul_transpose(*npu(a, b), c[:, :3])


def test_mla_preprocess():
    """`gamma0` and `beta0` are not read; of `beta1` the elements that `gamma1` has."""
    tokens, hidden, heads, nope, latent, rope, lora = 3, 64, 2, 16, 32, 8, 24
    x, gamma, beta = (torch.randn(n).to(BF16) for n in ((tokens, hidden), (hidden,), (hidden,)))
    weights = {
        "wdqkv": torch.randint(-9, 9, (latent + rope + lora, hidden), dtype=torch.int8),
        "descale0": torch.rand(latent + rope + lora) * 1e-2,
        "gamma1": torch.randn(lora).to(BF16),
        "beta1": torch.randn(hidden).to(BF16),
        "wuq": torch.randint(-9, 9, (heads * (nope + rope), lora), dtype=torch.int8),
        "descale1": torch.rand(heads * (nope + rope)) * 1e-2,
        "gamma2": torch.randn(latent).to(BF16),
        "cos": torch.randn(tokens, rope).to(BF16),
        "sin": torch.randn(tokens, rope).to(BF16),
        "wuk": torch.randn(heads, nope, latent).to(BF16),
    }
    scales = {
        "quant_scale0": torch.tensor([0.05]).to(BF16),
        "quant_offset0": torch.tensor([3], dtype=torch.int8),
        "bias0": torch.randint(-9, 9, (latent + rope + lora,), dtype=i32),
        "quant_scale1": torch.tensor([0.05]).to(BF16),
        "quant_offset1": torch.tensor([-2], dtype=torch.int8),
        "bias1": torch.randint(-9, 9, (heads * (nope + rope),), dtype=i32),
    }
    caches = torch.zeros(2, 4, 1, latent, dtype=BF16), torch.zeros(2, 4, 1, rope, dtype=BF16)
    slots = torch.tensor([6, 0, 3], dtype=i32)
    outputs = [
        torch.zeros(tokens, heads, latent, dtype=BF16),
        caches[0],
        torch.zeros(tokens, heads, rope, dtype=BF16),
        caches[1],
    ]
    given = {name: tensor.npu() for name, tensor in (weights | scales).items()}
    names = ("q_out0", "kv_cache_out0", "q_out1", "kv_cache_out1")
    out = dict(zip(names, npu(*outputs), strict=True))
    mode = {"cache_mode": "krope_ctkv", "quant_mode": "per_tensor_quant_asymm"}
    call = dict(
        **given,
        kv_cache=out["kv_cache_out0"],
        kv_cache_rope=out["kv_cache_out1"],
        slotmapping=slots.npu(),
        **mode,
        **out,
    )
    ops.mla_preprocess(hiddenState=x.npu(), gamma0=gamma.npu(), beta0=beta.npu(), **call)

    rows = x.double() / float(scales["quant_scale0"]) + 3
    rows = rows.round().clamp(-128, 127)
    down = (rows @ weights["wdqkv"].double().t() + scales["bias0"]) * weights["descale0"].double()
    c = down[:, :latent]
    key = c / (c.square().mean(1, keepdim=True) + 1e-6).sqrt() * weights["gamma2"].double()
    found = out["kv_cache_out0"].cpu().view(8, latent)[slots.long()]
    close(found, key, 5e-2)
    r = down[:, latent : latent + rope]
    turned = torch.cat((-r[:, rope // 2 :], r[:, : rope // 2]), 1)
    expected = r * weights["cos"].double() + turned * weights["sin"].double()
    close(out["kv_cache_out1"].cpu().view(8, rope)[slots.long()], expected, 5e-2)
    d = down[:, latent + rope :].to(BF16).double()
    d = d / (d.square().mean(1, keepdim=True) + 1e-6).sqrt() * weights["gamma1"].double()
    d = (d + weights["beta1"][:lora].double()) / float(scales["quant_scale1"]) - 2
    up = d.round().clamp(-128, 127) @ weights["wuq"].double().t() + scales["bias1"]
    up = (up * weights["descale1"].double()).view(tokens, heads, nope + rope)
    query = torch.einsum("thn,hnl->thl", up[..., :nope], weights["wuk"].double())
    close(out["q_out0"], query, 2e-1)
    with pytest.raises(RuntimeError, match="'cache_mode' must be"):
        ops.mla_preprocess(
            hiddenState=x.npu(),
            gamma0=gamma.npu(),
            beta0=beta.npu(),
            **(call | {"cache_mode": "kvcache"}),
        )
    with pytest.raises(RuntimeError, match="'quant_mode' must be 'per_tensor_quant_asymm'"):
        ops.mla_preprocess(
            hiddenState=x.npu(),
            gamma0=gamma.npu(),
            beta0=beta.npu(),
            **(call | {"quant_mode": None}),
        )
    with pytest.raises(RuntimeError, match="'beta1' must be of at least 24 elements"):
        ops.mla_preprocess(
            hiddenState=x.npu(),
            gamma0=gamma.npu(),
            beta0=beta.npu(),
            **(call | {"beta1": x[0, 1:9].npu()}),
        )


def test_lightning_indexer():
    q, k, w = (
        torch.randn(1, 4, 8, 128).to(BF16),
        torch.randn(1, 300, 1, 128).to(BF16),
        torch.randn(1, 4, 8).to(BF16),
    )
    found = ops.lightning_indexer(*npu(q, k, w), sparse_count=2048)
    expected, _ = ops.npu_lightning_indexer(*npu(q, k, w), sparse_count=2048)
    assert torch.equal(found, expected)
    assert torch.equal(ops.lightning_indexer(*npu(q, k, w)), expected)


def test_sparse_attn_sharedkv():
    q, kv = torch.randn(5, 4, 16).to(BF16), torch.randn(6, 4, 1, 16).to(BF16)
    table = torch.tensor([[1, 3, 5], [0, 2, 4]], dtype=i32)
    given = {
        "ori_kv": kv.npu(),
        "ori_block_table": table.npu(),
        "cu_seqlens_q": torch.tensor([0, 2, 5], dtype=i32).npu(),
        "seqused_kv": torch.tensor([9, 11], dtype=i32).npu(),
        "softmax_scale": 0.25,
        "ori_win_left": 3,
        "layout_q": "TND",
    }
    lengths = torch.tensor([9, 11], dtype=i32)
    metadata = ops.sparse_attn_sharedkv_metadata_host(4, 1, 16, "TND", "PA_ND", seqused_kv=lengths)
    assert metadata.shape == (1024,) and metadata.device.type == "npu"
    found, _ = ops.sparse_attn_sharedkv(q.npu(), metadata=metadata, **given)
    expected, _ = ascend.npu_sparse_attn_sharedkv(q.npu(), **given)
    assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="'seqused_kv' must be on the host"):
        ops.sparse_attn_sharedkv_metadata_host(4, 1, 16, "TND", "PA_ND", seqused_kv=lengths.npu())


def test_sparse_attention_score():
    q, kv = torch.randn(3, 4, 16).half(), torch.randn(6, 4, 2, 16).half()
    chosen = torch.tensor([[[0, 1], [1, -1], [0, -1]]] * 2, dtype=i32)
    table, lengths = torch.tensor([[1, 3], [0, 2]], dtype=i32), torch.tensor([2, 1], dtype=i32)
    args = npu(q, kv, kv, chosen, table)
    given = {
        "actual_seq_lengths": lengths.npu(),
        "actual_seq_lengths_kv": torch.tensor([7, 3], dtype=i32).npu(),
        "num_key_value_heads": 2,
        "block_size": 4,
        "top_k": 2,
    }
    found = ops.npu_sparse_attention_score(*args, **given)
    assert torch.equal(found, ascend.npu_sparse_attention_score(*args, **given))


def test_compressor():
    width, hidden = 8, 6
    state = torch.zeros(3, 4, 2 * width)
    args = [
        torch.randn(4, hidden).to(BF16), torch.randn(width, hidden).to(BF16), torch.randn(width, hidden).to(BF16),
        state, torch.randn(2, width), torch.randn(width), torch.randn(2, 4), torch.randn(2, 4),
        torch.tensor([[1, 2]], dtype=i32), torch.tensor([0, 4], dtype=i32), None, torch.tensor([0], dtype=i32),
    ]  # fmt: skip
    one, two = npu(*args), npu(*args)
    numbers = (4, 2, 1, 1e-6, 2, 1)
    found = ops.compressor(*one, *numbers, state_cache_stride_dim0=64)
    expected = ascend.compressor(*two, *numbers)
    assert torch.equal(found, expected) and torch.equal(one[3], two[3])
    with pytest.raises(RuntimeError, match="'state_cache_stride_dim0' must be 0 or 64"):
        ops.compressor(*one, *numbers, state_cache_stride_dim0=32)
