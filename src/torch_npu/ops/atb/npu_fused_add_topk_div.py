"""npu_fused_add_topk_div: the gate of a mixture of experts with groups, a bias and redundant experts."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb._npu_group_topk import dropped

_ARGUMENTS = (
    "Tensor x, Tensor add_num, *, Tensor? mapping_num=None, Tensor? mapping_table=None, "
    "str? activation_type=None, int group_num=1, int group_topk=1, int n=1, int k=1, "
    "bool is_norm=True, float scale=1, bool enable_expert_mapping=False"
)


@npu_op(
    f"atb::npu_fused_add_topk_div({_ARGUMENTS}) -> (Tensor, Tensor)",
    out=f"npu_fused_add_topk_div.out({_ARGUMENTS}, Tensor(a!) y, Tensor(b!) indices) "
    "-> (Tensor(a!), Tensor(b!))",
    ge="FusedAddTopkDiv",
)
def npu_fused_add_topk_div(
    x,
    add_num,
    mapping_num,
    mapping_table,
    group_num,
    group_topk,
    n,
    k,
    is_norm,
    scale,
    enable_expert_mapping,
):
    r"""Chooses `k` experts for each token by biased scores and weighs them by the plain ones.

    $$ s = \sigma(x), \quad I = \mathrm{topk}_k(\mathrm{best groups}(s + add\_num)), \quad
       y = scale \cdot \frac{s_I}{\sum s_I} $$

    A group's worth is the sum of its `n` largest biased scores; the experts of all but the best `group_topk` groups
    count as 0. Without `is_norm`, y is $s_I$. With `enable_expert_mapping`, expert e of token t becomes
    `mapping_table[e, t % mapping_num[e]]`.

    Args:
        x: (tokens, experts), float16, bfloat16 or float32.
        add_num: (experts,), the dtype of `x`.
        mapping_num: (experts,), int32: how many logical experts each has.
        mapping_table: (experts, c), int32, c at most 128: which they are.
        activation_type: 'activation_sigmoid' or None, which means the same.
        group_num: groups of consecutive experts, a divisor of their number.
        group_topk: groups that are kept.
        n: scores that make a group's worth.
        k: experts a token.
        is_norm: whether the weights are normalized and scaled.
        scale: factor of the normalized weights.
        enable_expert_mapping: whether logical experts are returned.

    Returns:
        y (tokens, k), float32, and indices (tokens, k), int32.
    """
    score = x.float().sigmoid()
    biased = (score + add_num.float()).masked_fill(
        dropped(score + add_num.float(), group_topk, group_num, n), 0
    )
    chosen = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, :k]
    y = score.gather(1, chosen)
    if is_norm:
        y = y / y.sum(-1, keepdim=True) * scale
    if enable_expert_mapping:
        token = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
        column = token.remainder(mapping_num[chosen].clamp(min=1))
        chosen = mapping_table[chosen, column]
    return y, chosen.int()


@npu_fused_add_topk_div.check
def _(
    x,
    add_num,
    mapping_num,
    mapping_table,
    activation_type,
    group_num,
    group_topk,
    n,
    k,
    enable_expert_mapping,
):
    rules.family("x", "A2", "A3")
    must.dtype("x", x, *rules.FLOATS, torch.float32)
    must.same_dtype("add_num", add_num, "x", x)
    must.ndim("x", x, 2)
    experts = x.shape[1]
    must.shape("add_num", add_num, (experts,))
    must.choice("activation_type", activation_type, ("activation_sigmoid", None))
    divides = group_num >= 1 and experts % group_num == 0
    must.hold(divides, "group_num", f"a divisor of {experts} experts", group_num)
    size = experts // group_num
    must.hold(size <= 32, "group_num", "such that a group has at most 32 experts", group_num)
    must.hold(
        experts <= 32 or group_num == 8, "group_num", "8 with more than 32 experts", group_num
    )
    must.hold(1 <= group_topk <= group_num, "group_topk", f"from 1 to {group_num}", group_topk)
    must.hold(1 <= n <= size, "n", f"from 1 to {size}, the experts of a group", n)
    must.hold(1 <= k <= experts, "k", f"from 1 to {experts}, the experts", k)
    if not enable_expert_mapping:
        return
    must.present("mapping_num", mapping_num, "with enable_expert_mapping")
    must.present("mapping_table", mapping_table, "with enable_expert_mapping")
    must.dtype("mapping_num", mapping_num, torch.int32)
    must.shape("mapping_num", mapping_num, (experts,))
    must.dtype("mapping_table", mapping_table, torch.int32)
    must.shape("mapping_table", mapping_table, (experts, None))
    columns = mapping_table.shape[1]
    must.hold(columns <= 128, "mapping_table", "of at most 128 columns", columns)
    if must.has_data(mapping_num) and experts:
        most = int(mapping_num.max())
        expected = f"at most {columns}, the columns of 'mapping_table'"
        must.hold(most <= columns, "mapping_num", expected, most)


npu_fused_add_topk_div.samples = [
    Sample(
        lambda make: (make(5, 16, dtype=torch.float16), make(16, dtype=torch.float16)),
        {"group_num": 4, "group_topk": 2, "n": 2, "k": 3, "scale": 2.5},
    ),
    Sample(
        lambda make: (make(5, 64), make(64, seed=3)),
        lambda make: {
            "mapping_num": make(64, dtype=torch.int32, low=1, high=4),
            "mapping_table": make(64, 4, dtype=torch.int32, low=0, high=100),
            "activation_type": "activation_sigmoid",
            "group_num": 8,
            "group_topk": 4,
            "n": 2,
            "k": 8,
            "is_norm": False,
            "enable_expert_mapping": True,
        },
    ),
]
