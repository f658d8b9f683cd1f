"""npu_mla_prolog against the formulas in fp64, token by token."""

import pytest
import torch

import torch_npu
from softnpu import chips
from tests.ops.families import as_chip
from tests.ops.mla.reference import arguments, cached, documented, positional, prolog, scales
from tests.ops.support import make, max_error, relaxed

UP = "dequant_scale_w_uq_qr"


def compare(got, a, before, want, mode="PA_BSND", tolerance=1e-4, steps=0):
    """All four results; `steps` is by how much an int8 may differ."""
    query, rope, kv_cache, kr_cache = got
    tokens = a.token_x.shape[:-1]
    assert query.shape == (*tokens, *want[0].shape[1:])
    assert rope.shape == (*tokens, *want[1].shape[1:])
    assert max_error(query, want[0].view(query.shape)) <= tolerance * want[0].abs().max()
    assert max_error(rope, want[1].view(rope.shape)) <= tolerance * want[1].abs().max()
    for cache, old, rows in ((kv_cache, before[0], want[2]), (kr_cache, before[1], want[3])):
        expected = cached(old, rows, a.cache_index, mode)
        allowed = steps if cache.dtype == torch.int8 else tolerance * max(1, rows.abs().max())
        assert max_error(cache, expected) <= allowed
    assert max_error(a.kv_cache, kv_cache) == max_error(a.kr_cache, kr_cache) == 0


def run(a, **options):
    before = a.kv_cache.clone(), a.kr_cache.clone()
    return torch_npu.npu_mla_prolog(*positional(a), **options), before


@relaxed
@pytest.mark.parametrize("tokens", [(5,), (2, 3), (1, 1)])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_layouts(tokens, heads, mode):
    a = arguments(tokens=tokens, heads=heads)
    got, before = run(a, cache_mode=mode)
    compare(got, a, before, prolog(a), mode)


@relaxed
def test_epsilons():
    a = arguments()
    got, before = run(a, rmsnorm_epsilon_cq=0.5, rmsnorm_epsilon_ckv=2.0)
    compare(got, a, before, prolog(a, 0.5, 2.0))


@relaxed
@pytest.mark.parametrize("smooth", [False, True])
def test_int8_query_weight(smooth):
    a = arguments(int8=("weight_uq_qr",))
    given = scales(a, UP, *(["smooth_scales_cq"] if smooth else []))
    got, before = run(a, **given)
    compare(got, a, before, prolog(a, **given), tolerance=1e-3)


@relaxed
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_int8_caches(mode):
    a = arguments(hckv=64, dr=32, d=32, int8=("weight_uq_qr", "kv_cache", "kr_cache"))
    given = scales(a, UP, "quant_scale_ckv", "quant_scale_ckr", "smooth_scales_cq")
    got, before = run(a, cache_mode=mode, **given)
    assert got[2].dtype == got[3].dtype == torch.int8
    compare(got, a, before, prolog(a, **given), mode, tolerance=1e-3, steps=1)


@relaxed
@pytest.mark.parametrize("index", [[3, -1, 0, -1, 7], [-1] * 5, [-1, -1, -1, -1, 2]])
def test_negative_slots_are_not_written(index):
    a = arguments()
    a.cache_index = torch.tensor(index).to(a.token_x.device)
    got, before = run(a)
    compare(got, a, before, prolog(a))


@relaxed
def test_no_tokens():
    a = arguments(tokens=(0, 3))
    (query, rope, kv_cache, kr_cache), before = run(a)
    assert query.shape == (0, 3, 2, 32) and rope.shape == (0, 3, 2, 8)
    assert torch.equal(kv_cache, before[0]) and torch.equal(kr_cache, before[1])


@relaxed
def test_no_cache():
    a = arguments(blocks=3)
    a.kv_cache, a.kr_cache = a.kv_cache[:0], a.kr_cache[:0]
    query, rope, kv_cache, _ = torch_npu.npu_mla_prolog(*positional(a))
    want = prolog(a)
    assert kv_cache.numel() == 0 and max_error(query, want[0]) < 1e-4
    assert max_error(rope, want[1]) < 1e-4


def test_documented_sizes():
    a = documented()
    got, before = run(a)
    assert all(t.dtype == torch.bfloat16 for t in got)
    compare(got, a, before, prolog(a), tolerance=2e-2)


def test_sizes_that_the_page_leaves_out():
    """A hidden size of 1024, blocks of 48, and more than 16 tokens a sequence."""
    a = documented(tokens=(1, 16), he=1024)
    for name in ("token_x", "rope_sin", "rope_cos"):
        tensor = getattr(a, name)
        setattr(a, name, torch.cat((tensor, tensor[:, :1]), 1))
    a.kv_cache, a.kr_cache = (t.repeat(1, 3, 1, 1) for t in (a.kv_cache, a.kr_cache))
    a.cache_index = torch.arange(17).flip(0).view(1, 17).to(a.token_x.device)
    got, before = run(a)
    compare(got, a, before, prolog(a), tolerance=2e-2)


def fails(message, error=RuntimeError, edit=None, **options):
    a = documented()
    if edit is not None:
        edit(a)
    with pytest.raises(error, match=message):
        torch_npu.npu_mla_prolog(*positional(a), **options)


def test_bad_dtype():
    def edit(a):
        a.token_x = a.token_x.half()

    fails("npu_mla_prolog: argument 'token_x' must be of dtype torch.bfloat16.*float16", edit=edit)


def test_bad_hidden_size():
    def edit(a):
        a.token_x = a.token_x[..., :7000]

    fails("argument 'token_x' must be of hidden size 1024, 2048, .*7000", edit=edit)


def test_bad_cache_mode():
    fails("'cache_mode' must be 'PA_BSND' or 'PA_NZ', but received 'BSND'", cache_mode="BSND")


def test_cache_with_gaps():
    def edit(a):
        a.kv_cache = torch.cat([a.kv_cache, a.kv_cache], -1)[..., :512]

    message = r"'kv_cache' must be contiguous in mode PA_NZ, but received \(16384, 1024, 1024, 1\)"
    fails(message, edit=edit, cache_mode="PA_NZ")


def test_slot_out_of_range():
    def edit(a):
        a.cache_index = a.cache_index + 16

    fails("'cache_index' must be below 16, the slots of the cache", edit=edit)


def test_bad_block_size():
    def edit(a):
        a.kv_cache, a.kr_cache = a.kv_cache[:, :8], a.kr_cache[:, :8]

    fails(
        "'kv_cache' must be of 16 to 1024 tokens a block, a multiple of 16, but received 8",
        edit=edit,
    )


def test_reserved_scale():
    fails(
        "'dequant_scale_x' must be left at None",
        NotImplementedError,
        dequant_scale_x=make(2, 1),
    )


def test_missing_scale():
    def edit(a):
        a.weight_uq_qr = a.weight_uq_qr.to(torch.int8)

    fails("'dequant_scale_w_uq_qr' must be given with int8 'weight_uq_qr'", edit=edit)


def test_scale_without_int8():
    fails("'smooth_scales_cq' must be None except with int8", smooth_scales_cq=make(1, 1536))


def test_other_chips():
    name = next(n for n in chips.names() if chips.get(n).family == "A5")
    with as_chip(name):
        fails("on an Atlas A2 or A3 product .*npu_mla_prolog_v3", NotImplementedError)
