"""npu_moe_init_routing against a loop over the pairs."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import by_expert, npu
from tests.ops.support import make


def by_column(tokens, top_k):
    return npu([[j * tokens + i for j in range(top_k)] for i in range(tokens)])


def reference(x, row_idx, experts, active):
    flat_rows = [r for row in row_idx for r in row]
    flat = [e for row in experts for e in row]
    order = by_expert(flat)
    source = [flat_rows[p] for p in order]
    went = [0] * len(flat)
    for place, pair in enumerate(source):
        went[pair] = place
    count = min(active, x.size(0)) * len(experts[0])
    picked = [s % x.size(0) for s in source[:count]]
    return x[picked], went, [flat[p] for p in order]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "tokens,top_k,active", [(6, 2, 6), (6, 3, 4), (5, 1, 99), (1, 4, 1), (7, 2, 0)]
)
def test_routing(dtype, tokens, top_k, active):
    x = make(tokens, 9, dtype=dtype)
    rows = by_column(tokens, top_k)
    experts = make(tokens, top_k, dtype=torch.int32, low=0, high=4)
    out, went, sorted_experts = torch_npu.npu_moe_init_routing(x, rows, experts, active)
    want = reference(x.cpu(), rows.tolist(), experts.tolist(), active)
    assert out.dtype == dtype and went.dtype == sorted_experts.dtype == torch.int32
    assert torch.equal(out.cpu(), want[0])
    assert went.tolist() == want[1] and sorted_experts.tolist() == want[2]


def test_all_tokens_to_one_expert_keep_their_order():
    x, rows = make(4, 3), by_column(4, 2)
    out, went, _ = torch_npu.npu_moe_init_routing(x, rows, npu([[5, 5]] * 4), 4)
    assert went.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert torch.equal(out.cpu(), x.cpu()[[0, 0, 1, 1, 2, 2, 3, 3]])


def test_after_the_gate_with_finished_rows():
    x, logits = make(5, 3), make(5, 4)
    finished = npu([False, True, False, False, True], torch.bool)
    _, experts, rows = torch_npu.npu_moe_gating_top_k_softmax(logits, finished, k=2)
    out, went, sorted_experts = torch_npu.npu_moe_init_routing(x, rows, experts, 5)
    want = reference(x.cpu(), rows.tolist(), experts.tolist(), 5)
    assert torch.equal(out.cpu(), want[0]) and went.tolist() == want[1]
    assert sorted_experts.tolist()[-4:] == [4, 4, 4, 4]


def test_no_tokens_and_non_contiguous():
    none = torch.zeros(0, 2, dtype=torch.int32)
    out, went, experts = torch_npu.npu_moe_init_routing(make(0, 3), npu(none), npu(none), 3)
    assert out.shape == (0, 3) and went.shape == experts.shape == (0,)
    x, experts = make(3, 4).t(), make(2, 4, dtype=torch.int32, low=0, high=3).t()
    got = torch_npu.npu_moe_init_routing(x, by_column(4, 2), experts, 4)
    want = reference(x.cpu(), by_column(4, 2).tolist(), experts.tolist(), 4)
    assert torch.equal(got[0].cpu(), want[0]) and got[1].tolist() == want[1]


@pytest.mark.parametrize(
    "name,value,message",
    [
        ("active_num", -1, "'active_num' must be at least 0, but received -1"),
        (
            "row_idx",
            [[0, 2], [1, 4]],
            r"'row_idx' must be in \[0, 4\), but received 4 at index \(1, 1\)",
        ),
        ("row_idx", [[0], [1]], r"'row_idx' must be of shape \(2, 2\).*\(2, 1\)"),
        ("expert_idx", [[0, 2]], r"'expert_idx' must be of shape \(2, \*\).*\(1, 2\)"),
    ],
)
def test_bad_arguments(name, value, message):
    given = {
        "x": make(2, 3), "row_idx": npu([[0, 2], [1, 3]]), "expert_idx": npu([[0, 1], [1, 1]]),
        "active_num": 2,
    }  # fmt: skip
    given[name] = npu(value) if isinstance(value, list) else value
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_init_routing(**given)


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="argument 'x' must be of dtype .*int8"):
        rows = npu([[0]])
        torch_npu.npu_moe_init_routing(make(1, 3, dtype=torch.int8, high=9), rows, rows, 1)
