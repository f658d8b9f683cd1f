"""npu_mla_preprocess against fp64 with the same roundings."""

import pytest
import torch

import torch_npu
from tests.ops.support import make

TOKENS, HEADS = 3, 2


def inputs(dtype=torch.bfloat16, mode=None, quant=None):
    c8 = mode == "int8_nzcache"
    given = dict(
        input=make(TOKENS, 7168, dtype=dtype),
        gamma0=make(7168, dtype=dtype, seed=1),
        beta0=make(7168, dtype=dtype, seed=2),
        wdqkv=make(2112, 7168, dtype=torch.int8, low=-9, high=9),
        descale0=make(2112, low=1e-4, high=1e-3),
        gamma1=make(1536, dtype=dtype, seed=3),
        beta1=make(1536, dtype=dtype, seed=4),
        wuq=make(HEADS * 192, 1536, dtype=torch.int8, low=-9, high=9),
        descale1=make(HEADS * 192, low=1e-4, high=1e-3),
        gamma2=make(512, dtype=dtype, seed=5),
        cos=make(TOKENS, 64, dtype=dtype, seed=6),
        sin=make(TOKENS, 64, dtype=dtype, seed=7),
        wuk=make(HEADS, 128, 512, dtype=dtype, seed=8),
        kv_cache=make(2, 128, 1, 512, dtype=torch.int8 if c8 else dtype, low=-1, high=1),
        kv_cache_rope=make(2, 128, 1, 64, dtype=dtype),
        slotmapping=torch.tensor([200, 3, 129]).int().npu(),
        cache_mode=mode,
        quant_mode=quant,
    )
    if quant == "per_tensor_quant_asymm":
        given |= dict(
            quant_scale0=make(1, dtype=dtype, low=0.02, high=0.03),
            quant_offset0=make(1, dtype=torch.int8, low=3, high=4),
            bias0=make(2112, dtype=torch.int32, low=-50, high=50),
            quant_scale1=make(1, dtype=dtype, low=0.02, high=0.03),
            quant_offset1=make(1, dtype=torch.int8, low=-4, high=-3),
            bias1=make(HEADS * 192, dtype=torch.int32, low=-50, high=50),
        )
    if c8:
        given |= dict(
            ctkv_scale=make(1, dtype=dtype, low=0.02, high=0.03),
            q_nope_scale=make(HEADS, dtype=dtype, low=1, high=2),
        )
    return given


def expected(given):
    g = {n: t.cpu().double() if isinstance(t, torch.Tensor) else t for n, t in given.items()}
    dtype = given["input"].dtype
    rounded = lambda t: t.to(dtype).double()  # noqa: E731

    def norm(x, gamma):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma

    def product(x, gamma, beta, weight, descale, index):
        value = norm(x, gamma) + beta
        if given["quant_mode"] != "per_tensor_quant_asymm":
            step = value.abs().amax(1, keepdim=True) / 127
            return rounded((value / step).round() @ weight.T * descale * step)
        whole = (value / g[f"quant_scale{index}"] + g[f"quant_offset{index}"]).round()
        return rounded((whole.clamp(-128, 127) @ weight.T + g[f"bias{index}"]) * descale)

    def rope(x, cos, sin):
        return x * cos + torch.cat((-x[..., 32:], x[..., :32]), -1) * sin

    down = product(g["input"], g["gamma0"], g["beta0"], g["wdqkv"], g["descale0"], 0)
    latent, turned, rest = down[:, :512], down[:, 512:576], down[:, 576:]
    up = product(rest, g["gamma1"], g["beta1"], g["wuq"], g["descale1"], 1).view(TOKENS, HEADS, 192)
    nope = torch.einsum("thd,hdc->thc", up[..., :128], g["wuk"])
    q_rope = rope(up[..., 128:], g["cos"].unsqueeze(1), g["sin"].unsqueeze(1))
    key = norm(latent, g["gamma2"])
    if given["cache_mode"] == "int8_nzcache":
        key = (rounded(key) / g["ctkv_scale"]).round().clamp(-128, 127)
        nope = (rounded(nope) / g["q_nope_scale"].view(-1, 1)).round().clamp(-128, 127)
    return nope, key, q_rope, rope(turned, g["cos"], g["sin"])


