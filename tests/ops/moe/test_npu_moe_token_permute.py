"""npu_moe_token_permute and its gradients against a loop over the pairs."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import by_expert, npu
from tests.ops.support import assert_accurate, gradcheck, make


def flat_of(indices):
    return [e for row in indices for e in row] if isinstance(indices[0], list) else indices


def reference(tokens, indices, kept):
    flat = flat_of(indices)
    top_k = len(indices[0]) if isinstance(indices[0], list) else 1
    order = by_expert(flat)
    went = [order.index(p) for p in range(len(flat))]
    return tokens[[p // top_k for p in order[:kept]]], went


INDICES = [[1, 2], [0, 1], [3, 3], [1, 0], [2, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("out,kept", [(None, 10), (0, 10), (7, 7), (99, 10), (-3, 7), (-10, 0)])
def test_rows(dtype, kind, out, kept):
    tokens = make(5, 6, dtype=dtype, low=-9, high=9)
    rows, went = torch_npu.npu_moe_token_permute(tokens, npu(INDICES, kind), out)
    want = reference(tokens.cpu(), INDICES, kept)
    assert torch.equal(rows.cpu(), want[0].reshape(-1, 6)) and rows.dtype == dtype
    assert went.tolist() == want[1] and went.dtype == torch.int32


@pytest.mark.parametrize(
    "indices", [[2, 0, 1, 0, 2], [4, 4, 4, 4, 4], [16777214, 3, 16777214, 0, 3]]
)
def test_one_expert_a_token(indices):
    tokens = make(5, 6)
    rows, went = torch_npu.npu_moe_token_permute(tokens, npu(indices))
    want = reference(tokens.cpu(), indices, 5)
    assert torch.equal(rows.cpu(), want[0]) and went.tolist() == want[1]


def test_no_tokens_and_non_contiguous():
    rows, went = torch_npu.npu_moe_token_permute(
        make(0, 6), npu(torch.zeros(0, 2, dtype=torch.int32))
    )
    assert rows.shape == (0, 6) and went.shape == (0,)
    tokens, indices = make(6, 5).t(), npu(torch.tensor(INDICES).t().contiguous()).t()
    rows, _ = torch_npu.npu_moe_token_permute(tokens, indices)
    assert torch.equal(rows.cpu(), reference(tokens.cpu(), INDICES, 10)[0])


@pytest.mark.parametrize("out", [None, 6])
@pytest.mark.parametrize("indices", [INDICES, [2, 0, 1, 0, 2]])
def test_gradients(out, indices):
    tokens = make(5, 3, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda t: torch_npu.npu_moe_token_permute(t, npu(indices), out)[0], tokens)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_named_gradients(dtype):
    tokens, grad, indices = make(5, 6, dtype=dtype), make(7, 6, dtype=dtype), npu(INDICES)
    _, went = torch_npu.npu_moe_token_permute(tokens, indices, 7)
    exact, plain = torch.zeros(5, 6, dtype=torch.float64), torch.zeros(5, 6, dtype=dtype)
    for pair, place in enumerate(went.tolist()):
        if place < 7:
            exact[pair // 2] += grad.cpu().double()[place]
            plain[pair // 2] += grad.cpu()[place]
    first = torch_npu.npu_moe_token_permute_grad(tokens, grad, indices, went)
    second = torch_npu.npu_moe_token_permute_grad_v2(grad, went, 5, torch.float32, 2)
    assert first.dtype == dtype and second.dtype == torch.float32
    assert_accurate(first, exact, plain)
    assert_accurate(second, exact, exact.float())


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"indices": [[0, 1]]}, r"'indices' must be of shape \(2, \*\).*\(1, 2\)"),
        ({"indices": [[0, -1], [1, 1]]}, r"'indices' must be in \[0, 16777215\), but received -1 at index \(0, 1\)"),
        ({"num_out_tokens": -5}, "'num_out_tokens' must be at least -4, but received -5"),
    ],
)  # fmt: skip
def test_bad_arguments(changes, message):
    given = {"tokens": make(2, 3), "indices": [[0, 1], [1, 1]]} | changes
    given["indices"] = npu(given["indices"])
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_token_permute(**given)


def test_padded_mode_is_not_supported():
    with pytest.raises(NotImplementedError, match="'padded_mode' must be left at False"):
        torch_npu.npu_moe_token_permute(make(2, 3), npu([0, 1]), padded_mode=True)


def test_bad_types():
    with pytest.raises(RuntimeError, match="'indices' must be of dtype torch.int32 or torch.int64"):
        torch_npu.npu_moe_token_permute(make(2, 3), make(2, 2))
    with pytest.raises(RuntimeError, match="'indices' must be of at most 512 experts a token"):
        torch_npu.npu_moe_token_permute(make(2, 3), make(2, 513, dtype=torch.int32, low=0, high=9))
    with pytest.raises(RuntimeError, match=r"'sorted_indices' must be of shape \(4\).*\(3,\)"):
        torch_npu.npu_moe_token_permute_grad_v2(make(4, 3), npu([0, 1, 2]), 2, torch.float32, 2)
