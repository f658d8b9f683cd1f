"""npu_cross_entropy_loss and its backward: log-softmax and negative log-likelihood in one."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits, floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import AVERAGE, SUM, Placement, Sharding
from torch_npu.ops._shared._indices import first_bad

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
REDUCTIONS = ("mean", "sum", "none")


def _counted(target, ignore_index):
    """Which rows count, and a class of each: 0 for an ignored one, whose target may be none."""
    counts = target != ignore_index
    return counts, torch.where(counts, target, 0).long()


def _row_weights(counts, target, weight, like):
    """1 for each row that counts, and the weight of its class; both 0 for an ignored row."""
    ones = counts.to(like.dtype)
    return ones, ones if weight is None else ones * weight.to(like.dtype)[target]


def _reduce(rows, total, reduction):
    """`rows` (N,) as they are, or as (1,) their sum, or the sum divided by `total`."""
    if reduction == "none":
        return rows
    summed = rows.sum(0, keepdim=True)
    return summed / total if reduction == "mean" else summed


def _check_rows(log_prob_name, rows, target, weight, reduction, ignore_index, label_smoothing):
    must.dtype(log_prob_name, rows, *FLOATS)
    must.ndim(log_prob_name, rows, 2)
    n, c = rows.shape
    must.hold(n > 0, log_prob_name, "a tensor of at least one row", n)
    must.hold(c > 0, log_prob_name, "a tensor of at least one class", c)
    narrow = (torch.int32,) if chips.current().family == "A5" else ()
    must.dtype("target", target, torch.int64, *narrow)
    must.shape("target", target, (n,))
    if must.has_data(target):
        host = target.cpu()
        wrong = ((host < 0) | (host >= c)) & (host != ignore_index)
        expected = f"in [0, {c}), or 'ignore_index' ({ignore_index})"
        first_bad("target", expected, host, wrong)
    must.dtype("weight", weight, torch.float32)
    must.shape("weight", weight, (c,))
    must.choice("reduction", reduction, REDUCTIONS)
    must.hold(0 <= label_smoothing <= 1, "label_smoothing", "in [0, 1]", label_smoothing)


@npu_op(
    "npu_cross_entropy_loss(Tensor input, Tensor target, Tensor? weight=None, str reduction='mean',"
    " int ignore_index=-100, float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0,"
    " bool return_zloss=False) -> (Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, True, False),
)
def npu_cross_entropy_loss(
    input,
    target,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
    return_zloss,
):
    r"""Cross-entropy loss of logits against class indices.

    $$ \text{lse}_n = \log \sum_c e^{x_{n,c}}, \qquad \text{logProb}_{n,c} = x_{n,c} - \text{lse}_n $$
    $$ l_n = k_n \left( -(1 - \lambda) \, w_{y_n} \text{logProb}_{n,y_n}
       - \frac{\lambda}{C} \sum_c w_c \, \text{logProb}_{n,c} \right), \qquad
       z_n = k_n \, \sigma \, \text{lse}_n^2 $$

    with k = 0 for ignored rows and 1 for others, the label smoothing λ and the scale σ of the
    z-loss. `mean` divides the sum of l by that of k w_y, and the sum of z by that of k; the loss
    is l + z, reduced.

    Args:
        input: the logits x, (N, C); float16, bfloat16 or float32.
        target: the classes y, (N,) int64 in [0, C), or `ignore_index`; on Ascend950 also int32.
        weight: the weight of each class, (C,) float32; ones if not given.
        reduction: "mean", "sum" or "none".
        ignore_index: the target whose rows do not count; it need not be a class.
        label_smoothing: λ, in [0, 1].
        lse_square_scale_for_zloss: σ; upstream does not support it yet, must stay 0.
        return_zloss: whether to return z; upstream does not support it yet, must stay False.

    Returns:
        loss, (N,) for "none" and (1,) otherwise; logProb, (N, C); zloss, as loss, or empty unless
        `return_zloss`; lse, (N,), or empty if σ is 0. All in the dtype of `input`. The loss (and
        zloss) pass gradients back.

    Constraints:
        If `input` requires a gradient, `label_smoothing` must be 0.

    Differs from upstream: with constraints off (SOFTNPU_STRICT=0) every combination computes,
    z-loss and gradients included.
    """
    x = wide(input)
    lse = x.logsumexp(-1)
    log_prob = x.log_softmax(-1)
    kept, target = _counted(target, ignore_index)
    counts, weights = _row_weights(kept, target, weight, x)
    rows = -log_prob.gather(1, target.unsqueeze(1)).squeeze(1) * weights
    if label_smoothing:
        weighted = log_prob if weight is None else log_prob * weight.to(x.dtype)
        smooth = -weighted.sum(-1) * counts / x.shape[1]
        rows = (1 - label_smoothing) * rows + label_smoothing * smooth
    zrows = lse_square_scale_for_zloss * lse.square() * counts
    zloss = _reduce(zrows, counts.sum(), reduction)
    loss = _reduce(rows, weights.sum(), reduction)
    if lse_square_scale_for_zloss:
        loss = loss + zloss
    return (
        loss.to(input.dtype),
        log_prob.to(input.dtype),
        zloss.to(input.dtype) if return_zloss else input.new_empty(0),
        lse.to(input.dtype) if lse_square_scale_for_zloss else input.new_empty(0),
    )


@npu_cross_entropy_loss.check
def _(
    input,
    target,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
    return_zloss,
):
    _check_rows("input", input, target, weight, reduction, ignore_index, label_smoothing)
    must.unset("lse_square_scale_for_zloss", lse_square_scale_for_zloss, 0.0)
    must.unset("return_zloss", return_zloss, False)
    if input.requires_grad:
        why = "0 when 'input' requires a gradient"
        must.hold(label_smoothing == 0, "label_smoothing", why, label_smoothing)


@npu_cross_entropy_loss.native
def _(
    input,
    target,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
    return_zloss,
):
    if not fits(input) or not floats(weight) or lse_square_scale_for_zloss or return_zloss:
        return NotImplemented  # fmt: skip
    kept, target = _counted(target, ignore_index)
    log_prob, picked, weighted = torch.ops.softnpu.cross_entropy(
        input, target, weight, label_smoothing != 0
    )
    counts, weights = _row_weights(kept, target, weight, picked)
    rows = -picked * weights
    if label_smoothing:
        smooth = -weighted * counts / input.shape[1]
        rows = (1 - label_smoothing) * rows + label_smoothing * smooth
    loss = _reduce(rows, weights.sum(), reduction)
    return loss.to(input.dtype), log_prob, input.new_empty(0), input.new_empty(0)


@npu_cross_entropy_loss.backward
def _(
    dloss,
    dzloss,
    *,
    target,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
    return_zloss,
    result1,
    result3,
):
    dx = torch.ops.npu.npu_cross_entropy_loss_backward(
        dloss,
        result1,
        target,
        weight,
        dzloss if return_zloss else None,
        result3 if lse_square_scale_for_zloss else None,
        reduction,
        ignore_index,
        label_smoothing,
        lse_square_scale_for_zloss,
    )
    return {"input": dx}


@npu_cross_entropy_loss.sharding
def _(weight, reduction):
    """The mean of means, as upstream has it: where targets are ignored, ranks with fewer of them weigh less."""
    rows: dict[str, Placement] = {"input": 0, "target": 0}
    if reduction != "mean":
        yield Sharding((0 if reduction == "none" else SUM, 0, None, None), rows)
    elif weight is None:
        yield Sharding((AVERAGE, 0, None, None), rows, even=True)


npu_cross_entropy_loss.samples = [
    Sample(lambda make: (make(6, 10), make(6, dtype=torch.int64, low=0, high=10))),
    Sample(
        lambda make: (
            make(5, 7, dtype=torch.float16),
            make(5, dtype=torch.int64, low=0, high=7),
            make(7, low=0.1),
            "sum",
            3,
        ),
    ),
    Sample(
        lambda make: (
            make(4, 33, dtype=torch.bfloat16),
            make(4, dtype=torch.int64, low=0, high=33),
        ),
        {"reduction": "none", "label_smoothing": 0.1},
    ),
]


@npu_op(
    "npu_cross_entropy_loss_backward(Tensor grad_loss, Tensor log_prob, Tensor target,"
    " Tensor? weight=None, Tensor? grad_zloss=None, Tensor? lse_for_zloss=None,"
    " str reduction='mean', int ignore_index=-100, float label_smoothing=0.0,"
    " float lse_square_scale_for_zloss=0.0) -> Tensor"
)
def npu_cross_entropy_loss_backward(
    grad_loss,
    log_prob,
    target,
    weight,
    grad_zloss,
    lse_for_zloss,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
):
    r"""Gradient of `npu_cross_entropy_loss` with respect to `input`.

    $$ dx_{n,c} = e^{\text{logProb}_{n,c}} \sum_j h_{n,j} - h_{n,c}
       + 2 \sigma \, e^{\text{logProb}_{n,c}} \, \text{lse}_n \, k_n \, g^z_n, \qquad
       h_{n,c} = k_n \, g_n \left( (1 - \lambda) \, w_c [c = y_n] + \frac{\lambda}{C} w_c \right) $$

    with g the gradient of each row's loss, divided as the reduction asks, and g^z that of its
    z-loss.

    Args:
        grad_loss: the gradient of the loss, (N,) for "none" and (1,) otherwise.
        log_prob: the second result of the forward operator, (N, C).
        target, weight, reduction, ignore_index, label_smoothing: as in the forward operator.
        grad_zloss, lse_for_zloss, lse_square_scale_for_zloss: of the z-loss; not supported
            upstream yet.

    Returns:
        dx, (N, C), in the dtype of `grad_loss`.
    """
    probabilities = wide(log_prob).exp()
    kept, target = _counted(target, ignore_index)
    counts, weights = _row_weights(kept, target, weight, probabilities)
    grad = wide(grad_loss)
    row = grad / weights.sum() if reduction == "mean" else grad
    h = torch.zeros_like(probabilities)
    h.scatter_(1, target.unsqueeze(1), ((1 - label_smoothing) * row * weights).unsqueeze(1))
    if label_smoothing:
        spread = (row * counts * label_smoothing / h.shape[1]).unsqueeze(1)
        h = h + (spread if weight is None else spread * weight.to(h.dtype))
    dx = probabilities * h.sum(-1, keepdim=True) - h
    if lse_square_scale_for_zloss:
        zgrad = grad if grad_zloss is None else grad + wide(grad_zloss)
        zrow = zgrad / counts.sum() if reduction == "mean" else zgrad
        dlse = 2 * lse_square_scale_for_zloss * wide(lse_for_zloss) * counts * zrow
        dx = dx + probabilities * dlse.unsqueeze(1)
    return dx.to(grad_loss.dtype)


@npu_cross_entropy_loss_backward.check
def _(
    grad_loss,
    log_prob,
    target,
    weight,
    grad_zloss,
    lse_for_zloss,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
):
    _check_rows("log_prob", log_prob, target, weight, reduction, ignore_index, label_smoothing)
    must.same_dtype("grad_loss", grad_loss, "log_prob", log_prob)
    must.shape("grad_loss", grad_loss, (log_prob.shape[0] if reduction == "none" else 1,))
    must.unset("grad_zloss", grad_zloss)
    must.unset("lse_for_zloss", lse_for_zloss)
    must.unset("lse_square_scale_for_zloss", lse_square_scale_for_zloss, 0.0)


@npu_cross_entropy_loss_backward.native
def _(
    grad_loss,
    log_prob,
    target,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    lse_square_scale_for_zloss,
):
    if not fits(log_prob, grad_loss) or not floats(weight) or lse_square_scale_for_zloss:
        return NotImplemented  # fmt: skip
    grad = wide(grad_loss)
    kept, target = _counted(target, ignore_index)
    counts, weights = _row_weights(kept, target, weight, grad)
    row = grad / weights.sum() if reduction == "mean" else grad
    spread = row * counts * label_smoothing / log_prob.shape[1] if label_smoothing else None
    return torch.ops.softnpu.cross_entropy_backward(
        log_prob, target, (1 - label_smoothing) * row * weights, spread, weight
    )


@npu_cross_entropy_loss_backward.sharding
def _(reduction):
    if reduction != "mean":
        loss = 0 if reduction == "none" else None
        yield Sharding((0,), {"grad_loss": loss, "log_prob": 0, "target": 0})


npu_cross_entropy_loss_backward.samples = [
    Sample(
        lambda make: (
            make(1),
            make(6, 10, low=-3, high=0),
            make(6, dtype=torch.int64, low=0, high=10),
        )
    ),
    Sample(
        lambda make: (
            make(6),
            make(6, 10, low=-3, high=0),
            make(6, dtype=torch.int64, low=0, high=10),
            make(10, low=0.1),
        ),
        {"reduction": "none", "ignore_index": 4, "label_smoothing": 0.1},
    ),
]