def nz(cache):
    return (
        cache.flatten(2).unflatten(2, (-1, 32 // cache.element_size())).transpose(1, 2).contiguous()
    )


def plain(cache):
    return cache.transpose(1, 2).flatten(2).unsqueeze(2)


def near(actual, right, scale):
    """The largest difference is small beside the values; an int8 step may tip a rounding over."""
    assert (actual.cpu().double() - right).abs().max() <= scale * right.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quant", [None, "per_tensor_quant_asymm"])
@pytest.mark.parametrize("mode", [None, "nzcache", "int8_nzcache"])
def test_queries_and_caches(dtype, quant, mode):
    given = inputs(dtype, mode, quant)
    right = expected(given)
    before = given["kv_cache"].cpu().clone()
    if mode is not None:
        given |= {n: nz(given[n]) for n in ("kv_cache", "kv_cache_rope")}
    if dtype == torch.float16 and quant == "per_tensor_quant_asymm":
        given |= packed(given)
    q_nope, cache, q_rope, rope_cache = torch_npu.atb.npu_mla_preprocess(**given)
    if mode is not None:
        cache, rope_cache = plain(cache), plain(rope_cache)
    slots = given["slotmapping"].cpu().long()
    near(q_nope, right[0], 0.04)
    near(q_rope, right[2], 0.04)
    near(cache.cpu().view(256, 512)[slots], right[1], 0.04)
    near(rope_cache.cpu().view(256, 64)[slots], right[3], 0.04)
    others = torch.ones(256, dtype=torch.bool).index_fill(0, slots, False)
    assert torch.equal(cache.cpu().view(256, 512)[others], before.view(256, 512)[others])
    assert q_nope.dtype == given["kv_cache"].dtype and q_rope.dtype == dtype


def packed(given):
    """Scales as int64 that hold the bits of a float32."""
    return {n: given[n].view(torch.int32).long() for n in ("descale0", "descale1")}


def test_another_hidden_size():
    """The kernel of tensor-wise quantization takes 2048 to 8192 columns."""
    given = inputs(torch.bfloat16, None, "per_tensor_quant_asymm")
    narrow = {n: given[n][..., :2048].contiguous() for n in ("input", "gamma0", "beta0", "wdqkv")}
    right = expected(given | narrow)
    q_nope, _, q_rope, _ = torch_npu.atb.npu_mla_preprocess(**given | narrow)
    near(q_nope, right[0], 0.04)
    near(q_rope, right[2], 0.04)
    by_token = inputs() | narrow
    with pytest.raises(RuntimeError, match="'input' must be of 7168 columns"):
        torch_npu.atb.npu_mla_preprocess(**by_token)


def test_out_form_writes_slots_alone():
    given = inputs()
    q_nope, cache, q_rope, rope_cache = torch_npu.atb.npu_mla_preprocess(**given)
    outs = dict(
        q_out0=torch.zeros_like(q_nope), kv_cache_out0=given["kv_cache"],
        q_out1=torch.zeros_like(q_rope), kv_cache_out1=given["kv_cache_rope"],
    )  # fmt: skip
    torch_npu.atb.npu_mla_preprocess(**given, **outs)
    for found, right in zip(outs.values(), (q_nope, cache, q_rope, rope_cache), strict=True):
        assert torch.equal(found.cpu(), right.cpu())


def test_a_cache_of_more_heads_is_so_many_more_blocks():
    """ATB looks at the block size of an NZ cache alone, and writes blocks of one head."""
    given = inputs(torch.float16, "nzcache")
    given |= {n: nz(given[n]) for n in ("kv_cache", "kv_cache_rope")}
    right = torch_npu.atb.npu_mla_preprocess(**given)
    wide = {n: given[n].reshape(1, -1, *given[n].shape[2:]) for n in ("kv_cache", "kv_cache_rope")}
    found = torch_npu.atb.npu_mla_preprocess(**given | wide)
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one.flatten(), other.flatten())
    odd = {"kv_cache": given["kv_cache"][:, :31].contiguous()}
    with pytest.raises(
        RuntimeError, match="'kv_cache' must be of a multiple of 32 in the second dimension"
    ):
        torch_npu.atb.npu_mla_preprocess(**given | odd)


def test_weights_in_nz():
    given = inputs()
    right = torch_npu.atb.npu_mla_preprocess(**given)
    for name in ("wdqkv", "wuq"):
        given[name] = given[name].unflatten(1, (-1, 32)).transpose(0, 1).unsqueeze(0).contiguous()
    given["wuk"] = given["wuk"].unflatten(2, (-1, 16)).transpose(1, 2).contiguous()
    for found, same in zip(torch_npu.atb.npu_mla_preprocess(**given), right, strict=True):
        assert torch.equal(found.cpu(), same.cpu())


@pytest.mark.parametrize(
    "change,message",
    [
        ({"cache_mode": "plain"}, "'cache_mode' must be"),
        ({"quant_mode": "per_tensor_quant_asymm"}, "'quant_scale0' must be given"),
        ({"slotmapping": torch.tensor([0, 1, 256]).int().npu()}, "'slotmapping' must be below 256"),
        ({"gamma0": make(7168)}, "'gamma0' must be of the dtype of 'input'"),
        (
            {"wuq": make(10, 1536, dtype=torch.int8, low=0, high=2)},
            r"'wuq' must be of shape \(384, 1536\)",
        ),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"npu_mla_preprocess: argument {message}"):
        torch_npu.atb.npu_mla_preprocess(**(inputs() | change))
