"""Small operators of `_C_ascend`: rotation in place, caches, norms with quantization, experts, printing."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops, replayed, run


@pytest.mark.parametrize("mode", ["interleave", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inplace_partial_rotary_mul(mode, dtype):
    x = torch.randn(3, 1, 2, 12).to(dtype)
    angle = torch.randn(3, 1, 1, 8)
    device = x.npu()
    ops.inplace_partial_rotary_mul(device, *npu(angle.cos(), angle.sin()), mode, [4, 12])
    assert torch.equal(device[..., :4].cpu(), x[..., :4])
    part, cos, sin = x[..., 4:].double(), angle.cos().double(), angle.sin().double()
    expected = torch.empty_like(part)
    for i in range(4):
        a, b = (2 * i, 2 * i + 1) if mode == "interleave" else (i, i + 4)
        expected[..., a] = part[..., a] * cos[..., a] - part[..., b] * sin[..., a]
        expected[..., b] = part[..., b] * cos[..., b] + part[..., a] * sin[..., b]
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        device[..., 4:].cpu().double(), expected, atol=tolerance, rtol=tolerance
    )
    with pytest.raises(RuntimeError, match="'partial_slice' must be an even range"):
        ops.inplace_partial_rotary_mul(device, *npu(angle, angle), mode, [4, 13])
    with pytest.raises(RuntimeError, match="'r1' must be of a shape that broadcasts to"):
        ops.inplace_partial_rotary_mul(device, *npu(angle, angle), mode, [0, 6])


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd_update_v2(dtype, depth):
    """A slot outside of the cache, -1 of a padded token, is left out; caches may be views."""
    wide = torch.randint(-9, 9, (6, 4, 3)).to(dtype)
    indices = torch.tensor([[4, 1], [-1, -1], [0, 3], [9, 0]])[:, :depth]
    updates = torch.randint(-9, 9, (4, *wide.shape[depth:])).to(dtype)
    device = wide.npu()
    ops.npu_scatter_nd_update_v2(device[1:], *npu(indices.int(), updates))
    expected = wide.float()
    for index, update in zip(indices.tolist(), updates.float()):
        if 0 <= index[0] < 5:
            expected[1:][tuple(index)] = update
    assert torch.equal(device.cpu().float(), expected)
    with pytest.raises(RuntimeError, match="'update' must be of .* elements, a slice of 'var'"):
        ops.npu_scatter_nd_update_v2(device, *npu(indices.int(), updates[:2]))


def test_store_kv_block():
    slots = torch.tensor([6, 7, 8, -1, 3, 2, 9, 10]).int()
    groups = [torch.full((8,), 77, dtype=torch.int32).npu() for _ in range(3)]
    ops.store_kv_block_metadata(slots.npu(), *groups, 4)
    assert groups[0].tolist() == [2, 1, 1, 1, 2, 0, 0, 0]
    assert groups[1].tolist() == [0, 2, 4, 5, 6, 0, 0, 0]
    assert groups[2].tolist() == [6, 8, 3, 2, 9, 0, 0, 0]
    key, cache = torch.randn(8, 5).bfloat16(), torch.randn(3, 4, 1, 5).bfloat16()
    device = cache.npu()
    ops.store_kv_block(key.npu(), device, *groups, 4)
    expected = cache.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 4, slot % 4, 0] = key[token]
    assert torch.equal(device.cpu(), expected)
    with pytest.raises(RuntimeError, match="'group_len' must be of at least 5 elements.* 3"):
        ops.store_kv_block_metadata(slots.npu(), *(g[:3] for g in groups), 4)
    with pytest.raises(RuntimeError, match="'block_size' must be 4, as 'key_cache_in' has it"):
        ops.store_kv_block(key.npu(), device, *groups, 2)


@pytest.mark.parametrize("full", [False, True])
def test_rms_norm_dynamic_quant(full):
    x, gamma = torch.randn(5, 32).bfloat16(), torch.randn(32).bfloat16()
    smooth, beta = (torch.rand(32).bfloat16() + 0.5 if full else None for _ in range(2))
    y, scale = run(ops.npu_rms_norm_dynamic_quant, x, gamma, smooth, beta, 1e-5)
    wide = x.double()
    value = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double()
    if full:
        value = (value + beta.double()) * smooth.double()
    step = value.abs().amax(-1) / 127
    torch.testing.assert_close(scale.double(), step, atol=1e-6, rtol=1e-5)
    assert y.dtype == torch.int8
    assert ((y.double() - value / step[:, None]).abs() <= 0.51).all()
    with pytest.raises(RuntimeError, match="'gamma' must be of shape"):
        ops.npu_rms_norm_dynamic_quant(x.npu(), gamma[:8].npu())


def test_batch_matmul_transpose_of_nz_weights():
    a, b = torch.randn(3, 2, 16).half(), torch.randn(2, 16, 32).half()
    nz = b.view(2, 16, 2, 16).transpose(1, 2).contiguous()
    c = torch.empty(3, 64, dtype=torch.half).npu()
    ops.batch_matmul_transpose(*npu(a, nz), c, "NZ")
    expected = torch.einsum("mhk,hkn->mhn", a.double(), b.double())
    torch.testing.assert_close(c.cpu().double().view(3, 2, 32), expected, atol=1e-2, rtol=1e-2)
    with pytest.raises(RuntimeError, match="'tensor_b' must be of shape"):
        ops.batch_matmul_transpose(*npu(a, b), c, "NZ")
    with pytest.raises(RuntimeError, match="'format_mode' must be"):
        ops.batch_matmul_transpose(*npu(a, b), c, "HWCN")


def test_device_print_prints_again_on_replay(capfd):
    x = torch.ones(3).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        ops.device_print("after the step")
        ops.device_print_tensor(x)
    capfd.readouterr()
    x.fill_(5.0)
    graph.replay()
    torch.npu.synchronize()
    said = capfd.readouterr().out
    assert said == "after the step\ntensor([5., 5., 5.])\n"
    ops.device_print_tensor(torch.zeros(2))
    assert capfd.readouterr().out == "tensor([0., 0.])\n"


def packed(weight):
    """Eight int4 of the last dimension in an int32, the first one lowest."""
    parts = (weight.long() & 15).view(*weight.shape[:-1], -1, 8)
    total = sum(parts[..., i] << (4 * i) for i in range(8))
    return total.where(total < 2**31, total - 2**32).int()


def hidden(product, limit):
    gate, up = product.chunk(2, -1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate / (1 + (-gate).exp()) * up


@pytest.mark.parametrize("limit", [0.0, 0.7])
@pytest.mark.parametrize("version", [1, 2])
def test_experts_with_4_bit_weights(limit, version):
    """The assisting matrix, 8 times the sums of the scaled weights, makes up for the shift of the rows by 8."""
    x = torch.randint(-127, 128, (6, 32), dtype=torch.int8)
    weight = torch.randint(-8, 8, (3, 32, 64))
    scale, x_scale = torch.rand(3, 64) / 100, torch.rand(6) / 10 + 0.01
    bits = scale.view(torch.int32).long()[:, None]
    assist = 8 * (weight.double() * scale.double()[:, None]).sum(1).float()
    sizes = torch.tensor([2, 0, 3])
    given = x, packed(weight), bits, x_scale
    if version == 1:
        q, step, _ = run(
            ops.grouped_matmul_swiglu_quant_weight_nz, *given, sizes.cumsum(0), bias=assist,
            swiglu_limit=limit,
        )  # fmt: skip
    else:
        q, step = run(
            ops.grouped_matmul_swiglu_quant_v2, x, [given[1]], [bits], x_scale, sizes,
            weight_assist_matrix=[assist], group_list_type=1, swiglu_limit=limit,
        )  # fmt: skip
    expert = [0, 0, 2, 2, 2]
    for row, e in enumerate(expert):
        product = x[row].double() @ weight[e].double() * scale[e].double() * x_scale[row].double()
        value = hidden(product, limit)
        top = value.abs().max() / 127
        assert abs(float(step[row]) - top) <= 2e-3 * top + 1e-7
        assert (
            q[row].double() * step[row] - value
        ).abs().max() <= 0.6 * top + 1e-3 * value.abs().max()
    assert not q[5].any()
    with pytest.raises(RuntimeError, match="must be given for int8 rows and int4 weights"):
        ops.grouped_matmul_swiglu_quant(*npu(*given, sizes.cumsum(0)))


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_moe_gating_top_k_hash(kind):
    x, bias = torch.randn(5, 8), torch.randn(8) * 0.1
    wide = x.double()
    scores = [wide.softmax(-1), wide.sigmoid(), (1 + wide.exp()).log().sqrt()][kind]
    y, index, out = run(
        ops.moe_gating_top_k_hash, x, 2, bias, routed_scaling_factor=1.5, norm_type=kind,
        out_flag=True,
    )  # fmt: skip
    chosen = (scores + bias.double()).topk(2).indices
    weights = scores.gather(1, chosen)
    expected = 1.5 * weights / (weights.sum(-1, keepdim=True) if kind else 1)
    assert torch.equal(index.long(), chosen)
    torch.testing.assert_close(y.double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(out.double(), scores, atol=1e-6, rtol=1e-5)
    table, ids = torch.randint(0, 8, (20, 2)).int(), torch.randint(0, 20, (5,))
    y, index, _ = run(ops.moe_gating_top_k_hash, x, 2, None, ids, table, norm_type=kind)
    assert torch.equal(index, table[ids])
    with pytest.raises(RuntimeError, match="'tid2eid' must be given with 'input_ids'"):
        ops.moe_gating_top_k_hash(x.npu(), 2, input_ids=ids.npu())
    with pytest.raises(RuntimeError, match="'renorm' must be"):
        ops.moe_gating_top_k_hash(x.npu(), 2, renorm=1)


def test_writes_are_captured():
    cache, key = torch.zeros(4, 3).npu(), torch.ones(2, 3).npu()
    index = torch.tensor([[3], [1]]).int().npu()
    replayed(lambda: ops.npu_scatter_nd_update_v2(cache, index, key), lambda: key.fill_(2.0))
    assert cache.sum(1).tolist() == [0.0, 6.0, 0.0, 6.0]
