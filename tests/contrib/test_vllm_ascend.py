"""softnpu.contrib.vllm_ascend: the operators `_C_ascend` against formulas of their own, without vllm-ascend."""

from __future__ import annotations

import importlib
import pathlib
import sys
import types

import pytest
import torch

import acl
import torch_npu  # noqa: F401
from softnpu.contrib import vllm_ascend


@pytest.fixture(scope="module", autouse=True)
def ops():
    """The extension under the program's name, as it imports it when nothing was compiled."""
    vllm_ascend.install()
    vllm_ascend.install()  # twice does nothing
    program = types.ModuleType("vllm_ascend")
    program.__path__ = []
    before = sys.modules.get("vllm_ascend")
    sys.modules["vllm_ascend"] = program
    extension = importlib.import_module("vllm_ascend.vllm_ascend_C")
    assert extension.__name__ == "softnpu.contrib.vllm_ascend.extension"
    yield torch.ops._C_ascend
    del sys.modules["vllm_ascend.vllm_ascend_C"]
    if before is None:
        del sys.modules["vllm_ascend"]
    else:
        sys.modules["vllm_ascend"] = before


def npu(*tensors):
    return tuple(tensor.npu() for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
def test_add_rms_norm_bias(ops, dtype, biased):
    x1, x2 = torch.randn(5, 32).to(dtype), torch.randn(5, 32).to(dtype)
    gamma, beta = torch.randn(32).to(dtype), torch.randn(32).to(dtype)
    y, rstd, x = ops.npu_add_rms_norm_bias(
        *npu(x1, x2, gamma), beta.npu() if biased else None, 1e-5
    )
    total = x1.double() + x2.double() if dtype == torch.bfloat16 else (x1 + x2).double()
    root = (total.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = total / root * gamma.double() + (beta.double() if biased else 0)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}
    torch.testing.assert_close(y.cpu().double(), expected, **close)
    torch.testing.assert_close(rstd.cpu().double(), 1 / root, atol=1e-5, rtol=1e-5)
    assert torch.equal(x.cpu(), x1 + x2) and y.dtype == dtype


def test_gemma_rms_norm(ops):
    x, gamma = torch.randn(4, 16), torch.randn(16)
    y, _ = ops.npu_gemma_rms_norm(*npu(x, gamma), 1e-6)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + gamma.double())
    torch.testing.assert_close(y.cpu().double(), expected, atol=1e-5, rtol=1e-5)


def routed(x, k, groups, kept_groups, bias):
    """DeepSeek-V3's routing, token by token."""
    weights, experts = [], []
    for row in x.double():
        score = torch.sigmoid(row)
        biased = score + bias.double()
        best = biased.view(groups, -1).topk(2, -1).values.sum(-1).topk(kept_groups).indices
        allowed = torch.full_like(biased, -torch.inf).view(groups, -1)
        allowed[best] = biased.view(groups, -1)[best]
        chosen = allowed.view(-1).topk(k).indices
        experts.append(chosen)
        weights.append(2.5 * score[chosen] / score[chosen].sum())
    return torch.stack(weights), torch.stack(experts)


