"""npu_moe_gating_top_k against a loop over rows, groups and experts."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.moe.loops import largest, npu
from tests.ops.support import assert_accurate, gradcheck, make


def scores_of(x, norm_type):
    return x.sigmoid() if norm_type == 1 else torch.softmax(x, -1)


def chosen(x, k, bias=None, k_group=1, group_count=1, group_select_mode=0, norm_type=0):
    """The experts of each row by a loop, from the float32 scores that the operator compares."""
    scores = scores_of(x.cpu().float(), norm_type)
    found = []
    for row in scores if bias is None else scores + bias.cpu().float():
        values = row.tolist()
        size = len(values) // group_count
        groups = [values[g * size : (g + 1) * size] for g in range(group_count)]
        if group_select_mode == 1:
            merit = [float(sum(torch.tensor(sorted(g)[-2:]))) for g in groups]
        else:
            merit = [max(g) for g in groups]
        best = set(largest(merit, k_group)) if group_count > 1 else {0}
        masked = [v if i // size in best else float("-inf") for i, v in enumerate(values)]
        found.append(largest(masked, k))
    return torch.tensor(found).reshape(x.size(0), k)


def weights(x, experts, norm_type, factor, eps, renorm=False):
    y = scores_of(x, norm_type).gather(1, experts)
    if norm_type == 1 or renorm:
        y = y / (y.sum(-1, keepdim=True) + eps)
    return y * factor


CASES = [
    {"k": 6, "k_group": 4, "group_count": 8, "group_select_mode": 1, "norm_type": 1},
    {"k": 3, "k_group": 2, "group_count": 4, "group_select_mode": 0, "norm_type": 0},
    {"k": 8, "k_group": 1, "group_count": 8, "group_select_mode": 1, "norm_type": 0},
    {"k": 3, "k_group": 5, "group_count": 32, "group_select_mode": 1, "norm_type": 1},
    {"k": 3, "k_group": 5, "group_count": 64, "group_select_mode": 0, "norm_type": 1},
    {"k": 64, "norm_type": 1},
    {"k": 1, "norm_type": 0},
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_choice_and_weights(dtype, case, biased):
    x = make(5, 64, dtype=dtype, low=-2, high=2)
    bias = make(64, dtype=dtype, low=-2, high=2) if biased else None
    y, expert, norm = torch_npu.npu_moe_gating_top_k(
        x, bias=bias, routed_scaling_factor=2.5, eps=1e-3, out_flag=True, **case
    )
    want = chosen(x, bias=bias, **case)
    assert y.dtype == dtype and expert.dtype == torch.int32 and norm.dtype == torch.float32
    assert torch.equal(expert.cpu().long(), want)
    exact = weights(x.cpu().double(), want, case["norm_type"], 2.5, 1e-3)
    assert_accurate(y, exact, exact.to(dtype))
    scores = scores_of(x.cpu().double(), case["norm_type"])
    assert_accurate(norm, scores, scores.float())


def test_ties_between_groups_and_experts():
    x = npu([[0.0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]], torch.float32)
    for mode in (0, 1):
        _, expert, _ = torch_npu.npu_moe_gating_top_k(
            x, 5, k_group=2, group_count=3, group_select_mode=mode, norm_type=1
        )
        assert expert.tolist() == [[1, 2, 5, 6, 0]]


def test_third_result_without_out_flag():
    _, _, norm = torch_npu.npu_moe_gating_top_k(make(3, 8), 2)
    assert norm.shape == (3, 8) and norm.dtype == torch.float32 and not norm.any()


@pytest.mark.parametrize("types", [(torch.int32, torch.int64), (torch.int64, torch.int32)])
def test_experts_by_key(types):
    x = make(4, 8)
    ids, table = npu([2, 0, 2, 1], types[0]), npu([[7, 0, 3], [1, 2, 1], [5, 4, 6]], types[1])
    y, expert, _ = torch_npu.npu_moe_gating_top_k(x, 3, input_ids=ids, tid2eid=table, norm_type=1)
    want = table.cpu().long()[ids.cpu().long()]
    assert torch.equal(expert.cpu().long(), want)
    exact = weights(x.cpu().double(), want, 1, 1.0, 1e-20)
    assert_accurate(y, exact, exact.float())


def test_no_rows_and_non_contiguous():
    y, expert, norm = torch_npu.npu_moe_gating_top_k(make(0, 8), 2, norm_type=1)
    assert y.shape == expert.shape == (0, 2) and norm.shape == (0, 8)
    x, bias = make(8, 4).t(), make(16)[::2]
    got = torch_npu.npu_moe_gating_top_k(x, 3, bias=bias, norm_type=1)
    want = torch_npu.npu_moe_gating_top_k(x.contiguous(), 3, bias=bias.contiguous(), norm_type=1)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_root_of_softplus_on_950():
    x = make(4, 8, low=-4, high=4)
    with on("A5"):
        y, expert, norm = torch_npu.npu_moe_gating_top_k(x, 3, norm_type=2, out_flag=True)
    scores = torch.log1p(torch.exp(x.cpu().double())).sqrt()
    chosen = scores.sort(dim=-1, descending=True, stable=True).indices[:, :3]
    picked = scores.gather(1, chosen)
    exact = picked / picked.sum(-1, keepdim=True)
    assert torch.equal(expert.cpu().long(), chosen)
    assert_accurate(norm, scores, scores.float())
    assert_accurate(y, exact, exact.float())


def test_renorm_of_softmax():
    x = make(4, 8)
    y, expert, _ = torch_npu.npu_moe_gating_top_k(x, 3, renorm=1)
    exact = weights(x.cpu().double(), expert.cpu().long(), 0, 1.0, 1e-20, renorm=True)
    assert_accurate(y, exact, exact.float())


@pytest.mark.parametrize("norm_type,renorm", [(0, 0), (0, 1), (1, 0)])
def test_gradients(norm_type, renorm):
    x = make(3, 12, dtype=torch.float64, low=-2, high=2, requires_grad=True)
    bias = make(12, dtype=torch.float64)
    gradcheck(
        lambda t: torch_npu.npu_moe_gating_top_k(
            t, 4, bias=bias, k_group=2, group_count=3, norm_type=norm_type, renorm=renorm,
            routed_scaling_factor=1.5, eps=1e-2,
        )[0],
        x,
    )  # fmt: skip


def test_named_backward():
    x = make(6, 16, low=-2, high=2).cpu().double().requires_grad_()
    expert = npu([[3, 1, 8]] * 6)
    exact = weights(x, expert.cpu().long(), 1, 2.0, 1e-20)
    grad = make(6, 3).cpu()
    exact.backward(grad.double())
    scores = x.detach().sigmoid().float()
    out = torch_npu.npu_moe_gating_top_k_backward(
        npu(scores), npu(grad), expert, norm_type=1, routed_scaling_factor=2.0
    )
    assert out.dtype == torch.float32
    assert_accurate(out, x.grad, x.grad.float())


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "options,message",
    [
        ({"k": 0}, r"'k' must be within \[1, 8\], but received 0"),
        ({"k": 5, "k_group": 1, "group_count": 2}, r"'k' must be within \[1, 4\], but received 5"),
        ({"k_group": 3, "group_count": 2}, r"'k_group' must be within \[1, 2\], but received 3"),
        ({"group_count": 3}, "'group_count' must be a divisor of the 8 experts.*received 3"),
        ({"group_count": 8, "group_select_mode": 1}, "'group_count' must be such that a group has two"),
        ({"group_select_mode": 2}, "'group_select_mode' must be 0 or 1, but received 2"),
        ({"norm_type": 2}, "'norm_type' must be 0 or 1, but received 2"),
        ({"renorm": 2}, "'renorm' must be 0 or 1, but received 2"),
        ({"norm_type": 2}, "'norm_type' must be 0 or 1, but received 2"),
        ({"bias": "short"}, r"'bias' must be of shape \(8\).*\(7,\)"),
        ({"bias": "half"}, "'bias' must be of the dtype of 'x'.*float16"),
        ({"input_ids": [0, 1]}, "'tid2eid' must be given together with 'input_ids'"),
        ({"input_ids": [0, 3], "tid2eid": [[0], [1]]}, r"'input_ids' must be in \[0, 2\), but received 3 at index 1"),
        ({"input_ids": [0, 1], "tid2eid": [[0], [-1]]}, r"'tid2eid' must be in \[0, 8\), but received -1"),
    ],
)  # fmt: skip
def test_bad_arguments(options, message):
    tensors = {"short": make(7), "half": make(8, dtype=torch.float16)}
    made = {n: npu(v) if isinstance(v, list) else tensors.get(v, v) for n, v in options.items()}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_gating_top_k(make(2, 8), made.pop("k", 1), **made)


def test_too_many_experts():
    with pytest.raises(
        RuntimeError, match="'x' must be of at most 2048 experts, but received 2050"
    ):
        torch_npu.npu_moe_gating_top_k(make(1, 2050), 1)
    with pytest.raises(RuntimeError, match="'group_count' must be such that groups padded to 32"):
        torch_npu.npu_moe_gating_top_k(make(1, 390), 1, group_count=130)
