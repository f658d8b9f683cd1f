"""npu_moe_gating_top_k and its backward: the K best experts, out of the best groups."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.moe._routing import FLOATS

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 0, 1, 2


def _scores(x: torch.Tensor, norm_type: int) -> torch.Tensor:
    if norm_type == SQRT_SOFTPLUS:
        return torch.nn.functional.softplus(wide(x), threshold=1e4).sqrt()
    return wide(x).sigmoid() if norm_type == SIGMOID else torch.softmax(wide(x), dim=-1)


def _best(values: torch.Tensor, k: int) -> torch.Tensor:
    """The indices of the k largest values, of equal ones the smaller index first."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :k]


def _renormalizes(norm_type: int, renorm: int) -> bool:
    return norm_type != SOFTMAX or renorm == 1


def _best_rows(values: torch.Tensor, k: int) -> torch.Tensor:
    """`_best` by the C++ kernel."""
    return torch.ops.softnpu.top_k_rows(values, k)


def _gate(
    best,
    x,
    k,
    bias=None,
    input_ids=None,
    tid2eid=None,
    k_group=1,
    group_count=1,
    group_select_mode=0,
    renorm=0,
    norm_type=0,
    out_flag=False,
    routed_scaling_factor=1.0,
    eps=1e-20,
):
    """The operator, with `best(values, k)` to choose the largest of each row."""
    scores = _scores(x, norm_type)
    if input_ids is not None:
        expert = tid2eid.index_select(0, input_ids.long()).long()
    else:
        choice = scores if bias is None else scores + wide(bias)
        if group_count > 1:
            groups = choice.reshape(x.size(0), group_count, -1)
            if group_select_mode == 1:
                merit = groups.topk(2, dim=-1).values.sum(-1)
            else:
                merit = groups.amax(-1)
            kept = torch.zeros_like(merit, dtype=torch.bool)
            kept = kept.scatter(1, best(merit, k_group), True)
            choice = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
        expert = best(choice, k)
    y = scores.gather(1, expert)
    if _renormalizes(norm_type, renorm):
        y = y / (y.sum(-1, keepdim=True) + eps)
    y = y * routed_scaling_factor
    norm = scores.clone() if out_flag else torch.zeros_like(scores)
    return y.to(x.dtype), expert.to(torch.int32), norm


@npu_op(
    "npu_moe_gating_top_k(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None, "
    "Tensor? tid2eid=None, int k_group=1, int group_count=1, int group_select_mode=0, "
    "int renorm=0, int norm_type=0, bool out_flag=False, float routed_scaling_factor=1.0, "
    "float eps=1e-20) -> (Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, False),
    ge="MoeGatingTopK",
)
def npu_moe_gating_top_k(
    x,
    k,
    bias,
    input_ids,
    tid2eid,
    k_group,
    group_count,
    group_select_mode,
    renorm,
    norm_type,
    out_flag,
    routed_scaling_factor,
    eps,
):
    r"""Scores the experts, keeps the best groups of them, and chooses the k best in those groups.

    $$ s = \begin{cases} \mathrm{softmax}(x) & norm\_type = 0 \\
       \sigma(x) & norm\_type = 1 \end{cases},
       \qquad E = \mathrm{topk}_{best\ groups}(s + bias) $$

    $$ y = factor \cdot \frac{s_E}{\sum s_E + \epsilon} \ (norm\_type = 1), \qquad
       y = factor \cdot s_E \ (norm\_type = 0) $$

    The bias only steers the choice, the weights come from s. Of equal values the first wins.
    With `input_ids` and `tid2eid` the experts are looked up instead: $E = tid2eid[input\_ids]$.

    Args:
        x: the gate's logits, (rows, experts), at most 2048 experts; float16, bfloat16 or float32.
        k: how many experts to choose, 1 to `experts / group_count * k_group`.
        bias: added for the choice, (experts), the dtype of `x`.
        input_ids: the key of each row, (rows), int32 or int64; only together with `tid2eid`.
        tid2eid: the experts of each key, (keys, k), int32 or int64.
        k_group: how many groups to keep, 1 to `group_count`.
        group_count: into how many equal groups the experts fall, of two or more for group_select_mode 1.
            Where some groups are left out, a group's size rounded up to 32, times the count, is at
            most 2048.
        group_select_mode: a group's score, 0 its largest value, 1 the sum of its two largest.
        renorm: 1 divides the weights by their sum where norm_type is 0 too; 0 does not.
        norm_type: 0 softmax, 1 sigmoid, and on Ascend950 2, the root of softplus.
        out_flag: whether the third result is filled.
        routed_scaling_factor: multiplies the weights.
        eps: keeps the division of norm_type 1 finite.

    Returns:
        The weights (rows, k) in the dtype of `x`, the experts (rows, k) in int32, and s in float32
        (rows, experts): zeros unless `out_flag`.

    Differs from upstream:
        The gradient does not need `out_flag`, and exists for softmax too.
    """
    return _gate(
        _best, x, k, bias, input_ids, tid2eid, k_group, group_count, group_select_mode, renorm,
        norm_type, out_flag, routed_scaling_factor, eps,
    )  # fmt: skip


