"""npu_qkv_rms_norm_rope_cache against fp64, page by page."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

D, NQ, NK, ROWS = 128, 4, 2, 6


def pages(dtype, seed):
    inner = 32 if dtype == torch.int8 else 16
    return make(3, NK * D // inner, 32, inner, low=-9, high=9, seed=seed).to(dtype)


def expected(qkv, gammas, cos, sin, epsilon):
    q, k, v = qkv.unflatten(1, (-1, D)).split([NQ, NK, NK], 1)
    out = []
    for x, gamma in zip((q, k), gammas, strict=True):
        y = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma
        a, b = y.chunk(2, -1)
        out.append(y * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None])
    return *out, v


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quantized", ["", "kv", "v"])
@pytest.mark.parametrize("offset", [True, False])
def test_outputs_and_caches(dtype, quantized, offset):
    qkv = make(ROWS, (NQ + 2 * NK) * D, dtype=dtype)
    gammas = [make(D, dtype=dtype, low=0.5, high=2, seed=s) for s in (1, 2)]
    cos, sin = make(ROWS, D, dtype=dtype, seed=3), make(ROWS, D, dtype=dtype, seed=4)
    index = torch.tensor([0, 95, -1, 40, 33, 2])
    q_out = make(ROWS, NQ * D, dtype=dtype, seed=9)
    caches, more, before = {}, {}, {}
    for letter in "kv":
        whole = letter in quantized
        caches[letter] = pages(torch.int8 if whole else dtype, ord(letter))
        before[letter] = caches[letter].cpu().clone()
        if whole:
            more[f"{letter}_scale"] = make(NK, D, low=0.01, high=0.03, seed=ord(letter))
            if offset:
                more[f"{letter}_offset"] = make(NK, D, low=-5, high=5, seed=ord(letter))
    found = torch_npu.npu_qkv_rms_norm_rope_cache(
        qkv, *gammas, cos, sin, index.npu(), q_out, caches["k"], caches["v"], [2, 3, NQ + 2 * NK, D], [NQ, NK, NK],
        epsilon=1e-5, is_output_qkv=True, **more,
    )  # fmt: skip
    wide = [t.cpu().double() for t in (qkv, cos, sin)]
    right = expected(wide[0], [g.cpu().double() for g in gammas], *wide[1:], 1e-5)
    assert_accurate(q_out, right[0].flatten(1), right[0].flatten(1).to(dtype))
    for got, want in zip(found, right, strict=True):
        assert_accurate(got, want.flatten(1), want.flatten(1).to(dtype))
    for letter, want in (("k", right[1]), ("v", right[2])):
        cache = caches[letter].cpu()
        inner = cache.shape[3]
        if letter in quantized:
            want = want / more[f"{letter}_scale"].cpu().double()
            want = want + more[f"{letter}_offset"].cpu().double() if offset else want
            want = want.round().clamp(-128, 127)
        seen = torch.zeros(3, 32).bool()
        for row, place in enumerate(index.tolist()):
            if place < 0:
                continue
            block, inside = divmod(place, 32)
            seen[block, inside] = True
            got = cache[block, :, inside].reshape(-1).double()
            difference = (got - want[row].flatten().to(dtype).double()).abs()
            if letter in quantized:
                assert difference.max() <= 1 and (difference > 0).double().mean() < 0.02
            else:
                assert (difference <= 1e-2 * want[row].flatten().abs() + 1e-3).all()
        untouched = ~seen[:, None, :, None].expand(-1, cache.shape[1], -1, inner)
        assert torch.equal(cache[untouched], before[letter][untouched])


def test_functional_form_leaves_its_arguments():
    def call(name, *written):
        return getattr(torch_npu, name)(
            make(2, 4 * D, dtype=torch.float16), make(D, dtype=torch.float16), make(D, dtype=torch.float16),
            make(2, D, dtype=torch.float16), make(2, D, dtype=torch.float16), torch.tensor([1, 2]).npu(), *written,
            [1, 2, 4, D], [2, 1, 1], is_output_qkv=True,
        )  # fmt: skip

    def fresh():
        page = torch.zeros(1, 8, 32, 16, dtype=torch.float16)
        return torch.zeros(2, 2 * D).half().npu(), page.npu(), page.clone().npu()

    kept, changed = fresh(), fresh()
    whole = call("npu_qkv_rms_norm_rope_cache_functional", *kept)
    part = call("npu_qkv_rms_norm_rope_cache", *changed)
    assert not any(t.any() for t in kept) and all(t.any() for t in changed)
    for got, want in zip(whole, (*part, *changed), strict=True):
        assert torch.equal(got, want)


def test_one_row_of_angles_for_a_sequence():
    def call(cos, sin):
        pages = [torch.zeros(2, 8, 32, 16, dtype=torch.float16).npu() for _ in range(2)]
        out = torch.zeros(4, 2 * D).half().npu()
        torch_npu.npu_qkv_rms_norm_rope_cache(
            make(4, 4 * D, dtype=torch.float16), make(D, dtype=torch.float16), make(D, dtype=torch.float16),
            cos, sin, torch.arange(4).npu(), out, *pages, [2, 2, 4, D], [2, 1, 1],
        )  # fmt: skip
        return out, *pages

    cos, sin = (make(2, D, dtype=torch.float16, seed=s) for s in (1, 2))
    wide = (t.view(2, 1, D).expand(2, 2, D).reshape(4, D) for t in (cos, sin))
    for got, want in zip(call(cos, sin), call(*wide), strict=True):
        assert got.any() and torch.equal(got, want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qkv_size": [1, 2, 4, 64]}, "'qkv_size' must be of head size 128.*64"),
        ({"head_nums": [1, 1, 2]}, r"'head_nums' must be \[Nq, Nk, Nk\], 4 together"),
        ({"cache_mode": "PA"}, "'cache_mode' must be 'PA_NZ'"),
        ({"index": torch.tensor([0, 32])}, r"'index' must be in \[-1, 32\)"),
        ({"k_cache": torch.zeros(1, 8, 16, 16).half()}, "'k_cache' must be of blocks whose size is a multiple of 32"),
        ({"v_cache": torch.zeros(2, 8, 32, 16).half()}, r"'v_cache' must be of shape \(1, \*, 32, \*\)"),
        ({"qkv_size": [2, 1, 4, D]}, "'k_cache' must be of at least 2 blocks"),
        ({"qkv_size": [1, 2, 7, D], "head_nums": [3, 2, 2], "qkv": make(2, 7 * D, dtype=torch.float16)}, "'head_nums' must be of Nq divisible by Nk"),
        ({"k_scale": make(1, D)}, "'k_scale' must be given for an int8 cache"),
        ({"v_offset": make(1, D)}, "'v_offset' must be None without an int8 cache"),
        ({"k_cache": torch.zeros(1, 4, 16, 32).half()}, r"'k_cache' must be of shape \(\*, 8, \*, 16\)"),
        ({"cos": make(2, 64, dtype=torch.float16)}, r"'cos' must be of shape \(2, 128\)"),
        ({"sin": make(1, D, dtype=torch.float16)}, r"'sin' must be of shape \(2, 128\)"),
        ({"q_out": torch.zeros(2, 2 * D)}, "'q_out' must be of the dtype of 'qkv'"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "qkv": make(2, 4 * D, dtype=torch.float16),
        "q_gamma": make(D, dtype=torch.float16),
        "k_gamma": make(D, dtype=torch.float16),
        "cos": make(2, D, dtype=torch.float16),
        "sin": make(2, D, dtype=torch.float16),
        "index": torch.tensor([0, 1]),
        "q_out": torch.zeros(2, 2 * D).half(),
        "k_cache": torch.zeros(1, 8, 32, 16).half(),
        "v_cache": torch.zeros(1, 8, 32, 16).half(),
        "qkv_size": [1, 2, 4, D],
        "head_nums": [2, 1, 1],
    }
    merged = {**given, **changes}
    merged = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in merged.items()}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_qkv_rms_norm_rope_cache(**merged)
