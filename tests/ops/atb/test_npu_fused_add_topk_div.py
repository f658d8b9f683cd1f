"""npu_fused_add_topk_div against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make

OPTIONS = {"group_num": 4, "group_topk": 2, "n": 2, "k": 3, "scale": 2.5}


def expected(x, bias, group_num, group_topk, n, k, scale, is_norm=True):
    x, bias = x.cpu().double(), bias.cpu().double()
    size, weights, chosen = x.shape[1] // group_num, [], []
    for row in x.sigmoid():
        biased = (row + bias).tolist()
        worth = [sum(sorted(biased[g * size : (g + 1) * size])[-n:]) for g in range(group_num)]
        kept = sorted(range(group_num), key=lambda g: (-worth[g], g))[:group_topk]
        masked = [v if i // size in kept else 0.0 for i, v in enumerate(biased)]
        best = sorted(range(len(masked)), key=lambda i: (-masked[i], i))[:k]
        picked = row[best]
        weights.append(picked / picked.sum() * scale if is_norm else picked)
        chosen.append(best)
    return torch.stack(weights), torch.tensor(chosen, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_norm", [True, False])
def test_choice_and_weights(dtype, is_norm):
    x, bias = make(5, 16, dtype=dtype, low=-3, high=3), make(16, dtype=dtype, seed=1)
    y, indices = torch_npu.atb.npu_fused_add_topk_div(x, bias, **OPTIONS, is_norm=is_norm)
    right, chosen = expected(x, bias, **OPTIONS, is_norm=is_norm)
    assert torch.equal(indices.cpu(), chosen)
    torch.testing.assert_close(y.cpu().double(), right, rtol=1e-5, atol=1e-6)
    assert (y.dtype, indices.dtype) == (torch.float32, torch.int32)


def test_logical_experts():
    x, bias = make(7, 16), make(16, seed=1)
    count = make(16, dtype=torch.int32, low=0, high=4)
    table = make(16, 4, dtype=torch.int32, low=0, high=99)
    plain = torch_npu.atb.npu_fused_add_topk_div(x, bias, **OPTIONS)[1].tolist()
    found = torch_npu.atb.npu_fused_add_topk_div(
        x, bias, mapping_num=count, mapping_table=table, enable_expert_mapping=True, **OPTIONS
    )[1].tolist()
    for token, row in enumerate(plain):
        for place, expert in enumerate(row):
            column = token % max(1, count[expert].item())
            assert found[token][place] == table[expert, column].item()


def test_out_form():
    x, bias = make(5, 16), make(16, seed=1)
    y, indices = torch.zeros(5, 3).npu(), torch.zeros(5, 3, dtype=torch.int32).npu()
    torch_npu.atb.npu_fused_add_topk_div(x, bias, **OPTIONS, y=y, indices=indices)
    right = torch_npu.atb.npu_fused_add_topk_div(x, bias, **OPTIONS)
    assert torch.equal(y.cpu(), right[0].cpu()) and torch.equal(indices.cpu(), right[1].cpu())


@pytest.mark.parametrize(
    "change,message",
    [
        ({"group_num": 3}, "'group_num' must be a divisor of 16 experts"),
        ({"group_topk": 5}, "'group_topk' must be from 1 to 4"),
        ({"n": 5}, "'n' must be from 1 to 4"),
        ({"k": 17}, "'k' must be from 1 to 16"),
        ({"activation_type": "relu"}, "'activation_type' must be"),
        ({"enable_expert_mapping": True}, "'mapping_num' must be given"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"npu_fused_add_topk_div: argument {message}"):
        torch_npu.atb.npu_fused_add_topk_div(make(5, 16), make(16), **(OPTIONS | change))


def test_many_experts_need_eight_groups():
    with pytest.raises(RuntimeError, match="'group_num' must be 8 with more than 32 experts"):
        torch_npu.atb.npu_fused_add_topk_div(make(2, 64), make(64), group_num=4)
    y, _ = torch_npu.atb.npu_fused_add_topk_div(make(2, 32), make(32), group_num=4)
    torch.testing.assert_close(y.cpu(), torch.ones(2, 1))
