"""The operators of sgl-kernel-npu's library, against plain loops: tables of slots, trees, masks, LoRA, transfers."""

from __future__ import annotations

import pytest
import torch
from sgl_ops import library, npu, ops  # noqa: F401  # a fixture

from softnpu import kernels

i32, i64 = torch.int32, torch.int64


def integers(*values, dtype=i64):
    return torch.tensor(values, dtype=dtype)


def test_library(capfd):
    assert "libsgl_kernel_npu.so" in kernels.registered_libraries()
    assert "/nowhere/lib/libsgl_kernel_npu.so" in torch.ops.loaded_libraries
    assert ops.sgl_kernel_npu_version() == "0.1.0"
    ops.sgl_kernel_npu_print_version()
    assert "library version: 0.1.0" in capfd.readouterr().out
    x, y = torch.randn(3, 5).half(), torch.randn(3, 5).half()
    assert torch.equal(ops.helloworld(*npu(x, y)).cpu(), x + y)


@pytest.mark.parametrize("dtype", [i32, i64])
@pytest.mark.parametrize("lengths", [[3, 0, 16, 1], [5], []])
def test_cache_locations(dtype, lengths):
    count = len(lengths)
    pool = torch.arange(7 * 40, dtype=i32).view(7, 40)
    requests = torch.randperm(7)[:count].to(dtype)
    start = torch.randint(0, 24, (count,))
    end = start + torch.tensor(lengths, dtype=i64)
    slots = torch.randint(500, 999, (sum(lengths) + 2,), dtype=i32)
    written, read, place = pool.clone(), slots.clone(), 0
    for row in range(count):
        for position in range(start[row], end[row]):
            written[requests[row].long(), position] = slots[place]
            read[place] = pool[requests[row].long(), position]
            place += 1
    device = pool.npu()
    result = ops.cache_loc_assign(*npu(requests), device, *npu(start, end, slots))
    assert torch.equal(result.cpu(), written) and result.data_ptr() == device.data_ptr()
    device = slots.npu()
    result = ops.cache_loc_update(*npu(requests, pool, start, end), device)
    assert torch.equal(result.cpu(), read) and torch.equal(device.cpu(), read)


def test_cache_locations_of_a_view():
    """Rows of a table with a stride are written where they lie."""
    whole = torch.zeros(4, 9, dtype=i32).npu()
    view = whole[:, 1:6]
    ops.cache_loc_assign(
        *npu(integers(2)), view, *npu(integers(1), integers(3)), integers(8, 9, dtype=i32).npu()
    )
    expected = torch.zeros(4, 9, dtype=i32)
    expected[2, 2:4] = integers(8, 9, dtype=i32)
    assert torch.equal(whole.cpu(), expected)


@pytest.mark.parametrize(
    "request_, start, end, message",
    [
        (7, 0, 1, "'req_indices' must be rows of 'token_pool'"),
        (-1, 0, 1, "'req_indices' must be rows of 'token_pool'"),
        (0, 39, 41, "'start_offset' must be within the 40 columns"),
        (0, 0, 17, "'end_offset' must be from 0 to 16 after 'start_offset'"),
        (0, 0, 9, "'out_cache_loc' must be of at least 9 elements"),
    ],
)
def test_cache_locations_stay_inside(request_, start, end, message):
    args = npu(integers(request_), torch.zeros(7, 40, dtype=i32), integers(start), integers(end))
    for operator in (ops.cache_loc_assign, ops.cache_loc_update):
        with pytest.raises(RuntimeError, match=message):
            operator(*args, torch.zeros(4, dtype=i32).npu())
    with pytest.raises(RuntimeError, match="'token_pool' must be of dtype torch.int32"):
        ops.cache_loc_update(args[0], args[1].long(), *args[2:], torch.zeros(4, dtype=i32).npu())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, i32, i64])
def test_assign_cache_op(dtype):
    table = torch.randint(0, 99, (3, 11)).to(dtype)
    source = torch.randint(0, 99, (9,)).to(dtype)
    begin, first, last = integers(2, 0, 6), integers(0, 4, 4), integers(4, 4, 9)
    expected = table.clone()
    for row in range(3):
        for step in range(last[row] - first[row]):
            expected[row, begin[row] + step] = source[first[row] + step]
    device = table.npu()
    assert ops.assign_cache_op(device, *npu(source, begin, begin, first, last)) is True
    assert torch.equal(device.cpu(), expected)
    with pytest.raises(RuntimeError, match="'dst_start_idx' must be such that 5 elements lie in"):
        ops.assign_cache_op(device, *npu(source, begin + 1, begin, first, last))
    with pytest.raises(RuntimeError, match="'src_end_idx' must be at most 9"):
        ops.assign_cache_op(device, *npu(source, begin, begin, first + 1, last + 1))
    with pytest.raises(RuntimeError, match="'src' must be of the dtype of 'out'"):
        ops.assign_cache_op(device, *npu(source.float(), begin, begin, first, last))


