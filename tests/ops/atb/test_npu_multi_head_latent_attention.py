"""npu_multi_head_latent_attention in its forms against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, pages
from tests.ops.support import make

CONTEXTS = [140, 7, 32]


def inputs(dtype=torch.bfloat16, tokens=3, heads=8):
    return dict(
        q_nope=make(tokens, heads, 512, dtype=dtype),
        q_rope=make(tokens, heads, 64, dtype=dtype),
        ctkv=make(4, 128, 1, 512, dtype=dtype, seed=1),
        k_rope=make(4, 128, 1, 64, dtype=dtype, seed=2),
        block_tables=make(3, 2, dtype=torch.int32, low=0, high=4),
        context_lens=CONTEXTS,
        q_headnum=heads,
        qk_scale=0.05,
        kv_headnum=1,
    )


def expected(given, lengths=(1, 1, 1), bias=lambda start, n, length: None):
    query = torch.cat((given["q_nope"], given["q_rope"]), -1)
    rows, sums, start = [], [], 0
    for i, (n, length) in enumerate(zip(lengths, CONTEXTS, strict=True)):
        latent, rope = (
            pages(given[c], given["block_tables"][i], length) for c in ("ctkv", "k_rope")
        )
        found = attention(
            query[start : start + n],
            torch.cat((latent, rope), -1),
            latent,
            0.05,
            bias(start, n, length),
        )
        rows.append(found[0])
        sums.append(found[1].t())
        start += n
    return torch.cat(rows), torch.cat(sums).unsqueeze(-1)


def nz(cache):
    return (
        cache.flatten(2).unflatten(2, (-1, 32 // cache.element_size())).transpose(1, 2).contiguous()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", [None, "krope_ctkv", "nzcache"])
def test_decode(dtype, mode):
    given = inputs(dtype)
    right = expected(given)[0]
    if mode == "nzcache":
        given |= {"ctkv": nz(given["ctkv"]), "k_rope": nz(given["k_rope"])}
    found = torch_npu.atb.npu_multi_head_latent_attention(**given, cache_mode=mode)
    close(found, right, dtype)
    out = torch.zeros_like(found)
    torch_npu.atb.npu_multi_head_latent_attention(**given, cache_mode=mode, output=out)
    assert torch.equal(out.cpu(), found.cpu())


def test_logsumexp():
    given = inputs(torch.float16)
    call = torch_npu.atb.npu_multi_head_latent_attention
    out, lse = call(**given, return_lse=True, calc_type="calc_type_ring")
    right = expected(given)
    close(out, right[0], torch.float16)
    close(lse, right[1], torch.float16)
    assert lse.dtype == torch.float16
    assert call(**given, return_lse=False)[1].numel() == 0
    targets = torch.zeros_like(out), torch.zeros_like(lse)
    call(**given, return_lse=True, calc_type="calc_type_ring", output=targets[0], lse=targets[1])
    assert torch.equal(targets[1].cpu(), lse.cpu())


def test_several_new_tokens():
    given = inputs(tokens=6)
    options = {"qseqlen": [3, 1, 2], "calc_type": "calc_type_spec"}
    call = torch_npu.atb.npu_multi_head_latent_attention
    close(call(**given, **options), expected(given, (3, 1, 2))[0], torch.bfloat16)
    mask = make(6, 140, dtype=torch.bfloat16, low=-3, high=3)
    found = call(**given, **options, mask=mask, mask_type="mask_type_spec")
    bias = lambda start, n, length: mask[start : start + n, :length].cpu()  # noqa: E731
    close(found, expected(given, (3, 1, 2), bias)[0], torch.bfloat16)
    found = call(**given, **options, mask_type="mask_type_free")
    bias = lambda start, n, length: causal(n, length)  # noqa: E731
    close(found, expected(given, (3, 1, 2), bias)[0], torch.bfloat16)


def test_int8():
    given = inputs(torch.float16)
    latent = make(4, 128, 1, 512, dtype=torch.int8, low=-90, high=90, seed=5)
    given |= {
        "q_nope": make(3, 8, 512, dtype=torch.int8, low=-90, high=90),
        "ctkv": nz(latent),
        "k_rope": nz(given["k_rope"]),
        "qk_descale": make(8, low=1e-4, high=2e-4),
        "pv_descale": make(8, low=0.01, high=0.02),
    }
    call = torch_npu.atb.npu_multi_head_latent_attention
    found = call(**given, cache_mode="int8_nzcache")
    ring = {"cache_mode": "int8_nzcache", "calc_type": "calc_type_ring"}
    lse = call(**given, **ring, return_lse=True)[1]
    plain = inputs(torch.float16)
    for i, length in enumerate(CONTEXTS):
        keys = pages(latent, given["block_tables"][i], length)[:, 0].double()
        rope = pages(plain["k_rope"], given["block_tables"][i], length)[:, 0].double()
        for head in range(8):
            scores = (
                keys @ given["q_nope"][i, head].cpu().double() * given["qk_descale"][head].item()
            )
            scores = (scores + rope @ given["q_rope"][i, head].cpu().double()) * 0.05
            torch.testing.assert_close(
                lse[i, head, 0].cpu().double(), scores.logsumexp(0), rtol=2e-3, atol=2e-3
            )
            weights = (scores - scores.max()).exp()
            whole = (weights * 127).float().half().round().double()
            right = whole @ keys * given["pv_descale"][head].item() / 127 / weights.sum()
            torch.testing.assert_close(found[i, head].cpu().double(), right, rtol=2e-2, atol=2e-3)


def test_workspace():
    found = torch_npu.atb._npu_multi_head_latent_attention_get_workspace(
        **inputs(), return_lse=True
    )
    assert found.dtype == torch.uint8


@pytest.mark.parametrize(
    "change,message",
    [
        ({"cache_mode": "plain"}, "'cache_mode' must be"),
        ({"cache_mode": "int8_nzcache"}, "'q_nope' must be of dtype torch.int8"),
        ({"context_lens": [1] * 4}, "'block_tables' must be of 4 rows"),
        ({"qseqlen": [1, 1], "calc_type": "calc_type_spec"}, "'qseqlen' must be of 3 lengths"),
        ({"q_headnum": 4}, "'q_headnum' must be 8, 16, 32, 64 or 128, but received 4"),
        ({"qk_scale": 1.5}, "'qk_scale' must be above 0 and at most 1"),
        (
            {"ctkv": make(4, 64, 1, 512, dtype=torch.bfloat16)},
            "'ctkv' must be of 128 tokens a block",
        ),
        ({"mask_type": "mask_type_free"}, "'mask_type' must be left out but with calc_type"),
        ({"calc_type": "calc_type_spec"}, "'qseqlen' must be given"),
        (
            {"mask_type": "mask_type_spec", "calc_type": "calc_type_spec", "qseqlen": [1, 1, 1]},
            "'mask' must be given",
        ),
        ({"kv_headnum": 2}, "'kv_headnum' must be 1"),
        (
            {"q_rope": make(3, 8, 32, dtype=torch.bfloat16)},
            r"'q_rope' must be of shape \(3, 8, 64\)",
        ),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"npu_multi_head_latent_attention: argument {message}"):
        torch_npu.atb.npu_multi_head_latent_attention(**(inputs() | change))
