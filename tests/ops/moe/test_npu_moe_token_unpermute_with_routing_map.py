"""npu_moe_token_unpermute_with_routing_map and its gradient against a loop over the map."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import npu
from tests.ops.support import assert_accurate, gradcheck, make

MAP = [[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 1, 1]]
INDEX = [0, 5, 2, 6, 1, 3, 4, 7]  # the rows of the tokens, token by token
PADDED = [0, 2, 1, 2, 0, 3]  # the token of each row, two rows an expert


def merged(rows, probs, index=INDEX):
    out = torch.zeros(4, rows.size(1), dtype=rows.dtype)
    for t in range(4):
        experts = [e for e in range(3) if MAP[t][e]]
        for j, e in enumerate(experts):
            if index[t * 2 + j] >= 0:
                out[t] += rows[index[t * 2 + j]] * (1 if probs is None else probs[t, e])
    return out


def merged_padded(rows, probs):
    out = torch.zeros(4, rows.size(1), dtype=rows.dtype)
    for i, t in enumerate(PADDED):
        out[t] += rows[i] * (1 if probs is None else probs[t, i // 2])
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("with_probs", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_sums(dtype, with_probs, padded):
    rows = make(6 if padded else 8, 5, dtype=dtype)
    probs = make(4, 3, dtype=dtype) if with_probs else None
    index = npu(PADDED if padded else INDEX)
    out = torch_npu.npu_moe_token_unpermute_with_routing_map(
        rows, index, [4, 5], probs=probs, routing_map=npu(MAP, torch.int8), drop_and_pad=padded
    )
    merge = merged_padded if padded else merged
    host = [None if probs is None else probs.cpu().to(t) for t in (torch.float64, dtype)]
    assert_accurate(out, merge(rows.cpu().double(), host[0]), merge(rows.cpu(), host[1]))


def test_slots_without_a_row():
    rows, probs = make(8, 5), make(4, 3)
    index = [0, 5, 2, -1, -1, -1, 4, 7]
    out = torch_npu.npu_moe_token_unpermute_with_routing_map(
        rows, npu(index), [4, 5], probs=probs, routing_map=npu(MAP, torch.bool)
    )
    want = merged(rows.cpu().double(), probs.cpu().double(), index)
    assert_accurate(out, want, want.float())


@pytest.mark.parametrize("padded", [False, True])
def test_undoes_the_permutation(padded):
    tokens, chosen = make(4, 5), npu(MAP, torch.bool)
    rows, _, index = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens, chosen, num_out_tokens=12 if padded else 8, drop_and_pad=padded
    )
    weights = chosen.float() / 2
    out = torch_npu.npu_moe_token_unpermute_with_routing_map(
        rows, index, [4, 5], probs=weights, routing_map=chosen, drop_and_pad=padded
    )
    assert torch.equal(out.cpu(), tokens.cpu())


def test_underscored_form():
    rows, probs, chosen = make(6, 5), make(4, 3), npu(MAP, torch.bool)
    out, places, ids, weights = torch_npu._npu_moe_token_unpermute_with_routing_map(
        rows, npu(PADDED), [4, 5], probs=probs, routing_map=chosen, drop_and_pad=True
    )
    assert_accurate(out, merged_padded(rows.cpu().double(), probs.cpu().double()),
                    merged_padded(rows.cpu(), probs.cpu()))  # fmt: skip
    order = sorted(range(6), key=lambda i: (PADDED[i], i))
    assert places.tolist() == order and ids.tolist() == sorted(PADDED)
    assert weights.tolist() == [probs[t, i // 2].item() for i, t in enumerate(PADDED)]
    _, _, _, weights = torch_npu._npu_moe_token_unpermute_with_routing_map(
        make(8, 5), npu(INDEX), [4, 5], probs=probs, routing_map=chosen
    )
    assert weights.tolist() == [probs[t, e].item() for t in range(4) for e in range(3) if MAP[t][e]]


@pytest.mark.parametrize("padded", [False, True])
def test_gradients(padded):
    rows = make(6 if padded else 8, 3, dtype=torch.float64, requires_grad=True)
    probs = make(4, 3, dtype=torch.float64, requires_grad=True)
    index, chosen = npu(PADDED if padded else INDEX), npu(MAP, torch.bool)
    options = {"routing_map": chosen, "drop_and_pad": padded}
    call = torch.ops.npu.npu_moe_token_unpermute_with_routing_map
    gradcheck(lambda r, p: call(r, index, [4, 3], probs=p, **options), rows, probs)
    gradcheck(lambda r: call(r, index, [4, 3], **options), rows)
    under = torch.ops.npu._npu_moe_token_unpermute_with_routing_map
    gradcheck(lambda r, p: under(r, index, [4, 3], probs=p, **options)[0], rows, probs)


def test_map_is_needed_with_probs():
    with pytest.raises(RuntimeError, match="'routing_map' must be given together with 'probs'"):
        torch_npu.npu_moe_token_unpermute_with_routing_map(
            make(8, 5), npu(INDEX), [4, 5], probs=make(4, 3)
        )


def test_bad_indices():
    with pytest.raises(
        RuntimeError, match=r"'sorted_indices' must be in \[-1, 8\), but received 8 at index 1"
    ):
        torch_npu.npu_moe_token_unpermute_with_routing_map(
            make(8, 5), npu([0, 8, *INDEX[2:]]), [4, 5]
        )
    with pytest.raises(
        RuntimeError, match=r"'sorted_indices' must be in \[0, 4\), but received 4 at index 0"
    ):
        torch_npu.npu_moe_token_unpermute_with_routing_map(
            make(6, 5), npu([4, *PADDED[1:]]), [4, 5], drop_and_pad=True
        )


def test_bad_shapes():
    with pytest.raises(
        RuntimeError, match=r"'restore_shape' must be \[tokens, 5\], but received \[4, 6\]"
    ):
        torch_npu.npu_moe_token_unpermute_with_routing_map(make(8, 5), npu(INDEX), [4, 6])
    with pytest.raises(
        RuntimeError, match="'sorted_indices' must be of a length that 3 tokens divide"
    ):
        torch_npu.npu_moe_token_unpermute_with_routing_map(make(8, 5), npu(INDEX), [3, 5])