@pytest.mark.parametrize("page", [1, 4, 7])
def test_alloc_extend(page):
    before, after = integers(0, 5, 8, 3), integers(6, 5, 17, 4)
    last = integers(-1, 44, 7, 22)
    pages = torch.randperm(50)[:30]
    expected, used = [], 0
    for n, m, at in zip(before.tolist(), after.tolist(), last.tolist(), strict=True):
        own: dict[int, int] = {}
        for token in range(n, m):
            if token // page == (n - 1) // page and n:
                at += 1
                expected.append(at)
                continue
            if token // page not in own:
                own[token // page] = int(pages[used])
                used += 1
            expected.append(own[token // page] * page + token % page)
    out, values = torch.zeros(len(expected), dtype=i64).npu(), torch.zeros(1, dtype=i64).npu()
    ops.alloc_extend(*npu(before, after, last, pages), page, out, values)
    assert out.tolist() == expected
    ops.alloc_extend(*npu(before[:1], after[:1], last[:1], pages), page, out, values)
    assert values.item() == (0 if 6 % page == 0 else -(-6 // page))
    with pytest.raises(RuntimeError, match="'free_pages' must be of at least"):
        ops.alloc_extend(*npu(before, after, last, pages[:1]), page, out, values)
    with pytest.raises(RuntimeError, match="'out_indices' must be of at least"):
        ops.alloc_extend(*npu(before, after, last, pages), page, out[:3], values)
    with pytest.raises(RuntimeError, match="'seq_lens' must be at least 'pre_lens'"):
        ops.alloc_extend(*npu(after, before, last, pages), page, out, values)


def _tree(lengths, count, topk, depth, mode, selected, parents):
    requests = len(lengths)
    size = sum((n + count) * count for n in lengths)
    mask = torch.ones(size, dtype=torch.bool).npu()
    outputs = [torch.full((requests, count), 9).npu() for _ in range(4)]
    ops.build_tree_kernel_efficient(
        *npu(parents, selected, torch.tensor(lengths)), mask, *outputs, topk, depth, count, mode
    )
    return mask.cpu(), [tensor.tolist() for tensor in outputs]


def test_build_tree():
    """Two requests: 0 -> {1, 2}, 1 -> {3}, and a chain; candidate c of step s > 0 has the number topk + topk^2 (s-1) + c."""
    selected = torch.tensor([[0, 1, 2], [0, 2, 6]])
    parents = torch.tensor([[-1, 0, 1, 2, 6], [-1, 0, 1, 2, 5]])
    mask, (positions, index, child, sibling) = _tree([2, 0], 4, 2, 3, 0, selected, parents)
    assert index == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert positions == [[2, 3, 3, 4], [0, 1, 2, 3]]
    assert child == [[1, 3, -1, -1], [1, 2, 3, -1]]
    assert sibling == [[-1, 2, -1, -1], [-1] * 4]
    first, second = mask[:24].view(4, 6), mask[24:].view(4, 4)
    assert first.int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0, 1],
    ]
    assert torch.equal(second, torch.ones(4, 4).tril().bool())
    mask, others = _tree([2, 0], 4, 2, 3, 1, selected, parents)
    assert others == [positions, index, child, sibling]
    assert mask.tolist()[:4] == [True, True, False, True] and mask.tolist()[20:24] == [True] * 4


def test_build_tree_refuses():
    selected, parents = torch.tensor([[0, 1, 2]]), torch.tensor([[-1, 7, 1, 2, 6]])
    with pytest.raises(RuntimeError, match="'selected_index' must be with 7, the parent of one"):
        _tree([1], 4, 2, 3, 0, selected, parents)
    with pytest.raises(RuntimeError, match="'selected_index' must be below 10"):
        _tree([1], 4, 2, 3, 0, torch.tensor([[0, 1, 12]]), parents)
    with pytest.raises(RuntimeError, match="'parent_list' must be without a cycle"):
        _tree([1], 4, 2, 3, 0, torch.tensor([[0, 1, 2]]), torch.tensor([[-1, 2, 1, 2, 6]]))
    with pytest.raises(RuntimeError, match="'tree_mask_mode' must be 0 or 1"):
        _tree([1], 4, 2, 3, 2, selected, parents)
    with pytest.raises(RuntimeError, match="'parent_list' must be of at least 5 elements"):
        _tree([1], 4, 2, 3, 0, selected, parents[:, :3].contiguous())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [None, [2, 0], []])
def test_apply_token_bitmask(dtype, rows):
    logits = torch.randn(3, 70).to(dtype)
    bits = torch.randint(-(2**31), 2**31 - 1, (3, 2), dtype=i32)  # 6 tokens without a bit
    expected = logits.clone()
    for row in range(3):
        for token in range(70):
            allowed = token < 64 and (int(bits[row, token // 32]) >> (token % 32)) & 1
            if not allowed and (not rows or row in rows):
                expected[row, token] = float("-inf")
    device = logits.npu()
    indices = None if rows is None else torch.tensor(rows, dtype=i32).npu()
    result = ops.apply_token_bitmask(device, bits.npu(), indices)
    assert torch.equal(result.cpu(), expected) and torch.equal(device.cpu(), expected)
    with pytest.raises(RuntimeError, match="'bitmask' must be of dtype torch.int32"):
        ops.apply_token_bitmask(device, bits.long().npu())
    with pytest.raises(RuntimeError, match="'logits' must be contiguous"):
        ops.apply_token_bitmask(device[:, ::2], bits.npu())
    with pytest.raises(RuntimeError, match="'indices' must be rows of 'logits'"):
        ops.apply_token_bitmask(device, bits.npu(), integers(3).npu())


def _adapters(lengths, index):
    """The adapter of each token."""
    found = []
    for length, adapter in zip(lengths, index, strict=True):
        found += [adapter] * length
    return found


@pytest.mark.parametrize("dims", [3, 4])
@pytest.mark.parametrize("name, slices", [("sgemmv_shrink", 1), ("sgemmc_shrink", 2)])
def test_shrink(name, slices, dims):
    lengths, index, ranks = [2, 0, 3, 1], [1, 0, -1, 2], [3, 4, 0]
    x, weight = torch.randn(7, 33).half(), torch.randn(3, 4 * slices, 33).half()
    scales = torch.tensor([0.5, 2.0, 1.0]).half()
    expected = torch.full((7, 4 * slices), 7.0).double()
    for token, adapter in enumerate(_adapters(lengths, index)):
        for row in range(ranks[adapter] * slices if adapter >= 0 else 0):
            product = (x[token].double() * weight[adapter, row].double()).sum()
            expected[token, row] = product * float(scales[adapter])
    y = torch.full((7, 4 * slices), 7.0).npu()
    weight = weight if dims == 3 else weight.unsqueeze(1)
    numbers = (torch.tensor(n, dtype=i32) for n in (index, lengths, ranks))
    args = npu(x, weight, *numbers, scales)
    extra = () if slices == 1 else (slices,)
    getattr(ops, name)(*args, y, *extra)
    torch.testing.assert_close(y.cpu().double(), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(RuntimeError, match="'lora_indices' must be below 3"):
        getattr(ops, name)(*args[:2], args[2] + 1, *args[3:], y, *extra)
    with pytest.raises(RuntimeError, match="'lora_ranks' must be from 0 to 4"):
        getattr(ops, name)(*args[:4], args[4] + 1, args[5], y, *extra)
    with pytest.raises(RuntimeError, match="'lora_scales' must be of dtype torch.float16"):
        getattr(ops, name)(*args[:5], args[5].float(), y, *extra)


@pytest.mark.parametrize("name", ["sgemmv_expand", "sgemmc_expand"])
def test_expand(name):
    lengths, index, ranks, offsets = [1, 3], [2, 0], [2, 4, 3], [0, 3, 8]
    x, weight = torch.randn(5, 8), torch.randn(3, 9, 4).half()
    base = torch.randn(5, 9).half()
    expected = base.double()
    for token, adapter in enumerate(_adapters(lengths, index)):
        rank = ranks[adapter]
        for part in range(2):
            own = x[token, part * rank : (part + 1) * rank].double()
            for column in range(offsets[part], offsets[part + 1]):
                expected[token, column] += (weight[adapter, column, :rank].double() * own).sum()
    y = base.npu()
    numbers = (torch.tensor(n, dtype=i32) for n in (index, lengths, ranks, offsets))
    args = npu(x, weight, *numbers)
    assert getattr(ops, name)(*args, y).data_ptr() == y.data_ptr()
    torch.testing.assert_close(y.cpu().double(), expected, atol=4e-3, rtol=2e-3)
    with pytest.raises(RuntimeError, match="'y' must be of dtype torch.float16 or torch.bfloat16"):
        getattr(ops, name)(*args, y.float())
    with pytest.raises(RuntimeError, match="'sliceOffsets' must be of at least 2 elements"):
        getattr(ops, name)(*args[:5], args[5][:1], y)


def test_bgmv_and_sgmv():
    x, weight = torch.randn(4, 6).half(), torch.randn(2, 3, 6).half()
    index = torch.tensor([1, -1, 0, 1])
    expected = torch.full((4, 3), 5.0).double()
    for token in (0, 2, 3):
        expected[token] = 0.5 * weight[index[token]].double() @ x[token].double()
    y = torch.full((4, 3), 5.0).npu()
    ops.bgmv_shrink(*npu(x, weight, index), y, 0.5)
    torch.testing.assert_close(y.cpu().double(), expected, atol=1e-4, rtol=1e-4)
    z = torch.full((4, 3), 5.0).npu()
    ops.sgmv_shrink(*npu(x, weight, integers(1, -1, 0, 1), integers(1, 1, 1, 1)), z, 0.5)
    assert torch.equal(y, z)


@pytest.mark.parametrize("values", [True, False])
def test_transfer_kv(values):
    device = torch.randn(2, 5, 3, 2, 4).half()
    host = torch.randn(6, 2, 3, 2, 4).half()
    other = (torch.randn(2, 5, 3, 2, 1).half(), torch.randn(6, 2, 3, 2, 1).half())
    if not values:
        other = (torch.empty(0), torch.empty(0))
    own, far = torch.tensor([3, 4, 5, 12, 13, 14]), torch.tensor([15, 16, 17, 0, 1, 2])
    for direction in (1, 2):
        given = [
            device.npu(),
            host.clone(),
            other[0].npu() if values else other[0],
            other[1].clone(),
        ]
        ops.transfer_kv_dim_exchange(*given, own.npu(), far, 3, direction, 2)
        for k in (0, 2) if values else (0,):
            a, b = (device, host) if k == 0 else other
            a, b = a.clone(), b.clone()
            for page, slot in ((1, 5), (4, 0)):
                for layer in range(2):
                    if direction == 1:
                        a[layer, page] = b[slot, layer]
                    else:
                        b[slot, layer] = a[layer, page]
            assert torch.equal(given[k].cpu(), a) and torch.equal(given[k + 1], b)
    for index, message in (
        (own + 3, "'device_indices' must be in one of 5"),
        (own[:4], "multiple of 3"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.transfer_kv_dim_exchange(*given, index.npu(), far[: len(index)], 3, 1, 2)
    with pytest.raises(RuntimeError, match="'host_indices' must be in one of 6 pages"):
        ops.transfer_kv_dim_exchange(*given, own.npu(), far + 3, 3, 1, 2)
    with pytest.raises(RuntimeError, match="'direct' must be 1 or 2"):
        ops.transfer_kv_dim_exchange(*given, own.npu(), far, 3, 3, 2)


def test_transfer_state():
    host = torch.randn(4, 3, 1, 2, 5).pin_memory()
    layer = torch.zeros(6, 2, 5).npu()
    ops.transfer_state_per_layer_direct_pf_lf(host, layer, integers(3, 0), integers(1, 5), 2, 2)
    expected = torch.zeros(6, 2, 5)
    expected[1], expected[5] = host[3, 2, 0], host[0, 2, 0]
    assert torch.equal(layer.cpu(), expected)
    state = torch.randn(3, 6, 2, 5)
    target = torch.zeros(4, 3, 1, 2, 5).pin_memory()
    ops.transfer_state_all_layer_direct_lf_pf(
        [state.npu()], [target], integers(4, 0).npu(), integers(2, 3), 2
    )
    expected = torch.zeros_like(target)
    for i in range(3):
        expected[2, i, 0], expected[3, i, 0] = state[i, 4], state[i, 0]
    assert torch.equal(target, expected)
    move = ops.transfer_state_per_layer_direct_pf_lf
    turned = torch.zeros(6, 5, 2).npu().mT  # dense, in another order: copied as it lies in memory
    move(host, turned, integers(1), integers(4), 0, 2)
    assert torch.equal(turned.mT.cpu()[4].flatten(), host[1, 0, 0].flatten())
    with pytest.raises(RuntimeError, match="'dst' must be of dense slots"):
        move(host, torch.zeros(6, 2, 10).npu()[..., ::2], integers(0), integers(0), 0, 2)
    with pytest.raises(RuntimeError, match=r"'dst_indices' must be in \[0, 6\)"):
        move(host, layer, integers(0), integers(6), 2, 2)
    with pytest.raises(RuntimeError, match=r"'layer_id' must be in \[0, 3\)"):
        move(host, layer, integers(0), integers(0), 3, 2)
    with pytest.raises(RuntimeError, match="'src' must be in pinned memory"):
        move(host.clone(), layer, integers(0), integers(0), 0, 2)
    move(host, layer, integers(), integers(), 0, 2)  # nothing to do