def test_moe_gating_top_k_of_deepseek_v3(ops):
    x, bias = torch.randn(7, 16), torch.randn(16) * 0.1
    y, index, out = ops.moe_gating_top_k(
        x.npu(), k=4, k_group=2, group_count=4, group_select_mode=1, renorm=0, norm_type=1,
        out_flag=False, routed_scaling_factor=2.5, eps=1e-20, bias_opt=bias.npu(),
    )  # fmt: skip
    weights, experts = routed(x, 4, 4, 2, bias)
    assert torch.equal(index.cpu().long(), experts)
    torch.testing.assert_close(y.cpu().double(), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("renorm", [0, 1])
def test_moe_gating_top_k_of_a_softmax(ops, renorm):
    x = torch.randn(6, 8)
    y, index, _ = ops.moe_gating_top_k(x.npu(), 2, 1, 1, 0, renorm, 0, False, 1.0, 1e-20)
    expected, experts = torch.softmax(x.double(), -1).topk(2)
    if renorm:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(index.cpu().long(), experts)
    torch.testing.assert_close(y.cpu().double(), expected, atol=1e-6, rtol=1e-5)


def lora_reference(x, weight, index):
    rows = [
        torch.zeros(weight.size(-2)).double()
        if i < 0
        else weight.double().flatten(0, -3)[i] @ row.double()
        for row, i in zip(x, index.tolist())
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("dims", [3, 4])
def test_bgmv(ops, dims):
    index = torch.tensor([1, -1, 0, 2, 2])
    x = torch.randn(5, 24).half()
    down = torch.randn(3, 4, 24).half()
    down = down if dims == 3 else down[:, None]
    y = torch.ones(5, 4)
    device = y.npu()
    ops.bgmv_shrink(*npu(x, down, index), device, 0.5)
    expected = torch.where(index[:, None] < 0, 1.0, lora_reference(x, down, index) * 0.5)
    torch.testing.assert_close(device.cpu().double(), expected, atol=1e-4, rtol=1e-4)

    up = torch.randn(3, 6, 4).half()
    up = up if dims == 3 else up[:, None]
    z = torch.randn(5, 10).half()
    device = z.npu()
    small = torch.randn(5, 4)
    result = ops.bgmv_expand(*npu(small, up, index), device, 3, 6)
    expected = z.double()
    expected[:, 3:9] += lora_reference(small, up, index)
    assert result.data_ptr() == device.data_ptr()
    torch.testing.assert_close(device.cpu().double(), expected, atol=1e-2, rtol=1e-2)
    with pytest.raises(ValueError, match=r"slice_offset \+ slice_size must be at most .* = 10"):
        ops.bgmv_expand(*npu(small, up, index), device, 5, 6)


def test_sgmv_is_bgmv_of_sequences(ops):
    lengths, indices = torch.tensor([2, 1, 3]), torch.tensor([1, -1, 0])
    each = torch.tensor([1, 1, -1, 0, 0, 0, -1])  # the last token belongs to no sequence
    x, down, up = torch.randn(7, 16), torch.randn(2, 4, 16), torch.randn(2, 5, 4)
    y = torch.zeros(7, 4).npu()
    ops.sgmv_shrink(*npu(x, down, indices, lengths), y, 2.0)
    torch.testing.assert_close(
        y.cpu().double(), lora_reference(x, down, each) * 2, atol=1e-4, rtol=1e-4
    )
    z = torch.randn(7, 5)
    device = z.npu()
    small = torch.randn(7, 4)
    ops.sgmv_expand(*npu(small, up, indices, lengths), device, 0, 5)
    expected = z.double() + lora_reference(small, up, each)
    torch.testing.assert_close(device.cpu().double(), expected, atol=1e-4, rtol=1e-4)


def swiglu_reference(x, weight, scale, x_scale, ends, limit):
    result = torch.zeros(x.size(0), weight.size(-1) // 2).double()
    start = 0
    for expert, end in enumerate(ends):
        product = x[start:end].double() @ weight[expert].double()
        wide = product * scale[expert].double() * x_scale[start:end, None].double()
        gate, up = wide.chunk(2, -1)
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        result[start:end] = gate * torch.sigmoid(gate) * up
        start = end
    return result


@pytest.mark.parametrize("limit", [0.0, 3.0])
@pytest.mark.parametrize("listed", [False, True])
def test_grouped_matmul_swiglu_quant(ops, limit, listed):
    x = torch.randint(-127, 128, (6, 32), dtype=torch.int8)
    weight = torch.randint(-127, 128, (3, 32, 64), dtype=torch.int8)
    scale, x_scale = torch.rand(3, 64) / 2000, torch.rand(6) / 20 + 0.01
    ends = torch.tensor([2, 2, 6])
    if listed:
        y, y_scale, _ = ops.grouped_matmul_swiglu_quant_weight_nz_tensor_list(
            x.npu(), list(npu(*weight)), list(npu(*scale)), *npu(x_scale, ends), swiglu_limit=limit
        )
    else:
        y, y_scale, _ = ops.grouped_matmul_swiglu_quant_weight_nz(
            *npu(x, weight, scale, x_scale, ends), swiglu_limit=limit
        )
    expected = swiglu_reference(x, weight, scale, x_scale, ends.tolist(), limit)
    got = y.cpu().double() * y_scale.cpu().double()[:, None]
    step = expected.abs().amax(-1, keepdim=True) / 127
    assert y.dtype == torch.int8 and ((got - expected).abs() <= 0.51 * step + 1e-6).all()


def test_what_grouped_matmul_swiglu_quant_does_not_have_raises(ops):
    x, weight = torch.zeros(2, 32, dtype=torch.int8), torch.zeros(1, 32, 64, dtype=torch.int8)
    rest = npu(torch.ones(1, 64), torch.ones(2), torch.tensor([2]))
    with pytest.raises(NotImplementedError, match="argument 'bias' must be left at None"):
        ops.grouped_matmul_swiglu_quant(*npu(x, weight), *rest, bias=torch.ones(1, 64).npu())


def test_batch_matmul_transpose(ops):
    a, b = torch.randn(3, 2, 8).half(), torch.randn(2, 8, 5).half()
    for shape in [(3, 10), (3, 2, 5)]:
        c = torch.empty(shape, dtype=torch.half).npu()
        ops.batch_matmul_transpose(*npu(a, b), c)
        expected = torch.einsum("mhk,hkn->mhn", a.double(), b.double())
        torch.testing.assert_close(c.cpu().double().view(3, 2, 5), expected, atol=1e-2, rtol=1e-2)


def test_transpose_kv_cache_by_block(ops):
    """Two ranks sent their heads one after the other; afterwards each token has its heads side by side."""
    size, heads, dim, split = 4, 2, 3, 2
    caches = [torch.randn(5, size, heads, dim) for _ in range(2)]
    device = [cache.npu() for cache in caches]
    blocks = torch.tensor([3, 1])
    ops.transpose_kv_cache_by_block(
        device[:1], device[1:], blocks.npu(), size, heads, dim, split, 1
    )
    for cache, result in zip(caches, device):
        expected = cache.clone()
        for block in blocks.tolist():
            flat = cache[block].flatten().view(split, size, heads // split, dim)
            for token in range(size):
                for rank in range(split):
                    expected[block, token, rank] = flat[rank, token, 0]
        assert torch.equal(result.cpu(), expected)
    with pytest.raises(ValueError, match="must have layerNum = 2 tensors, received 1 and 1"):
        ops.transpose_kv_cache_by_block(
            device[:1], device[1:], blocks.npu(), size, heads, dim, split, 2
        )


def test_swap_blocks(ops):
    source, target = torch.randn(4, 6), torch.zeros(4, 6).npu()
    ops.swap_blocks(source.npu(), target, torch.tensor([[0, 3], [2, 1]]))
    assert torch.equal(target.cpu()[[3, 1]], source[[0, 2]]) and not target[0].any()


def test_swap_blocks_batch_copies_by_addresses(ops):
    host, device = torch.arange(8.0), torch.zeros(8, device="npu")
    addresses = [
        torch.tensor([t.data_ptr(), t.data_ptr() + 16], dtype=torch.int64) for t in (host, device)
    ]
    sizes = torch.tensor([8, 16], dtype=torch.int64)
    ops.swap_blocks_batch(*addresses, sizes, 0)
    assert device.tolist() == [0.0, 1.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0]
    with pytest.raises(ValueError, match="direction must be 0"):
        ops.swap_blocks_batch(*addresses, sizes, 7)


def test_they_are_captured_and_trace(ops):
    x1, x2, gamma = torch.randn(3, 8).npu(), torch.randn(3, 8).npu(), torch.ones(8).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y, _, _ = ops.npu_add_rms_norm_bias(x1, x2, gamma, gamma, 1e-6)
    x1.fill_(2.0)
    graph.replay()
    assert torch.equal(y, ops.npu_add_rms_norm_bias(x1, x2, gamma, gamma, 1e-6)[0])
    meta = ops.moe_gating_top_k(
        torch.empty(5, 8, device="meta"), 2, 1, 1, 0, 0, 0, True, 1.0, 1e-20
    )
    assert [tuple(m.shape) for m in meta] == [(5, 2), (5, 2), (5, 8)]


def test_sleep_mode(ops, monkeypatch, tmp_path):
    """A pool as vllm-ascend makes it: asleep its memory is gone, awake it is there at the same address."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from vllm_ascend.vllm_ascend_C import (
        init_module,
        python_create_and_map,
        python_unmap_and_release,
    )

    maps = pathlib.Path("/proc/self/maps").read_text()
    library = next(line.split()[-1] for line in maps.splitlines() if "vllm_ascend_C" in line)
    known = {}
    init_module(lambda handle: known.update({handle[2]: handle}), known.pop)
    allocator = torch.npu.memory.NPUPluggableAllocator(library, "my_malloc", "my_free")
    pool = torch.npu.memory.MemPool(allocator._allocator)
    with torch.npu.memory.use_mem_pool(pool):
        x = torch.arange(1000.0, device="npu")
    (handle,) = known.values()
    assert handle[0] == 0 and handle[1] == 2 << 20 and handle[2] <= x.data_ptr() < sum(handle[1:3])
    kept, size, address = x.cpu(), handle[1], handle[2]
    backup = torch.empty(size, dtype=torch.uint8, pin_memory=True)  # of all that was mapped
    room = backup.data_ptr() + 2 * size
    assert acl.rt.memcpy(backup.data_ptr(), room, address, size, 2) == 0
    python_unmap_and_release(*handle)
    assert not x.cpu().any()
    python_create_and_map(*handle)
    assert acl.rt.memcpy(address, address + 2 * size, backup.data_ptr(), size, 1) == 0
    assert torch.equal(x.cpu(), kept)
    with pytest.raises(TypeError, match="python_free must be callable, received 1"):
        init_module(print, 1)
    with pytest.raises(ImportError):
        from vllm_ascend.vllm_ascend_C import nothing_of_this_name  # noqa: F401


def test_sleep_mode_without_a_compiler_is_an_import_error(ops, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ImportError, match="needs a C compiler, 'no-such-compiler' was not found"):
        from vllm_ascend.vllm_ascend_C import init_module  # noqa: F401
