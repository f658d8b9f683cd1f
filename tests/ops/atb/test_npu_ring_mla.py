"""npu_ring_mla against fp64: parts of the keys give what all of them give."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, close, lens
from tests.ops.support import make


def inputs(dtype, queries, keys, seed=1):
    return dict(
        q_nope=make(queries, 4, 128, dtype=dtype),
        q_rope=make(queries, 4, 64, dtype=dtype),
        k_nope=make(keys, 2, 128, dtype=dtype, seed=seed),
        k_rope=make(keys, 2, 64, dtype=dtype, seed=seed + 1),
        value=make(keys, 2, 128, dtype=dtype, seed=seed + 2),
        mask=torch.ones(512, 512).triu(1).to(dtype).npu(),
        head_num=4,
        kv_head_num=2,
        qk_scale=0.1,
    )


def expected(given, new, known, causal=False):
    query = torch.cat((given["q_nope"], given["q_rope"]), -1)
    key = torch.cat((given["k_nope"], given["k_rope"]), -1)
    out, lse, start, first = [], [], 0, 0
    for n, length in zip(new, known, strict=True):
        bias = torch.zeros(n, length)
        if causal:
            bias.masked_fill_(torch.ones(n, length).triu(1).bool(), -torch.inf)
        keys = slice(first, first + length)
        found = attention(query[start : start + n], key[keys], given["value"][keys], 0.1, bias)
        out.append(found[0])
        lse.append(found[1])
        start, first = start + n, first + length
    return torch.cat(out), torch.cat(lse, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("new,known", [((4, 3), (4, 3)), ((4, 3), (9, 5))])
def test_first_part(dtype, causal, new, known):
    given = inputs(dtype, sum(new), sum(known))
    lengths = lens(*new) if new == known else torch.stack((lens(*new), lens(*known)))
    options = {"mask_type": "mask_type_triu" if causal else "no_mask"}
    out, lse = torch_npu.atb.npu_ring_mla(**given, seqlen=lengths, **options)
    right = expected(given, new, known, causal)
    close(out, right[0], dtype)
    torch.testing.assert_close(lse.cpu().double(), right[1], rtol=1e-4, atol=1e-4)
    targets = torch.zeros_like(out), torch.zeros_like(lse)
    torch_npu.atb.npu_ring_mla(
        **given, seqlen=lengths, **options, output=targets[0], softmax_lse=targets[1]
    )
    assert torch.equal(targets[0].cpu(), out.cpu()) and torch.equal(targets[1].cpu(), lse.cpu())


def test_parts_are_merged():
    one, two = inputs(torch.float16, 5, 6), inputs(torch.float16, 5, 7, seed=4)
    first = torch.stack((lens(5), lens(6)))
    out, lse = torch_npu.atb.npu_ring_mla(**one, seqlen=first)
    second = torch.stack((lens(5), lens(7)))
    out, lse = torch_npu.atb.npu_ring_mla(
        **two, seqlen=second, pre_out=out, prev_lse=lse, calc_type="calc_type_default"
    )
    whole = one | {n: torch.cat((one[n], two[n])) for n in ("k_nope", "k_rope", "value")}
    right = expected(whole, (5,), (13,))
    close(out, right[0], torch.float16)
    torch.testing.assert_close(lse.cpu().double(), right[1], rtol=1e-3, atol=1e-3)


def test_a_sequence_without_keys_keeps_its_result():
    given = inputs(torch.float16, 5, 4)
    before, sums = make(5, 4, 128, dtype=torch.float16), make(4, 5)
    lengths = torch.stack((lens(3, 2), lens(4, 0)))
    out, lse = torch_npu.atb.npu_ring_mla(
        **given, seqlen=lengths, pre_out=before, prev_lse=sums, calc_type="calc_type_default"
    )
    assert torch.equal(out[3:].cpu(), before[3:].cpu())
    torch.testing.assert_close(lse[:, 3:].cpu(), sums[:, 3:].cpu())
    assert not torch.equal(out[:3].cpu(), before[:3].cpu())


@pytest.mark.parametrize(
    "change,message",
    [
        ({"seqlen": lens(5).npu()}, "'seqlen' must be a CPU tensor"),
        (
            {"seqlen": torch.stack((lens(5), lens(9)))},
            "'seqlen' must be of at most 6 tokens in all",
        ),
        ({"kernel_type": "kernel_type_default"}, "'kernel_type' must be"),
        (
            {"mask_type": "mask_type_triu", "mask": make(2, 512, 512, dtype=torch.float16)},
            r"'mask' must be of shape \(1, \*, \*\)",
        ),
        ({"calc_type": "calc_type_default"}, "'pre_out' must be given"),
        ({"mask_type": "causal"}, "'mask_type' must be"),
        ({"head_num": 3}, "'kv_head_num' must be 0 or a divisor"),
    ],
)
def test_refusals(change, message):
    given = inputs(torch.float16, 5, 6) | {"seqlen": lens(5)}
    with pytest.raises(RuntimeError, match=f"npu_ring_mla: argument {message}"):
        torch_npu.atb.npu_ring_mla(**(given | change))
