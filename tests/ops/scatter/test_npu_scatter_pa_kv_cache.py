"""npu_scatter_pa_kv_cache, its functional form and npu_scatter_pa_cache against loops."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make

SLOTS = [11, 0, -1, 5, 4]


def index(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype).npu()


def written(cache, rows, slots):
    """Token by token into (blocks, block, N, D)."""
    cache, rows = cache.cpu().clone(), rows.cpu()
    for token, slot in enumerate(slots):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = rows[token]
    return cache


def nz(cache, five=False):
    size = 32 // cache.element_size()
    if five:
        return cache.unflatten(3, (-1, size)).permute(0, 2, 3, 1, 4).contiguous()
    return cache.flatten(2).unflatten(2, (-1, size)).transpose(1, 2).contiguous()


def tokens(dtype, sizes=(32, 64)):
    return [make(5, 2, s, dtype=dtype, low=-9, high=9, seed=s) for s in sizes]


def caches(dtype, sizes=(32, 64)):
    return [make(3, 4, 2, s, dtype=dtype, low=-9, high=9, seed=s + 1) for s in sizes]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["Norm", None])
def test_plain_caches(dtype, kind, mode):
    rows, pages = tokens(dtype), caches(dtype)
    expected = [written(c, r, SLOTS) for c, r in zip(pages, rows, strict=True)]
    copies = torch_npu.npu_scatter_pa_kv_cache_functional(
        *rows, *pages, index(SLOTS, kind), cache_mode=mode
    )
    assert (
        torch_npu.npu_scatter_pa_kv_cache(*rows, *pages, index(SLOTS, kind), cache_mode=mode)
        is None
    )
    for page, copy, right in zip(pages, copies, expected, strict=True):
        assert torch.equal(page.cpu(), right) and torch.equal(copy.cpu(), right)


def test_the_functional_form_leaves_its_arguments():
    rows, pages = tokens(torch.float16), caches(torch.float16)
    before = [p.cpu().clone() for p in pages]
    torch_npu.npu_scatter_pa_kv_cache_functional(*rows, *pages, index(SLOTS), cache_mode="Norm")
    assert all(torch.equal(p.cpu(), b) for p, b in zip(pages, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("five", [False, True])
def test_nz_caches(dtype, five):
    rows, plain = tokens(dtype), caches(dtype)
    pages = [nz(c, five) for c in plain]
    torch_npu.npu_scatter_pa_kv_cache(*rows, *pages, index(SLOTS))
    for page, before, row in zip(pages, plain, rows, strict=True):
        assert torch.equal(page.cpu(), nz(written(before, row, SLOTS), five))


def test_int8_keys_with_half_values():
    rows = [tokens(torch.int8)[0], tokens(torch.bfloat16)[1]]
    pages = [caches(torch.int8)[0], caches(torch.bfloat16)[1]]
    expected = [written(c, r, SLOTS) for c, r in zip(pages, rows, strict=True)]
    torch_npu.npu_scatter_pa_kv_cache(*rows, *pages, index(SLOTS), cache_mode="Norm")
    assert all(torch.equal(p.cpu(), r) for p, r in zip(pages, expected, strict=True))


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.uint8, torch.uint16, torch.int32, torch.float8_e4m3fn]
)
def test_types_of_ascend950(dtype):
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    rows = [make(5, 2, 32, dtype=kind, low=0, high=99).view(dtype) for _ in range(2)]
    pages = [make(3, 4, 2, 32, dtype=kind, low=0, high=99).view(dtype) for _ in range(2)]
    expected = written(pages[0].view(kind), rows[0].view(kind), SLOTS)
    with on("A5"):
        torch_npu.npu_scatter_pa_kv_cache(*rows, *pages, index(SLOTS), cache_mode="Norm")
    assert torch.equal(pages[0].view(kind).cpu(), expected)
    with pytest.raises(RuntimeError, match="'key' must be of dtype"):
        torch_npu.npu_scatter_pa_kv_cache(*rows, *pages, index(SLOTS), cache_mode="Norm")


def compressed(rows, starts, sizes, ends, offsets):
    """What each head keeps, written from its first slot on into 8 x 4 slots."""
    cache = torch.zeros(32, rows.shape[3])
    rows = rows.cpu().float()
    for b in range(rows.shape[0]):
        for n in range(rows.shape[2]):
            own = rows[b, : ends[b], n]
            if offsets is None:
                kept = own[ends[b] - sizes[b][n] :]
            else:
                first, size = offsets[b][n], sizes[b][n]
                mean = own[first : first + size].mean(0, keepdim=True)
                kept = torch.cat((own[:first], mean, own[first + size :]))
            cache[starts[b][n] : starts[b][n] + len(kept)] = kept
    return cache.view(8, 4, 1, -1)


@pytest.mark.parametrize("offsets", [None, [[1, 0], [2, 1]]])
def test_compressed_heads(offsets):
    key, value = make(2, 6, 2, 16), make(2, 6, 2, 8, seed=1)
    starts, sizes, ends = [[0, 7], [14, 21]], [[3, 2], [2, 3]], [6, 5]
    options = {"compress_lens": index(sizes), "seq_lens": index(ends), "cache_mode": "Norm"}
    if offsets is not None:
        options["compress_seq_offsets"] = index(offsets).flatten()
    pages = [torch.zeros(8, 4, 1, s).npu() for s in (16, 8)]
    with on("A5"):
        torch_npu.npu_scatter_pa_kv_cache(key, value, *pages, index(starts), **options)
        alone = torch.zeros(8, 4, 1, 16).npu()
        options.pop("cache_mode")
        torch_npu.npu_scatter_pa_cache(key, index(starts), key_cache=alone, **options)
    for page, rows in (*zip(pages, (key, value), strict=True),):
        right = compressed(rows, starts, sizes, ends, offsets)
        torch.testing.assert_close(page.cpu(), right)
    assert torch.equal(alone.cpu(), pages[0].cpu())


def test_no_tokens_and_only_skipped_ones():
    rows, pages = tokens(torch.float16), caches(torch.float16)
    before = [p.cpu().clone() for p in pages]
    torch_npu.npu_scatter_pa_kv_cache(
        *(r[:0] for r in rows), *pages, index(SLOTS)[:0], cache_mode="Norm"
    )
    torch_npu.npu_scatter_pa_kv_cache(*rows, *pages, index([-1] * 5), cache_mode="Norm")
    assert all(torch.equal(p.cpu(), b) for p, b in zip(pages, before, strict=True))


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "change,message",
    [
        ({"slot_mapping": index([0, 1, 2, 3, 12])}, "'slot_mapping' must be below 12.*received 12"),
        ({"slot_mapping": index(SLOTS)[:4]}, r"'slot_mapping' must be of shape \(5\)"),
        ({"cache_mode": "PA"}, "'cache_mode' must be 'Norm', 'PA_NZ' or None, but received 'PA'"),
        ({"cache_mode": "PA_NZ"}, r"'key_cache' must be of shape \(\*, 4, \*, 16\)"),
        ({"key": make(5, 2, 32)}, "'key' must be of dtype"),
        ({"value": make(4, 2, 64, dtype=torch.float16)}, r"'value' must be of shape \(5, 2, \*\)"),
        ({"key_cache": make(3, 4, 2, 16, dtype=torch.float16)}, r"'key_cache' must be of shape \(\*, \*, 2, 32\)"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    rows, pages = tokens(torch.float16), caches(torch.float16)
    given = dict(
        key=rows[0], value=rows[1], key_cache=pages[0], value_cache=pages[1],
        slot_mapping=index(SLOTS), cache_mode="Norm",
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=f"npu_scatter_pa_kv_cache: argument {message}"):
        torch_npu.npu_scatter_pa_kv_cache(**(given | change))


@pytest.mark.family("A2")
def test_compressed_heads_need_ascend950():
    rows = make(2, 6, 2, 16, dtype=torch.float16)
    page = make(8, 4, 1, 16, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="'key' must be on a chip of series A5"):
        torch_npu.npu_scatter_pa_kv_cache(
            rows, rows, page, page, index([[0, 1]] * 2), cache_mode="Norm"
        )
