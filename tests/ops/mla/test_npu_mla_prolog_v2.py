"""npu_mla_prolog_v2 against the formulas in fp64, in every documented form of quantization."""

import pytest
import torch

import torch_npu
from tests.ops.mla.reference import arguments, cached, documented, positional, prolog, scales
from tests.ops.support import make, max_error, relaxed

TOKENS = ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr")
DOWN = ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr")

#: what is int8, and the scales that go with it
FORMS = {
    "none": ((), ()),
    "query weight": (TOKENS[2:3], DOWN[2:3]),
    "query weight, caches": (
        (TOKENS[2], "kv_cache", "kr_cache"),
        (DOWN[2], "quant_scale_ckv", "quant_scale_ckr"),
    ),
    "tokens": (TOKENS, DOWN),
    "tokens, cache": ((*TOKENS, "kv_cache"), (*DOWN, "quant_scale_ckv")),
}


def verify(a, given, mode, tolerance, steps):
    before = a.kv_cache.clone(), a.kr_cache.clone()
    got = torch_npu.npu_mla_prolog_v2(*positional(a), cache_mode=mode, **given)
    query, rope, kv_cache, kr_cache, scale = got
    want = prolog(a, **given)
    tokens = a.token_x.shape[:-1]
    assert query.shape == (*tokens, *want[0].shape[1:]) and rope.shape[:-1] == query.shape[:-1]
    assert rope.dtype == a.rope_sin.dtype and scale.dtype == torch.float32
    if query.dtype == torch.int8:
        assert max_error(query, want[0].view(query.shape)) <= steps
        assert scale.shape == (*want[4].shape, 1)
        assert max_error(scale[..., 0], want[4]) <= tolerance * want[4].max()
    else:
        assert scale.shape == (1,)
        assert max_error(query, want[0].view(query.shape)) <= tolerance * want[0].abs().max()
    assert max_error(rope, want[1].view(rope.shape)) <= tolerance * want[1].abs().max()
    for cache, old, rows in ((kv_cache, before[0], want[2]), (kr_cache, before[1], want[3])):
        assert cache.dtype == old.dtype
        expected = cached(old, rows, a.cache_index, mode)
        allowed = steps if cache.dtype == torch.int8 else tolerance * max(1, rows.abs().max())
        assert max_error(cache, expected) <= allowed
    assert torch.equal(a.kv_cache, kv_cache) and torch.equal(a.kr_cache, kr_cache)
    return query


@relaxed
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
@pytest.mark.parametrize("tokens", [(5,), (2, 3)])
def test_forms(form, mode, tokens):
    int8, names = FORMS[form]
    a = arguments(tokens=tokens, hckv=64, dr=32, d=32, int8=int8)
    smooth = ("smooth_scales_cq",) if "weight_uq_qr" in int8 and len(tokens) == 1 else ()
    query = verify(a, scales(a, *names, *smooth), mode, 2e-3, 1)
    assert query.dtype == (torch.int8 if form == "tokens, cache" else torch.float32)


@pytest.mark.parametrize("form", FORMS)
def test_documented_sizes(form):
    int8, names = FORMS[form]
    a = documented((2,), int8)
    verify(a, scales(a, *names), "PA_BSND", 3e-2, 4)


@relaxed
def test_no_tokens():
    int8, names = FORMS["tokens, cache"]
    a = arguments(tokens=(0,), int8=int8)
    got = torch_npu.npu_mla_prolog_v2(*positional(a), **scales(a, *names))
    assert got[0].shape == (0, 2, 32) and got[4].shape == (0, 2, 1)


@relaxed
def test_a_token_of_zeros():
    int8, names = FORMS["tokens, cache"]
    a = arguments(tokens=(2,), int8=int8)
    a.token_x[0] = 0
    query, _, _, _, scale = torch_npu.npu_mla_prolog_v2(*positional(a), **scales(a, *names))
    assert query[0].count_nonzero() == 0 and scale[0].count_nonzero() == 0
    assert scale[1].count_nonzero() == 2


def fails(message, int8=(), edit=None, **options):
    a = documented((1,), int8)
    if edit is not None:
        edit(a)
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_mla_prolog_v2(*positional(a), **options)


def test_int8_tokens_ask_for_int8_weights():
    fails("npu_mla_prolog_v2: argument 'weight_dq' .*int8.*bfloat16", int8=("token_x",))


def test_int8_tokens_ask_for_scales():
    fails("'dequant_scale_x' must be given with int8 'token_x'", int8=TOKENS)


def test_int8_tokens_and_an_int8_rope_cache():
    fails(
        "'kr_cache' must be of dtype torch.bfloat16.*int8", int8=(*TOKENS, "kv_cache", "kr_cache")
    )


def test_int8_cache_without_int8_weights():
    fails("'kv_cache' must be of dtype torch.bfloat16, .*int8", int8=("kv_cache", "kr_cache"))


def test_bad_scale_shape():
    def edit(a):
        a.weight_uq_qr = a.weight_uq_qr.to(torch.int8)

    fails(
        r"'dequant_scale_w_uq_qr' must be of shape \(1, 192\), but received \(192,\)",
        edit=edit,
        dequant_scale_w_uq_qr=make(192),
    )
