"""mla_preprocess against the formula in float64, one token and head at a time."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops

TOKENS, HIDDEN, HEADS, NOPE, LATENT, ROPE, LORA = 3, 64, 2, 32, 64, 32, 64
BLOCKS, BLOCK = 2, 4
SLOTS = [5, -1, 2]


def nz(weight):
    """(1, columns / c, rows, c) of (rows, columns)."""
    width = 32 // weight.element_size()
    return weight.view(weight.shape[0], -1, width).transpose(0, 1).contiguous()[None]


def arguments(quant_mode, dtype):
    def small(*shape):
        return (torch.randn(*shape) * 0.5).to(dtype)

    down, up = LATENT + ROPE + LORA, HEADS * (NOPE + ROPE)
    given = {
        "hiddenState": small(TOKENS, HIDDEN),
        "gamma1": small(LORA),
        "gamma2": small(LATENT),
        "cos": small(TOKENS, ROPE),
        "sin": small(TOKENS, ROPE),
        "wuk": small(HEADS, NOPE, LATENT),
        "slotmapping": torch.tensor(SLOTS, dtype=torch.int32),
        "ctkv_scale": torch.tensor([0.02]).to(dtype),
        "q_nope_scale": torch.tensor([0.03, 0.05]).to(dtype),
    }
    if quant_mode == "no_quant":
        return given | {"wdqkv": small(down, HIDDEN), "wuq": small(up, LORA)}
    given |= {"wdqkv": ints(down, HIDDEN), "wuq": ints(up, LORA), "beta1": small(LORA)}
    for i, size in ((0, down), (1, up)):
        given |= {
            f"descale{i}": torch.rand(size) * 0.01,
            f"bias{i}": torch.randint(-90, 90, (size,), dtype=torch.int32),
            f"quant_scale{i}": torch.tensor([0.0625]).to(dtype),
            f"quant_offset{i}": torch.tensor([3], dtype=torch.int8),
        }
    return given


def ints(*shape):
    return torch.randint(-9, 9, shape, dtype=torch.int8)


def product(x, given, i, weight, mode):
    if mode == "no_quant":
        return x @ weight.t()
    if mode == "per_token_quant_symm":
        step = x.abs().amax() / 127
        return (x / step).round() @ weight.t() * given[f"descale{i}"].double() * step
    scale, offset = given[f"quant_scale{i}"].double(), given[f"quant_offset{i}"].double()
    rows = (x / scale + offset).round().clamp(-128, 127)
    return (rows @ weight.t() + given[f"bias{i}"]) * given[f"descale{i}"].double()


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    other = torch.cat((-x[half:], x[:half]))
    return x * cos + other * sin


def norm(x, gamma):
    return x / (x.square().mean() + 1e-6).sqrt() * gamma


def reference(given, mode):
    """(latent, rope of the key, queries, rope of the queries, the inner norm) of each token."""
    wide = {k: v.double() for k, v in given.items() if k != "slotmapping"}
    dtype, found = given["hiddenState"].dtype, []
    for t in range(TOKENS):
        down = product(wide["hiddenState"][t], given, 0, wide["wdqkv"], mode)
        down = down.to(dtype).double()
        c, r, d = down.split((LATENT, ROPE, LORA))
        inner = norm(d, wide["gamma1"]) + wide.get("beta1", 0)
        used = inner.to(dtype).double() if mode == "no_quant" else inner
        up = product(used, given, 1, wide["wuq"], mode).to(dtype).double().view(HEADS, -1)
        query = torch.stack([up[h, :NOPE] @ wide["wuk"][h] for h in range(HEADS)])
        cos, sin = wide["cos"][t], wide["sin"][t]
        rope = torch.stack([turned(up[h, NOPE:], cos, sin) for h in range(HEADS)])
        found.append((norm(c, wide["gamma2"]), turned(r, cos, sin), query, rope, inner))
    return [torch.stack(part) for part in zip(*found)]


NAMES = [
    "hiddenState",
    "wdqkv",
    "descale0",
    "gamma1",
    "beta1",
    "wuq",
    "descale1",
    "gamma2",
    "cos",
    "sin",
    "wuk",
    "kv_cache",
    "kv_cache_rope",
    "slotmapping",
    "quant_scale0",
    "quant_offset0",
    "bias0",
    "quant_scale1",
    "quant_offset1",
    "bias1",
    "ctkv_scale",
    "q_nope_scale",
]


def call(given, cache, rope_cache, cache_mode, quant_mode, inner=True):
    dtype = given["hiddenState"].dtype
    given = dict(given, kv_cache=cache, kv_cache_rope=rope_cache)
    given |= {"wdqkv": nz(given["wdqkv"]), "wuq": nz(given["wuq"])}
    device = npu(*(given.get(name) for name in NAMES))
    width = given["wuk"].shape[2]
    kind = torch.int8 if cache_mode == "int8_nzcache" else dtype
    outs = [torch.zeros(TOKENS, HEADS, width, dtype=kind), torch.zeros(TOKENS, HEADS, ROPE)]
    q0, q1 = npu(outs[0], outs[1].to(dtype))
    down = torch.zeros(TOKENS, LORA, dtype=dtype).npu()
    caches = device[11], device[12]
    results = ops.mla_preprocess(
        *device, cache_mode, quant_mode, inner, q0, caches[0], q1, caches[1], down
    )
    assert [r.data_ptr() for r in results] == [
        t.data_ptr() for t in (q0, caches[0], q1, caches[1], down)
    ]
    return [t.cpu() for t in (q0, q1, *caches, down)]


def close(got, expected, step=0.0):
    tolerance = 0.02 * expected.abs().max() + step
    assert (got.double() - expected).abs().max() <= tolerance


@pytest.mark.parametrize(
    "quant_mode", ["per_tensor_quant_asymm", "per_token_quant_symm", "no_quant"]
)
@pytest.mark.parametrize("cache_mode", ["krope_ctkv", "kvcache", "nzcache", "int8_nzcache"])
def test_queries_and_caches(cache_mode, quant_mode):
    given = arguments(quant_mode, torch.bfloat16)
    latent, rope, query, query_rope, inner = reference(given, quant_mode)
    int8 = cache_mode == "int8_nzcache"
    width = LATENT + ROPE if cache_mode == "kvcache" else LATENT
    cache = torch.zeros(BLOCKS, BLOCK, 1, width, dtype=torch.int8 if int8 else torch.bfloat16)
    rope_cache = torch.zeros(BLOCKS, BLOCK, 1, ROPE, dtype=torch.bfloat16)
    q0, q1, cache, rope_cache, down = call(given, cache, rope_cache, cache_mode, quant_mode)
    close(q1, query_rope)
    close(down, inner)
    if "nz" in cache_mode:
        cache, rope_cache = (
            c.view(BLOCKS, -1, BLOCK, 32 // c.element_size()).transpose(1, 2).reshape(c.shape)
            for c in (cache, rope_cache)
        )
    if int8:
        step = given["q_nope_scale"].double().view(-1, 1)
        close(q0.double() * step, (query / step).round().clamp(-128, 127) * step, 2 * step.max())
        step = given["ctkv_scale"].double()
        cache, latent = cache.double() * step, (latent / step).round().clamp(-128, 127) * step
    else:
        close(q0, query)
    if cache_mode == "kvcache":
        latent = torch.cat((latent, rope), 1)
    rows, rope_rows = cache.reshape(-1, width), rope_cache.reshape(-1, ROPE)
    for t, slot in enumerate(SLOTS):
        if slot >= 0:
            close(rows[slot], latent[t], 0.03 if int8 else 0.0)
            if cache_mode != "kvcache":
                close(rope_rows[slot], rope[t])
    untouched = [s for s in range(BLOCKS * BLOCK) if s not in SLOTS]
    assert not rows[untouched].any() and not rope_rows[untouched].any()


def test_without_rope_and_with_a_strided_cache():
    given = arguments("per_tensor_quant_asymm", torch.float16)
    given |= {"cos": None, "sin": None}
    ones, zeros = torch.ones(TOKENS, ROPE), torch.zeros(TOKENS, ROPE)
    _, rope, _, query_rope, _ = reference(
        given | {"cos": ones, "sin": zeros}, "per_tensor_quant_asymm"
    )
    wide = torch.zeros(2 * BLOCKS, BLOCK, 1, LATENT, dtype=torch.float16)[::2]
    rope_cache = torch.zeros(BLOCKS, BLOCK, 1, ROPE, dtype=torch.float16)
    _, q1, _, rope_cache, down = call(
        given, wide, rope_cache, None, "per_tensor_quant_asymm", inner=False
    )
    close(q1, query_rope)
    close(rope_cache.view(-1, ROPE)[5], rope[0])
    assert not down.any()


def test_what_is_missing_or_does_not_fit_raises():
    given = arguments("per_tensor_quant_asymm", torch.bfloat16)
    cache = torch.zeros(BLOCKS, BLOCK, 1, LATENT, dtype=torch.bfloat16)
    rope = torch.zeros(BLOCKS, BLOCK, 1, ROPE, dtype=torch.bfloat16)
    for change, mode, message in (
        (
            {"quant_scale1": None},
            "krope_ctkv",
            "argument 'quant_scale1' must be given with quant_mode",
        ),
        ({"sin": None}, "krope_ctkv", "argument 'sin' must be given if and only if 'cos' is"),
        ({}, "paged", "argument 'cache_mode' must be"),
        ({"wuq": ints(8, LORA)}, "krope_ctkv", "argument 'wuq' must be of shape"),
    ):
        with pytest.raises(RuntimeError, match=f"_C_ascend::mla_preprocess: {message}"):
            call(given | change, cache, rope, mode, "per_tensor_quant_asymm")
