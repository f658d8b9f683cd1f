"""npu_mla_prolog_v3 and its functional form against the formulas in fp64, in every mode."""

import pytest
import torch

import torch_npu
from softnpu import chips
from tests.ops.families import as_chip
from tests.ops.mla.reference import (
    TOP,
    arguments,
    cached,
    documented,
    low,
    positional,
    prolog,
    scales,
)
from tests.ops.support import make, max_error, relaxed
from torch_npu._dtypes import CODES
from torch_npu.ops._shared import _formats

TOKENS = ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr")
DOWN = ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr")

#: (weight_quant_mode, kv_cache_quant_mode): what is int8, and the scales that go with it
FORMS = {
    (0, 0): ((), ()),
    (1, 0): (TOKENS[2:3], DOWN[2:3]),
    (1, 2): (
        (TOKENS[2], "kv_cache", "kr_cache"),
        (DOWN[2], "quant_scale_ckv", "quant_scale_ckr"),
    ),
    (2, 0): (TOKENS, DOWN),
    (2, 1): ((*TOKENS, "kv_cache"), (*DOWN, "quant_scale_ckv")),
}


def modes(weight, cache):
    return {
        "weight_quant_mode": weight,
        "kv_cache_quant_mode": cache,
        "query_quant_mode": int(cache == 1),
        "ckvkr_repo_mode": int(cache == 3),
        "quant_scale_repo_mode": int(cache == 3),
    }


def split(a):
    given = positional(a)
    return (*given[:9], *given[10:])


def chosen(a, names):
    given = scales(a, *names)
    if "quant_scale_ckv" in given and "quant_scale_ckr" not in given:
        given["quant_scale_ckv"] = given["quant_scale_ckv"][0, :1].clone()
    return given


def close(actual, expected, tolerance):
    assert max_error(actual, expected.view(actual.shape)) <= tolerance * expected.abs().max()


@relaxed
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_integer_forms(form, mode):
    int8, names = FORMS[form]
    a = arguments(tokens=(2, 3), hckv=64, dr=32, d=32, int8=int8)
    given = chosen(a, names)
    before = a.kv_cache.clone(), a.kr_cache.clone()
    got = torch_npu.npu_mla_prolog_v3(
        *split(a),
        cache_index=a.cache_index,
        cache_mode=mode,
        query_norm_flag=True,
        qc_qr_scale=1.5,
        kc_scale=0.5,
        **given,
        **modes(*form),
    )
    query, rope, scale, norm, norm_scale = got
    want = prolog(a, qc=1.5, kc=0.5, **given)
    step = 1 if query.dtype == torch.int8 else 2e-3 * want[0].abs().max()
    assert max_error(query, want[0].view(query.shape)) <= step
    close(rope, want[1], 2e-3)
    assert scale.shape == ((6, 2, 1) if form == (2, 1) else (0,))
    assert norm.shape == (2, 3, 32) and norm.dtype == a.weight_uq_qr.dtype
    assert max_error(norm, want[5].view(norm.shape)) <= (1 if form[0] else 1e-4)
    assert norm_scale.shape == ((6, 1) if form[0] else (0,))
    for cache, old, rows in ((a.kv_cache, before[0], want[2]), (a.kr_cache, before[1], want[3])):
        allowed = 1 if cache.dtype == torch.int8 else 1e-3
        assert max_error(cache, cached(old, rows, a.cache_index, mode)) <= allowed


@relaxed
def test_query_norm_is_empty_unless_asked_for():
    a = arguments()
    got = torch_npu.npu_mla_prolog_v3(*split(a), cache_index=a.cache_index)
    assert [t.numel() for t in got[2:]] == [0, 0, 0]


@relaxed
@pytest.mark.parametrize("mode,tokens", [("BSND", (2, 3)), ("TND", (5,))])
def test_caches_that_are_not_paged(mode, tokens):
    a = arguments(tokens=tokens)
    a.kv_cache, a.kr_cache = make(*tokens, 1, 32), make(*tokens, 1, 8)
    torch_npu.npu_mla_prolog_v3(*split(a), cache_mode=mode)
    want = prolog(a)
    assert max_error(a.kv_cache.view(-1, 32), want[2]) < 1e-4
    assert max_error(a.kr_cache.view(-1, 8), want[3]) < 1e-4


