"""npu_moe_token_permute_with_routing_map and its gradient against a loop over the map."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import npu
from tests.ops.support import gradcheck, make

MAP = [[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 1, 1]]


def pairs(routing_map):
    """(expert, token), expert by expert."""
    return [
        (e, t)
        for e in range(len(routing_map[0]))
        for t in range(len(routing_map))
        if routing_map[t][e]
    ]


def padded(routing_map, capacity):
    """(expert, token): each expert's own tokens first, then others in order."""
    found = []
    for e in range(len(routing_map[0])):
        order = sorted(range(len(routing_map)), key=lambda t, e=e: (not routing_map[t][e], t))
        found += [(e, t) for t in order[:capacity]]
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [torch.bool, torch.int8])
@pytest.mark.parametrize("with_probs", [False, True])
def test_every_chosen_pair(dtype, kind, with_probs):
    tokens, probs = make(4, 5, dtype=dtype), make(4, 3, dtype=dtype) if with_probs else None
    rows, moved, index = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens, npu(MAP, kind), probs=probs, num_out_tokens=8
    )
    want = pairs(MAP)
    assert torch.equal(rows.cpu(), tokens.cpu()[[t for _, t in want]])
    by_token = sorted(range(8), key=lambda i: (want[i][1], i))
    assert index.tolist() == by_token and index.dtype == torch.int32
    assert moved.tolist() == ([probs[t, e].item() for e, t in want] if with_probs else [])


@pytest.mark.parametrize("count,capacity", [(3, 1), (6, 2), (8, 2), (12, 4)])
@pytest.mark.parametrize("with_probs", [False, True])
def test_padded(count, capacity, with_probs):
    tokens, probs = make(4, 5), make(4, 3) if with_probs else None
    rows, moved, index = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens, npu(MAP, torch.bool), probs=probs, num_out_tokens=count, drop_and_pad=True
    )
    want = padded(MAP, capacity)
    assert index.tolist() == [t for _, t in want]
    assert torch.equal(rows.cpu(), tokens.cpu()[[t for _, t in want]])
    assert moved.tolist() == ([probs[t, e].item() for e, t in want] if with_probs else [])


def test_one_expert_a_token_by_default():
    tokens = make(3, 5)
    rows, _, index = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens, npu([[0, 1], [1, 0], [0, 1]], torch.bool)
    )
    assert torch.equal(rows.cpu(), tokens.cpu()[[1, 0, 2]]) and index.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    "options", [{"num_out_tokens": 8}, {"num_out_tokens": 6, "drop_and_pad": True}]
)
def test_gradients(options):
    tokens = make(4, 3, dtype=torch.float64, requires_grad=True)
    probs = make(4, 3, dtype=torch.float64, requires_grad=True)
    chosen = npu(MAP, torch.bool)
    gradcheck(
        lambda t, p: torch_npu.npu_moe_token_permute_with_routing_map(
            t, chosen, probs=p, **options
        )[:2],
        tokens,
        probs,
    )
    gradcheck(
        lambda t: torch_npu.npu_moe_token_permute_with_routing_map(t, chosen, **options)[0], tokens
    )


def test_uneven_map():
    with pytest.raises(
        RuntimeError, match="'routing_map' must be of 2 experts a token, but received 1 at index 1"
    ):
        torch_npu.npu_moe_token_permute_with_routing_map(
            make(2, 3), npu([[1, 1], [0, 1]], torch.bool), num_out_tokens=4
        )


def test_too_many_rows():
    with pytest.raises(
        RuntimeError, match=r"'num_out_tokens' must be within \[0, 4\], but received 5"
    ):
        torch_npu.npu_moe_token_permute_with_routing_map(
            make(2, 3), npu([[1, 1], [1, 1]], torch.bool), num_out_tokens=5
        )


def test_bad_probs_and_map():
    with pytest.raises(RuntimeError, match=r"'probs' must be of shape \(2, 2\).*\(2, 3\)"):
        torch_npu.npu_moe_token_permute_with_routing_map(
            make(2, 3), npu([[1, 1], [1, 1]], torch.bool), probs=make(2, 3), num_out_tokens=4
        )
    with pytest.raises(
        RuntimeError, match="'routing_map' must be of dtype torch.bool or torch.int8"
    ):
        torch_npu.npu_moe_token_permute_with_routing_map(make(2, 3), npu([[1], [1]]))


def test_dtype_of_probs():
    """That of the tokens, or float32 beside bfloat16."""
    chosen = torch.ones(3, 2, dtype=torch.bool).npu()
    weights = torch.rand(3, 2).npu()
    call = torch_npu.npu_moe_token_permute_with_routing_map
    rows = torch.rand(3, 4).npu()
    found = call(rows.bfloat16(), chosen, probs=weights, num_out_tokens=6)[1]
    assert torch.equal(found.cpu(), weights.cpu().t().flatten())
    with pytest.raises(RuntimeError, match="'probs' must be of dtype torch.float16, but received"):
        call(rows.half(), chosen, probs=weights, num_out_tokens=6)