@npu_moe_gating_top_k.check
def _(x, k, bias, input_ids, tid2eid, k_group, group_count, group_select_mode, renorm, norm_type):
    must.dtype("x", x, *FLOATS)
    must.ndim("x", x, 2)
    experts = x.size(1)
    must.hold(experts <= 2048, "x", "of at most 2048 experts", experts)
    must.choice("group_select_mode", group_select_mode, (0, 1))
    newest = (SQRT_SOFTPLUS,) if chips.current().family == "A5" else ()
    must.choice("norm_type", norm_type, (SOFTMAX, SIGMOID, *newest))
    must.choice("renorm", renorm, (0, 1))
    fits = group_count > 0 and experts % group_count == 0
    must.hold(fits, "group_count", f"a divisor of the {experts} experts", group_count)
    if group_select_mode == 1:
        pairs = experts // group_count > 1
        must.hold(pairs, "group_count", "such that a group has two experts to add", group_count)
    must.hold(0 < k_group <= group_count, "k_group", f"within [1, {group_count}]", k_group)
    if group_count not in (1, experts) and k_group != group_count:
        padded = -(-(experts // group_count) // 32) * 32 * group_count
        expected = "such that groups padded to 32 hold 2048"
        must.hold(padded <= 2048, "group_count", expected, group_count)
    most = experts // group_count * k_group
    must.hold(0 < k <= most, "k", f"within [1, {most}]", k)
    must.same_dtype("bias", bias, "x", x)
    must.shape("bias", bias, (experts,))
    if input_ids is not None or tid2eid is not None:
        must.present("input_ids", input_ids, "together with 'tid2eid'")
        must.present("tid2eid", tid2eid, "together with 'input_ids'")
        must.dtype("input_ids", input_ids, torch.int32, torch.int64)
        must.dtype("tid2eid", tid2eid, torch.int32, torch.int64)
        must.shape("input_ids", input_ids, (x.size(0),))
        must.shape("tid2eid", tid2eid, (None, k))
        inside("input_ids", input_ids, tid2eid.size(0))
        inside("tid2eid", tid2eid, experts)


@npu_moe_gating_top_k.native
def _(x, bias, **arguments):
    best = _best_rows if floats(x, bias) else _best
    return _gate(best, x=x, bias=bias, **arguments)


@npu_moe_gating_top_k.backward
def _(grad_y, *, x, renorm, norm_type, routed_scaling_factor, eps, result1):
    grad = torch.ops.npu.npu_moe_gating_top_k_backward(
        _scores(x, norm_type),
        grad_y,
        result1,
        renorm=renorm,
        norm_type=norm_type,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )
    return {"x": grad.to(x.dtype)}


npu_moe_gating_top_k.samples = [
    Sample(lambda make: (make(4, 16), 3), {"norm_type": 1, "out_flag": True}),
    Sample(
        lambda make: (make(4, 32), 4),
        lambda make: {
            "bias": make(32), "k_group": 2, "group_count": 4, "group_select_mode": 1,
            "norm_type": 1, "routed_scaling_factor": 2.5,
        },
        name="groups",
    ),
    Sample(lambda make: (make(3, 8, dtype=torch.bfloat16), 2), name="softmax"),
    Sample(
        lambda make: (make(4, 16), 3),
        lambda make: {
            "input_ids": make(4, dtype=torch.int64, low=0, high=5),
            "tid2eid": make(5, 3, dtype=torch.int32, low=0, high=16), "norm_type": 1,
        },
        name="experts by key",
    ),
]  # fmt: skip


@npu_op(
    "npu_moe_gating_top_k_backward(Tensor x_norm, Tensor grad_y, Tensor expertIdx, *, "
    "int renorm=0, int norm_type=0, float routed_scaling_factor=1.0, float eps=1e-20) -> Tensor"
)
def npu_moe_gating_top_k_backward(
    x_norm, grad_y, expertIdx, renorm, norm_type, routed_scaling_factor, eps
):
    r"""Gradient of `npu_moe_gating_top_k`, from the scores s and the chosen experts.

    $$ g = factor \cdot \frac{dy - \sum_p w_p\,dy_p}{\sum s_E + \epsilon},\
       w = \frac{s_E}{\sum s_E + \epsilon}
       \qquad dx = \begin{cases} s (1 - s)\, g & norm\_type = 1 \\
       s\,(g - \sum_j s_j g_j) & norm\_type = 0 \end{cases} $$

    with $g = factor \cdot dy$ where the forward did not divide, scattered to its experts.

    Args:
        x_norm: the scores s, (rows, experts), float32.
        grad_y: gradient of the weights, (rows, k); float16, bfloat16 or float32.
        expertIdx: the chosen experts, (rows, k), int32, in [0, experts).
        renorm: as in the forward.
        norm_type: as in the forward.
        routed_scaling_factor: as in the forward.
        eps: as in the forward.

    Returns:
        (rows, experts) with the dtype of `grad_y`.
    """
    scores, expert = wide(x_norm), expertIdx.long()
    g = wide(grad_y).to(scores.dtype) * routed_scaling_factor
    if _renormalizes(norm_type, renorm):
        chosen = scores.gather(1, expert)
        total = chosen.sum(-1, keepdim=True) + eps
        g = (g - (chosen / total * g).sum(-1, keepdim=True)) / total
    full = torch.zeros_like(scores).scatter_add(1, expert, g)
    if norm_type == SIGMOID:
        dx = scores * (1 - scores) * full
    else:
        dx = scores * (full - (scores * full).sum(-1, keepdim=True))
    return dx.to(grad_y.dtype)


@npu_moe_gating_top_k_backward.check
def _(x_norm, grad_y, expertIdx, renorm, norm_type):
    must.dtype("x_norm", x_norm, torch.float32)
    must.ndim("x_norm", x_norm, 2)
    must.dtype("grad_y", grad_y, *FLOATS)
    must.shape("grad_y", grad_y, (x_norm.size(0), None))
    experts, k = x_norm.size(1), grad_y.size(1)
    must.hold(experts <= 2048, "x_norm", "of at most 2048 experts", experts)
    must.hold(0 < k <= experts, "grad_y", f"of 1 to {experts} experts a row", k)
    must.dtype("expertIdx", expertIdx, torch.int32)
    must.shape("expertIdx", expertIdx, tuple(grad_y.shape))
    must.choice("renorm", renorm, (0,))
    must.choice("norm_type", norm_type, (SOFTMAX, SIGMOID))
    inside("expertIdx", expertIdx, x_norm.size(1))


npu_moe_gating_top_k_backward.samples = [
    Sample(
        lambda make: (
            make(4, 8, low=0, high=1), make(4, 2), make(4, 2, dtype=torch.int32, low=0, high=8)
        ),
        {"norm_type": 1},
    ),
]  # fmt: skip