@relaxed
@pytest.mark.parametrize("nz", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_caches_by_block(nz, merged):
    """Block size 4: sequences of 7 and 7 tokens, or of 3, 9 and 2."""
    lengths = [3, 9, 2] if merged else [7, 7]
    a = arguments(tokens=(14,) if merged else (2, 7), blocks=7, size=4)
    blocks = [[5], [0, 3, 6], [2]] if merged else [[5, 1], [0, 3]]
    slots = []
    for run, length in zip(blocks, lengths, strict=True):
        slots += [run[i // 4] * 4 + i % 4 for i in range(length)]
    flat = torch.tensor([b for run in blocks for b in run])
    options = {"cache_index": (flat if merged else flat.view(2, 2)).to(a.token_x.device)}
    if merged:
        ends = torch.tensor([3, 12, 14], dtype=torch.int32)
        options["actual_seq_len"] = ends.to(a.token_x.device)
    before = a.kv_cache.clone(), a.kr_cache.clone()
    torch_npu.npu_mla_prolog_v3(
        *split(a), cache_mode="PA_BLK_NZ" if nz else "PA_BLK_BSND", **options
    )
    want, mode = prolog(a), "PA_NZ" if nz else "PA_BSND"
    for cache, old, rows in ((a.kv_cache, before[0], want[2]), (a.kr_cache, before[1], want[3])):
        assert max_error(cache, cached(old, rows, torch.tensor(slots), mode)) < 1e-4


def tiled(row, rope, alpha, form):
    """The bytes of a row of tiles, one tile after the other: values, rotated part, scales."""
    codes, steps = [], []
    for i in range(0, row.shape[0], 16):
        tile = row[i : i + 16]
        top = tile.abs().max() * alpha
        steps.append(top / TOP[form])
        codes.append(low(tile.clamp(-top, top) / steps[-1], form))
    return torch.cat(codes), rope, torch.stack(steps)


@relaxed
@pytest.mark.parametrize("weight,alpha", [(1, None), (1, 0.8), (2, 0.9), (4, None), (5, None)])
def test_tiles(weight, alpha):
    form = {1: "int8", 2: "int8", 4: "float8_e4m3fn", 5: "hifloat8"}[weight]
    a, values, given = low_inputs(weight, form)
    a.kv_cache = torch.zeros(3, 4, 1, 32 + 8 * 2 + 2 * 4, dtype=a.weight_uq_qr.dtype)
    a.kv_cache, a.kr_cache = a.kv_cache.to(a.token_x.device), make(0, dtype=torch.bfloat16)
    clip = {} if alpha is None else {"k_nope_clip_alpha": torch.tensor([alpha]).to(make(1).device)}
    torch_npu.npu_mla_prolog_v3(
        *split(a), cache_index=a.cache_index, tile_size=16, **given, **clip, **modes(weight, 3)
    )
    a.kr_cache = make(3, 4, 1, 8)
    want = prolog(a, form=form, values=values, **given)
    rows = a.kv_cache.cpu().view(torch.uint8).view(12, 56)[a.cache_index.cpu()]
    for got, row, rope in zip(rows, want[2], want[3], strict=True):
        codes, _, steps = tiled(row, rope, alpha or 1.0, form)
        stored = got[:32].view(torch.int8) if form == "int8" else got[:32]
        stored = stored.view(torch.float8_e4m3fn) if form == "float8_e4m3fn" else stored
        step = 1 if form == "int8" else codes.abs().max() / 8
        assert max_error(_formats.decode(stored, form), codes) <= step
        assert max_error(got[32:48].view(torch.bfloat16), rope) <= 2e-2 * rope.abs().max()
        assert max_error(got[48:].view(torch.float32), steps) <= 1e-3 * steps.max()
    assert a.kv_cache.cpu().view(torch.uint8).view(12, 56).any(1).sum() == 5


def low_inputs(weight, form):
    """Arguments in bf16 and a format, the values they stand for, and their scales."""
    a = arguments(dtype=torch.bfloat16, int8=TOKENS[2:3] if weight == 1 else TOKENS)
    names = DOWN[2:3] if weight == 1 else DOWN
    given = scales(a, *names)
    values = {}
    if form != "int8":
        for name in TOKENS:
            numbers = getattr(a, name).cpu().float() / 25
            stored = _formats.encode(numbers, form)
            setattr(a, name, stored.to(a.weight_uk.device))
            values[name] = _formats.decode(stored, form)
    return a, values, given


@relaxed
@pytest.mark.parametrize("weight", [4, 5])
@pytest.mark.parametrize("cache", [0, 1])
def test_8_bit_floats(weight, cache):
    form = {4: "float8_e4m3fn", 5: "hifloat8"}[weight]
    a, values, given = low_inputs(weight, form)
    if cache:
        a.kv_cache = torch.zeros(3, 4, 1, 32, dtype=a.weight_uq_qr.dtype).to(a.token_x.device)
        given |= {"quant_scale_ckv": torch.tensor([30.0]).to(a.token_x.device)}
    query, rope, scale, _, _ = torch_npu.npu_mla_prolog_v3(
        *split(a), cache_index=a.cache_index, **given, **modes(weight, cache)
    )
    numbers = dict(values)
    if cache:
        numbers["kv_cache"] = torch.zeros(3, 4, 1, 32)
    want = prolog(a, form=form, values=numbers, **given)
    if cache:
        assert query.dtype == a.token_x.dtype
        found = _formats.decode(query.cpu(), form) * scale.cpu()
        step = 0.13 if weight == 4 else 0.34  # half a step of the format at its coarsest
        close(found, want[0] * want[4][..., None], step)
        close(scale[..., 0], want[4], 2e-2)
        rows = _formats.decode(a.kv_cache.cpu(), form).view(12, 32)[a.cache_index.cpu()]
        close(rows, want[2], step)
    else:
        close(query, want[0], 3e-2)
    close(rope, want[1], 3e-2)


@relaxed
def test_microscaling():
    a = arguments(dtype=torch.bfloat16)
    values, given = {}, {}
    for name, scale in zip(TOKENS, DOWN, strict=True):
        stored = getattr(a, name).cpu().float().to(torch.float8_e4m3fn)
        rows = stored if name == "token_x" else stored.t()
        groups = (rows.shape[0], rows.shape[1] // 32)
        powers = 2.0 ** make(*groups, dtype=torch.int32, low=-3, high=3).cpu().float()
        numbers = rows.float() * powers.repeat_interleave(32, 1)
        setattr(a, name, stored.to(a.weight_uk.device))
        values[name] = numbers if name == "token_x" else numbers.t()
        given[scale] = powers.to(torch.float8_e8m0fnu).to(a.weight_uk.device)
    options = modes(3, 0) | {"query_norm_flag": True}
    query, rope, _, norm, norm_scale = torch_npu.npu_mla_prolog_v3(
        *split(a), cache_index=a.cache_index, **given, **options
    )
    want = prolog(a, form="mx", values=values)
    close(query, want[0], 3e-2)
    close(rope, want[1], 3e-2)
    assert norm.dtype == torch.float8_e4m3fn and norm_scale.dtype == torch.float8_e8m0fnu
    assert norm_scale.shape == (5, 1)
    close(norm.cpu().float() * norm_scale.cpu().float(), want[5], 0.07)


@relaxed
def test_functional_form_leaves_the_caches():
    a = arguments()
    before = a.kv_cache.clone(), a.kr_cache.clone()
    got = torch_npu.npu_mla_prolog_v3_functional(*split(a), cache_index=a.cache_index)
    assert torch.equal(a.kv_cache, before[0]) and torch.equal(a.kr_cache, before[1])
    in_place = torch_npu.npu_mla_prolog_v3(*split(a), cache_index=a.cache_index)
    assert torch.equal(got[5], a.kv_cache) and torch.equal(got[6], a.kr_cache)
    assert all(torch.equal(x, y) for x, y in zip(got, in_place, strict=False))


@relaxed
def test_no_tokens():
    a = arguments(tokens=(0,))
    before = a.kv_cache.clone()
    got = torch_npu.npu_mla_prolog_v3(*split(a), cache_index=a.cache_index)
    assert got[0].shape == (0, 2, 32) and torch.equal(a.kv_cache, before)


@pytest.mark.parametrize("form", FORMS)
def test_documented_sizes(form):
    int8, names = FORMS[form]
    a = documented((2,), int8, he=1024)
    given = chosen(a, names)
    before = a.kv_cache.clone()
    query, _, _, _, _ = torch_npu.npu_mla_prolog_v3(
        *split(a), cache_index=a.cache_index, **given, **modes(*form)
    )
    want = prolog(a, **given)
    assert max_error(query, want[0]) <= (4 if form == (2, 1) else 3e-2 * want[0].abs().max())
    step = 2 if a.kv_cache.dtype == torch.int8 else 3e-2 * want[2].abs().max()
    assert max_error(a.kv_cache, cached(before, want[2], a.cache_index)) <= step


def fails(message, error=RuntimeError, int8=(), index=True, edit=None, **options):
    a = documented((2,), int8, he=1024)
    if edit is not None:
        edit(a)
    if index:
        options["cache_index"] = a.cache_index
    with pytest.raises(error, match=message):
        torch_npu.npu_mla_prolog_v3(*split(a), **options)


@pytest.mark.family("A2")
def test_floats_are_for_ascend_950():
    fails("npu_mla_prolog_v3: argument 'weight_quant_mode' must be 0, 1 or 2", **modes(4, 0))
    name = next(n for n in chips.names() if chips.get(n).family == "A5")
    with as_chip(name):
        fails("'token_x' must be of dtype torch.float8_e4m3fn, .*bfloat16", **modes(4, 0))


def test_hifloat8_must_be_named():
    name = next(n for n in chips.names() if chips.get(n).family == "A5")
    code = CODES["hifloat8"]

    def edit(a):
        for name in TOKENS:
            setattr(a, name, getattr(a, name).to(torch.uint8))

    with as_chip(name):
        message = rf"'weight_dq_dtype' must be torch_npu.hifloat8 \({code}\), but received None"
        fails(message, edit=edit, token_x_dtype=code, **modes(5, 0))


@pytest.mark.parametrize(
    "options,message",
    [
        ({"kv_cache_quant_mode": 1}, "'kv_cache_quant_mode' must be 0 with weight_quant_mode 0"),
        ({"query_quant_mode": 1}, "'query_quant_mode' must be 0 with kv_cache_quant_mode 0"),
        ({"ckvkr_repo_mode": 1}, "'ckvkr_repo_mode' must be 0 with kv_cache_quant_mode 0"),
        ({"cache_mode": "NZ"}, "'cache_mode' must be 'PA_BSND', .*'NZ'"),
        ({"tile_size": 64}, "'tile_size' must be 128, but received 64"),
    ],
)
def test_bad_modes(options, message):
    fails(message, **options)


def test_index_for_a_cache_that_is_not_paged():
    def edit(a):
        a.kv_cache, a.kr_cache = a.kv_cache[0, :2], a.kr_cache[0, :2]

    fails("'cache_index' must be None with cache_mode 'TND'", edit=edit, cache_mode="TND")


def test_missing_lengths():
    def edit(a):
        a.cache_index = torch.zeros_like(a.cache_index[:1])

    message = "'actual_seq_len' must be given with cache_mode 'PA_BLK_NZ'"
    fails(message, edit=edit, cache_mode="PA_BLK_NZ")


def test_missing_index():
    fails("'cache_index' must be given with cache_mode 'PA_BSND'", index=False)


def test_missing_scale():
    message = "'dequant_scale_w_uq_qr' must be given with weight_quant_mode 1"
    fails(message, int8=TOKENS[2:3], **modes(1, 0))


def test_bad_hidden_size():
    def edit(a):
        a.token_x = a.token_x[:, :1000]

    fails("'token_x' must be of hidden size 1024, .* but received 1000", edit=edit)


def test_alpha_without_tiles():
    fails("'k_nope_clip_alpha' must be None with", k_nope_clip_alpha=make(1))


def test_tiles_without_alpha():
    def edit(a):
        a.kv_cache = torch.zeros(1, 16, 1, 656, dtype=torch.int8).npu()
        a.kr_cache = a.kr_cache[:0]

    message = (
        "'k_nope_clip_alpha' must be given with weight_quant_mode 1 and with kv_cache_quant_mode 3"
    )
    given = {"dequant_scale_w_uq_qr": make(1, 192)}
    fails(message, int8=TOKENS[2:3], edit=edit, **given, **modes(1, 3))


def test_codes_that_are_read_nowhere():
    a = documented(he=1024)
    call = (*split(a),)
    plain = torch_npu.npu_mla_prolog_v3(*call, cache_index=a.cache_index)
    named = torch_npu.npu_mla_prolog_v3(*call, cache_index=a.cache_index, token_x_dtype=290)
    assert torch.equal(plain[0], named[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_tiles_leave_the_rope_cache_empty(dtype):
    a = documented(he=1024, int8=TOKENS[2:3])
    a.kv_cache = torch.zeros(1, 16, 1, 656, dtype=torch.int8).npu()
    a.kr_cache = torch.empty(0, dtype=dtype).npu()
    options = {"dequant_scale_w_uq_qr": make(1, 192), "k_nope_clip_alpha": torch.ones(1).npu()}
    torch_npu.npu_mla_prolog_v3(*split(a), cache_index=a.cache_index, **options, **modes(1, 3))
    assert a.kv_cache.any()
