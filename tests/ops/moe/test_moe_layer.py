"""A whole mixture-of-experts layer on the device against a dense loop over experts in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.moe.loops import largest
from tests.ops.support import assert_accurate, make

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 12, 16, 24, 6, 3


def layer(dtype, seed=0):
    x = make(TOKENS, HIDDEN, dtype=dtype, seed=seed)
    logits = make(TOKENS, EXPERTS, dtype=dtype, low=-2, high=2, seed=seed + 1)
    up = make(EXPERTS, HIDDEN, 2 * INNER, dtype=dtype, low=-0.5, high=0.5, seed=seed + 2)
    down = make(EXPERTS, INNER, HIDDEN, dtype=dtype, low=-0.5, high=0.5, seed=seed + 3)
    return x, logits, up, down


def expert(x, up, down, e):
    """What one expert makes of rows: up, gate, down."""
    left, right = (x @ up[e]).chunk(2, -1)
    return (torch.nn.functional.silu(left) * right) @ down[e]


def choose(logits, sigmoid):
    """The experts of each token and their weights, by a loop, in the precision of the logits."""
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    chosen = torch.tensor([largest(row, TOP_K) for row in scores.float().tolist()])
    weights = scores.gather(1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True) if sigmoid else weights


def dense(x, chosen, weights, up, down, keep=lambda token, e: True):
    """Each expert over each of its tokens, one by one."""
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        for token in range(len(x)):
            for j in range(TOP_K):
                if chosen[token, j] == e and keep(token, e):
                    out[token] += weights[token, j] * expert(x[token : token + 1], up, down, e)[0]
    return out


def both(x, logits, up, down, sigmoid, keep=lambda token, e: True):
    """The dense layer in fp64, and in the tested dtype, with the same experts."""
    host = [t.cpu() for t in (x, up, down)]
    chosen, _ = choose(logits.cpu().float(), sigmoid)
    results = []
    for dtype in (torch.float64, x.dtype):
        scores = logits.cpu().to(dtype)
        scores = scores.sigmoid() if sigmoid else scores.softmax(-1)
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) if sigmoid else weights
        values = [t.to(dtype) for t in host]
        results.append(dense(values[0], chosen, weights, *values[1:], keep))
    return results


def grouped(rows, weight, group_list, kind):
    return torch_npu.npu_grouped_matmul(
        [rows], [weight], group_list=group_list, split_item=3, group_type=0, group_list_type=kind
    )[0]


def experts_on_device(rows, up, down, group_list, kind):
    hidden = torch_npu.npu_swiglu(grouped(rows, up, group_list, kind))
    return grouped(hidden, down, group_list, kind)


DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_generation(dtype):
    x, logits, up, down = layer(dtype)
    weights, chosen, rows = torch_npu.npu_moe_gating_top_k_softmax(logits, k=TOP_K)
    expanded, went, experts = torch_npu.npu_moe_init_routing(x, rows, chosen, TOKENS)
    ends = torch_npu.npu_moe_compute_expert_tokens(experts, EXPERTS).long()
    made = experts_on_device(expanded, up, down, ends, 0)
    out = torch_npu.npu_moe_finalize_routing(made, None, None, None, weights, went, chosen)
    assert_accurate(out, *both(x, logits, up, down, sigmoid=False))


@pytest.mark.family("A2")  # counts of 310P are int32, which its grouped products do not take
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [0, 1])
def test_second_generation(dtype, kind):
    x, logits, up, down = layer(dtype, seed=10)
    weights, chosen, _ = torch_npu.npu_moe_gating_top_k(logits, TOP_K, norm_type=1)
    expanded, went, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x, chosen, expert_num=EXPERTS, expert_tokens_num_type=kind, expert_tokens_num_flag=True
    )
    made = experts_on_device(expanded, up, down, counts, kind)
    out = torch_npu.npu_moe_finalize_routing(
        made, None, None, None, weights, went, chosen, drop_pad_mode=2
    )
    assert_accurate(out, *both(x, logits, up, down, sigmoid=True))


@pytest.mark.parametrize("capacity", [2, 5])
def test_capacity_drops_the_last_tokens(capacity):
    x, logits, up, down = layer(torch.float32, seed=20)
    weights, chosen, _ = torch_npu.npu_moe_gating_top_k(logits, TOP_K, norm_type=1)
    expanded, went, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x, chosen, expert_num=EXPERTS, drop_pad_mode=1, expert_capacity=capacity,
        expert_tokens_num_type=1, expert_tokens_num_flag=True,
    )  # fmt: skip
    assert counts.max() > capacity
    each = torch.full_like(counts, capacity)
    made = experts_on_device(expanded.flatten(0, 1), up, down, each, 1)
    out = torch_npu.npu_moe_finalize_routing(
        made.unflatten(0, (EXPERTS, capacity)),
        None,
        None,
        None,
        weights,
        went,
        chosen,
        drop_pad_mode=3,
    )
    host = chosen.cpu()
    kept = {
        e: [t for t in range(TOKENS) if e in host[t].tolist()][:capacity] for e in range(EXPERTS)
    }
    assert_accurate(out, *both(x, logits, up, down, True, lambda token, e: token in kept[e]))


def test_experts_on_two_ranks():
    x, logits, up, down = layer(torch.float32, seed=30)
    weights, chosen, _ = torch_npu.npu_moe_gating_top_k(logits, TOP_K, norm_type=1)
    out = None
    for start, end in ((0, 2), (2, EXPERTS)):
        expanded, went, counts, _ = torch_npu.npu_moe_init_routing_v2(
            x, chosen, expert_num=EXPERTS, active_expert_range=[start, end],
            expert_tokens_num_type=1, expert_tokens_num_flag=True,
        )  # fmt: skip
        mine = expanded[: int(counts.sum())]
        made = experts_on_device(mine, up[start:end], down[start:end], counts, 1)
        out = torch_npu.npu_moe_finalize_routing(
            made.unsqueeze(1), out, None, None, weights, went, None, drop_pad_mode=3
        )
    assert_accurate(out, *both(x, logits, up, down, sigmoid=True))


def test_all_tokens_to_the_same_experts():
    with on("A2"):  # 310P counts cumulatively
        all_tokens_to_the_same_experts()


def all_tokens_to_the_same_experts():
    x, _, up, down = layer(torch.float32, seed=40)
    logits = make(1, EXPERTS).expand(TOKENS, EXPERTS)
    weights, chosen, _ = torch_npu.npu_moe_gating_top_k(logits, TOP_K, norm_type=1)
    expanded, went, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x, chosen, expert_num=EXPERTS, expert_tokens_num_type=1, expert_tokens_num_flag=True
    )
    assert sorted(counts.tolist()) == [0, 0, 0, TOKENS, TOKENS, TOKENS]
    made = experts_on_device(expanded, up, down, counts, 1)
    out = torch_npu.npu_moe_finalize_routing(
        made, None, None, None, weights, went, chosen, drop_pad_mode=2
    )
    assert_accurate(out, *both(x, logits, up, down, sigmoid=True))


def quantized(weight):
    """int8 columns and their scales."""
    scale = weight.abs().amax(1) / 127
    return (weight / scale.unsqueeze(1)).round().to(torch.int8), scale


def test_int8_stays_within_the_quantization_step():
    x, logits, up, down = layer(torch.bfloat16, seed=50)
    weights, chosen, _ = torch_npu.npu_moe_gating_top_k(logits, TOP_K, norm_type=1)
    rows, went, counts, scales = torch_npu.npu_moe_init_routing_v2(
        x,
        chosen,
        expert_num=EXPERTS,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=1,
    )

    def product(rows, scales, weight):
        whole, scale = quantized(weight.float())
        return torch_npu.npu_grouped_matmul(
            [rows], [whole], scale=[scale.bfloat16()], per_token_scale=[scales], group_list=counts,
            split_item=3, group_type=0, group_list_type=1, output_dtype=torch.bfloat16,
        )[0]  # fmt: skip

    hidden = torch_npu.npu_swiglu(product(rows, scales, up))
    made = product(*torch_npu.npu_dynamic_quant(hidden), down)
    out = torch_npu.npu_moe_finalize_routing(
        made, None, None, None, weights, went, chosen, drop_pad_mode=2
    )
    exact, _ = both(x, logits, up, down, sigmoid=True)
    step = 1 / 127 + 2**-8  # of int8 for rows and weights, and of bfloat16
    error = (out.cpu().double() - exact).abs().max()
    assert 0 < error < 4 * step * exact.abs().max()


def test_gradients_of_the_training_path():
    x, logits, up, down = (t.requires_grad_() for t in layer(torch.float32, seed=60))
    weights, chosen, _ = torch_npu.npu_moe_gating_top_k(logits, TOP_K, norm_type=1)
    rows, places = torch_npu.npu_moe_token_permute(x, chosen)
    counts = torch.bincount(chosen.reshape(-1).cpu(), minlength=EXPERTS).tolist()
    made = [
        torch_npu.npu_swiglu(part @ up[e]) @ down[e] for e, part in enumerate(rows.split(counts))
    ]
    out = torch_npu.npu_moe_token_unpermute(torch.cat(made), places, weights)
    seed = make(TOKENS, HIDDEN)
    out.backward(seed)

    def plain(dtype):
        given = [t.detach().cpu().to(dtype).requires_grad_() for t in (x, logits, up, down)]
        picked, probs = choose(given[1], sigmoid=True)
        dense(given[0], picked, probs, *given[2:]).backward(seed.cpu().to(dtype))
        return [t.grad for t in given]

    for mine, exact, theirs in zip(
        (x, logits, up, down), plain(torch.float64), plain(torch.float32), strict=True
    ):
        assert_accurate(mine.grad, exact, theirs, slack=1e-5)
