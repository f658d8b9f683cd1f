"""npu_apply_adam_w: one step of AdamW."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import elementwise
from torch_npu.ops.optim import _targets

_ARGUMENTS = (
    "Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, Scalar beta1, "
    "Scalar beta2, Scalar epsilon, Tensor grad, Tensor? max_grad_norm, bool? amsgrad, "
    "bool? maximize"
)

_SCHEMA = f"npu_apply_adam_w({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"

_targets.without_targets(_SCHEMA)


@npu_op(
    f"npu_apply_adam_w.out({_ARGUMENTS}, *, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) "
    "-> (Tensor(a!), Tensor(b!), Tensor(c!))"
)
def npu_apply_adam_w_out(
    beta1_power,
    beta2_power,
    lr,
    weight_decay,
    beta1,
    beta2,
    epsilon,
    grad,
    max_grad_norm,
    amsgrad,
    maximize,
    var,
    m,
    v,
):
    r"""One step of AdamW on `out=(var, m, v)`.

    $$ m = \beta_1 m + (1 - \beta_1) g, \quad v = \beta_2 v + (1 - \beta_2) g^2, \quad
       u = \max(\text{max\_grad\_norm}, v) \text{ with amsgrad, else } v $$
    $$ \mathrm{var} = \mathrm{var} (1 - \mathrm{lr} \cdot \text{weight\_decay}) -
       \frac{\mathrm{lr}}{1 - \beta_1^{t}}
       \frac{m}{\sqrt{u / (1 - \beta_2^{t})} + \epsilon} $$

    Args:
        beta1_power: beta1 to the power of the steps done, $\beta_1^{t-1}$.
        beta2_power: $\beta_2^{t-1}$.
        lr: the learning rate.
        weight_decay: what the variable shrinks by, times `lr`.
        beta1: the decay of the first moment.
        beta2: the decay of the second moment.
        epsilon: what is added to the root.
        grad: the gradient g; its opposite is used with `maximize`.
        max_grad_norm: the largest second moment so far; needed with `amsgrad`. It is read, not written.
        amsgrad: whether `max_grad_norm` takes part; None is False.
        maximize: whether to climb instead of descend; None is False.
        var: the variable; float16, float32, or bfloat16 where the chip has it.
        m: its first moment.
        v: its second moment.

    Returns:
        var, m and v, the tensors given, updated. They are computed in fp32 and rounded once; the scalars
        are first rounded to the dtype of `var`, so that 0.999 is 1 beside bfloat16.

    Constraints:
        var, m, v, grad and max_grad_norm are of one shape and dtype. Without `out` the operator
        raises, as upstream's does.
    """
    given = (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    rates = _targets.rounded(var.dtype, *given)
    beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon = rates
    g = -wide(grad) if maximize else wide(grad)
    m_new = beta1 * wide(m) + (1 - beta1) * g
    v_new = beta2 * wide(v) + (1 - beta2) * g * g
    largest = torch.maximum(wide(max_grad_norm), v_new) if amsgrad else v_new
    one = g.new_ones(())
    root = (largest / (one - beta2_power * beta2)).sqrt() + epsilon
    kept = wide(var) * (1 - lr * weight_decay)
    new = kept - lr * m_new / (one - beta1_power * beta1) / root
    return _targets.store((var, m, v), (new, m_new, v_new))


@npu_apply_adam_w_out.check
def _(grad, max_grad_norm, amsgrad, var, m, v):
    _targets.check(grad, {"var": var, "m": m, "v": v}, *_targets.floats())
    if amsgrad:
        must.present("max_grad_norm", max_grad_norm, "with amsgrad")
    must.shape("max_grad_norm", max_grad_norm, tuple(var.shape))
    must.same_dtype("max_grad_norm", max_grad_norm, "var", var)


@npu_apply_adam_w_out.native
def _(
    beta1_power,
    beta2_power,
    lr,
    weight_decay,
    beta1,
    beta2,
    epsilon,
    grad,
    max_grad_norm,
    amsgrad,
    maximize,
    var,
    m,
    v,
):
    given = (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    rates = _targets.rounded(var.dtype, *given)
    beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon = rates
    if not fits(var, m, v, grad, max_grad_norm) or beta1_power * beta1 == 1:
        return NotImplemented
    torch.ops.softnpu.apply_adam_w(
        var,
        m,
        v,
        grad,
        max_grad_norm if amsgrad else None,
        beta1,
        beta2,
        lr / (1 - beta1_power * beta1),
        1 - lr * weight_decay,
        1 - beta2_power * beta2,
        epsilon,
        bool(maximize),
    )
    return var, m, v


npu_apply_adam_w_out.call(_targets.with_targets(_SCHEMA))


@npu_apply_adam_w_out.sharding
def _(var):
    names = ("grad", "max_grad_norm", "var", "m", "v")
    yield from elementwise(var.ndim, *names, outputs=3)


npu_apply_adam_w_out.samples = [
    Sample(
        lambda make: (*(0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-6, make(4, 5), None, False, False),),
        lambda make: {
            "var": make(4, 5),
            "m": make(4, 5),
            "v": make(4, 5, low=0),
        },
    ),
    Sample(
        lambda make: (
            *(0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-6, make(7), make(7, low=0)),
            *(True, True),
        ),
        lambda make: {
            "var": make(7),
            "m": make(7),
            "v": make(7, low=0),
        },
    ),
]
