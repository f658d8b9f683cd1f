"""npu_top_k_top_p_sample against a loop over sorted lists."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make

WORDS = 40


def tensor(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).to(make(1).device)


def reference(row, k, p, min_p=0.0, limit=1024, is_logits=True):
    """[(index, probability)] of the tokens that pass, in the order that sampling sees."""
    pairs = list(enumerate(row))
    by_k = 1 <= k <= min(limit, len(row))

    def normalized(pairs):
        if not is_logits:
            return pairs
        top = max(v for _, v in pairs)
        total = sum(math.exp(v - top) for _, v in pairs)
        return [(i, math.exp(v - top) / total) for i, v in pairs]

    if not by_k and p >= 1 and min_p < 1:
        kept = normalized(pairs)
    else:
        pairs.sort(key=lambda pair: -pair[1])
        kept = normalized(pairs[:k] if by_k else pairs)
        if p <= 0:
            kept = [(kept[0][0], 1.0 if is_logits else kept[0][1])]
        elif p < 1:
            before, chosen = 0.0, []
            for pair in kept:
                if before < p:
                    chosen.append(pair)
                before += pair[1]
            kept = chosen
    if min_p >= 1:
        return kept[:1]
    if min_p > 0:
        most = max(v for _, v in kept)
        kept = [pair for pair in kept if pair[1] >= most * min_p]
    return kept


CASES = [
    (5, 0.7, 0.0),
    (5, 1.0, 0.0),
    (0, 0.4, 0.0),
    (1, 0.4, 0.0),
    (WORDS, 0.9, 0.3),
    (WORDS + 1, 1.0, 0.5),
    (-3, 2.0, 0.0),
    (9, 0.0, 0.0),
    (9, -1.0, 0.0),
    (9, 0.8, 1.5),
    (0, 1.0, 1.0),
]


@pytest.mark.family("A2")
@pytest.mark.parametrize("is_logits", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_which_pass(dtype, is_logits):
    ks, ps, mins = zip(*CASES, strict=True)
    logits = make(len(CASES), WORDS, low=-3, high=3)
    logits = logits.to(dtype) if is_logits else torch.softmax(logits, -1).to(dtype)
    chosen, passed = torch_npu.npu_top_k_top_p_sample(
        logits,
        tensor(ks, torch.int32),
        tensor(ps, dtype),
        is_need_logits=True,
        min_ps=tensor(mins, dtype),
        input_is_logits=is_logits,
    )
    assert chosen.dtype == torch.int64 and passed.dtype == torch.float32
    rows = logits.cpu().float().tolist()
    p_given, min_given = (tensor(v, dtype).float().tolist() for v in (ps, mins))
    for b, row in enumerate(rows):
        kept = reference(row, ks[b], p_given[b], min_given[b], is_logits=is_logits)
        fill = -math.inf if is_logits else 0.0
        want = [fill] * WORDS
        for i, _ in kept:
            want[i] = row[i]
        assert passed[b].tolist() == want, CASES[b]
        assert row[int(chosen[b])] == max(row[i] for i, _ in kept)


def test_q_sample():
    ks, ps, _ = zip(*CASES, strict=True)
    logits = make(len(CASES), WORDS, low=-3, high=3)
    q = make(len(CASES), WORDS, low=0.01, high=3, seed=8)
    chosen, _ = torch_npu.npu_top_k_top_p_sample(
        logits, tensor(ks, torch.int32), tensor(ps), q, eps=0.125
    )
    differs = False
    for b, row in enumerate(logits.cpu().tolist()):
        kept = reference(row, ks[b], ps[b])
        weights = [v / (abs(q[b, n].item()) + 0.125) for n, (_, v) in enumerate(kept)]
        assert int(chosen[b]) == kept[weights.index(max(weights))][0], CASES[b]
        differs |= int(chosen[b]) != row.index(max(row))
    assert differs


def test_multinomial_follows_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(3000, 4).to(make(1).device)
    k, p = tensor([3] * 3000, torch.int32), tensor([1.0] * 3000)
    chosen, _ = torch_npu.npu_top_k_top_p_sample(logits, k, p, post_sample="multiNomial")
    counts = torch.bincount(chosen.cpu(), minlength=4).double() / 3000
    want = torch.softmax(torch.tensor([0.0, 1.0, 2.0, -math.inf], dtype=torch.float64), 0)
    assert (counts - want).abs().max() < 0.03 and counts[3] == 0


def test_draws_of_a_generator():
    """Those of torch.multinomial, for all rows at once; `top_k_guess` changes nothing."""
    logits = make(5, 64)
    k, p = tensor([64] * 5, torch.int32), tensor([1.0] * 5)
    drawn = []
    for guess in (32, 7):
        generator = torch.Generator(device="npu").manual_seed(3)
        drawn.append(
            torch_npu.npu_top_k_top_p_sample(
                logits, k, p, post_sample="multiNomial", generator=generator, top_k_guess=guess
            )[0]
        )
    ordered, index = logits.sort(-1, descending=True)
    generator = torch.Generator(device="npu").manual_seed(3)
    place = torch.multinomial(ordered.softmax(-1), 1, replacement=True, generator=generator)
    assert drawn[0].tolist() == drawn[1].tolist() == index.gather(1, place).flatten().tolist()


@pytest.mark.family("A2")
def test_the_limit_of_k_is_rounded_to_8():
    logits = make(2, WORDS)
    k, p = tensor([16, 17], torch.int32), tensor([1.0, 1.0])
    _, passed = torch_npu.npu_top_k_top_p_sample(logits, k, p, is_need_logits=True, ks_max=9)
    assert passed.isfinite().sum(1).tolist() == [16, WORDS]


def test_without_logits():
    logits = make(2, WORDS)
    k, p = tensor([3, 3], torch.int32), tensor([1.0, 1.0])
    _, passed = torch_npu.npu_top_k_top_p_sample(logits, k, p)
    assert passed.shape == (2, WORDS)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"top_k": (torch.int64, [1, 2])}, "'top_k' must be of dtype torch.int32"),
        ({"top_p": (torch.float16, [0.5, 0.5])}, "'top_p' must be of the dtype of 'logits'"),
        ({"top_p": (torch.float32, [0.5])}, r"'top_p' must be of shape \(2\)"),
        ({"q": (torch.float32, [[1.0]])}, rf"'q' must be of shape \(2, {WORDS}\)"),
        ({"ks_max": 0}, "'ks_max' must be positive, but received 0"),
        ({"post_sample": "other"}, "'post_sample' must be .*but received 'other'"),
    ],
)
def test_refusals(changes, message):
    given = {
        "logits": make(2, WORDS),
        "top_k": tensor([1, 2], torch.int32),
        "top_p": tensor([0.5, 0.5]),
    }
    for name, value in changes.items():
        given[name] = tensor(value[1], value[0]) if isinstance(value, tuple) else value
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_top_k_top_p_sample(**given)
