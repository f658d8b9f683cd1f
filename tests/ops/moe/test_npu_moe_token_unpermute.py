"""npu_moe_token_unpermute and its gradients against a loop over tokens and experts."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import npu
from tests.ops.support import assert_accurate, gradcheck, make

PLACES = [3, 0, 7, 9, 1, 4, 2, 8, 6, 5]


def reference(rows, places, probs, top_k):
    out = torch.zeros(len(places) // top_k, rows.size(1), dtype=rows.dtype)
    for pair, place in enumerate(places):
        if place < len(rows):
            weight = 1 if probs is None else probs[pair // top_k][pair % top_k]
            out[pair // top_k] += weight * rows[place]
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("top_k", [None, 1, 2, 5])
@pytest.mark.parametrize("rows,width", [(10, 7), (6, 75), (1, 7)])
def test_sums(dtype, top_k, rows, width):
    permuted = make(rows, width, dtype=dtype)
    probs = None if top_k is None else make(10 // top_k, top_k, dtype=dtype)
    out = torch_npu.npu_moe_token_unpermute(permuted, npu(PLACES), probs)
    host = [None if probs is None else probs.cpu().to(t) for t in (torch.float64, dtype)]
    want = reference(permuted.cpu().double(), PLACES, host[0], top_k or 1)
    assert out.dtype == dtype
    assert_accurate(out, want, reference(permuted.cpu(), PLACES, host[1], top_k or 1))


def test_float32_probs_with_bfloat16_rows():
    permuted, probs = make(10, 7, dtype=torch.bfloat16), make(5, 2)
    out = torch_npu.npu_moe_token_unpermute(permuted, npu(PLACES), probs, restore_shape=[5, 7])
    want = reference(permuted.cpu().double(), PLACES, probs.cpu().double(), 2)
    assert_accurate(out, want, want.bfloat16())


def test_undoes_the_permutation():
    tokens = make(6, 4)
    indices = make(6, 3, dtype=torch.int64, low=0, high=5)
    rows, places = torch_npu.npu_moe_token_permute(tokens, indices)
    thirds = torch.full((6, 3), 1 / 4).to(tokens.device)
    out = torch_npu.npu_moe_token_unpermute(rows, places, thirds)
    assert torch.equal(out.cpu(), tokens.cpu() * 0.75)


def test_no_tokens_and_non_contiguous():
    out = torch_npu.npu_moe_token_unpermute(make(0, 3), npu([]), make(0, 2))
    assert out.shape == (0, 3)
    permuted, probs = make(7, 10).t(), make(2, 5).t()
    out = torch_npu.npu_moe_token_unpermute(permuted, npu(PLACES), probs)
    want = reference(permuted.cpu().double(), PLACES, probs.cpu().double(), 2)
    assert_accurate(out, want, want.float())


@pytest.mark.parametrize("rows", [10, 6])
def test_gradients(rows):
    permuted = make(rows, 3, dtype=torch.float64, requires_grad=True)
    probs = make(5, 2, dtype=torch.float64, requires_grad=True)
    places = npu(PLACES)
    gradcheck(lambda p, w: torch_npu.npu_moe_token_unpermute(p, places, w), permuted, probs)
    gradcheck(lambda p: torch_npu.npu_moe_token_unpermute(p, places), permuted)
    gradcheck(lambda p, w: torch.ops.npu._npu_moe_token_unpermute(p, places, w)[0], permuted, probs)


TWICE = [3, 0, 3, 9, 1, 4, 0, 8, 3, 5]  # rows that several pairs name, and one that none does


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("places,width", [(PLACES, 7), (TWICE, 75)])
def test_named_gradients(dtype, places, width):
    permuted, grad, probs = (
        make(6, width, dtype=dtype),
        make(5, width, dtype=dtype),
        make(5, 2, dtype=dtype),
    )
    d_rows = torch.zeros(6, width, dtype=torch.float64)
    d_probs = torch.zeros(5, 2, dtype=torch.float64)
    for pair, place in enumerate(places):
        if place < 6:
            i, j = pair // 2, pair % 2
            d_rows[place] += probs[i, j].cpu().double() * grad[i].cpu().double()
            d_probs[i, j] = (permuted[place].cpu().double() * grad[i].cpu().double()).sum()
    first = torch_npu.npu_moe_token_unpermute_grad(permuted, grad, npu(places), probs)
    second = torch_npu.npu_moe_token_unpermute_grad_v2(
        grad, npu(places), 6, dtype, probs, permuted_tokens=permuted
    )
    for found in (first, second):
        assert found[0].dtype == found[1].dtype == dtype
        assert_accurate(found[0], d_rows, d_rows.to(dtype))
        assert_accurate(found[1], d_probs, d_probs.to(dtype))


def test_underscored_form_keeps_the_rows():
    permuted, probs = make(10, 3), make(5, 2)
    out, kept = torch_npu._npu_moe_token_unpermute(permuted, npu(PLACES), probs)
    assert torch.equal(out, torch_npu.npu_moe_token_unpermute(permuted, npu(PLACES), probs))
    assert torch.equal(kept, permuted)
    assert torch_npu._npu_moe_token_unpermute(permuted, npu(PLACES))[1].numel() == 0


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"probs": (4, 2)}, r"'probs' must be of shape \(5, 2\).*\(4, 2\)"),
        ({"probs": (3, 3)}, "'sorted_indices' must be of a length that 3 experts a token divide"),
        ({"places": [0, -1]}, "'sorted_indices' must be non-negative, but received -1 at index 1"),
        (
            {"restore_shape": [5, -1]},
            r"'restore_shape' must be sizes \(or None\), but received \[5, -1\]",
        ),
        ({"dtype": torch.int8}, "'permuted_tokens' must be of dtype .*int8"),
    ],
)
def test_bad_arguments(changes, message):
    changes = dict(changes)
    permuted = make(10, 3, dtype=changes.pop("dtype", torch.float32), high=9)
    places = npu(changes.pop("places", PLACES))
    probs = make(*changes.pop("probs")) if "probs" in changes else None
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_token_unpermute(permuted, places, probs, **changes)


def test_padded_mode_is_not_supported():
    with pytest.raises(NotImplementedError, match="'padded_mode' must be left at False"):
        torch_npu.npu_moe_token_unpermute(make(2, 3), npu([0, 1]), padded_mode=True)


def test_gradient_needs_the_rows():
    with pytest.raises(RuntimeError, match="'permuted_tokens' must be given together with 'probs'"):
        torch_npu.npu_moe_token_unpermute_grad_v2(
            make(5, 3), npu(PLACES), 10, torch.float32, make(5, 2)
        )
