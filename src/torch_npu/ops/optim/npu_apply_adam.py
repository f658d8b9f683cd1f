"""npu_apply_adam: one step of Adam."""

from __future__ import annotations

import math

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.optim import _targets

_ARGUMENTS = (
    "Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar beta1, Scalar beta2, "
    "Scalar epsilon, Tensor grad, bool? use_locking, bool? use_nesterov"
)

_SCHEMA = f"npu_apply_adam({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"

_targets.without_targets(_SCHEMA)


def _kind(var: torch.Tensor) -> torch.dtype:
    """The dtype of the scalars on the card: that of var, float32 on Ascend950."""
    if var.dtype == torch.float64:  # of gradcheck and references alone
        return torch.float64
    return torch.float32 if chips.current().family == "A5" else var.dtype


@npu_op(
    f"npu_apply_adam.out({_ARGUMENTS}, *, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) "
    "-> (Tensor(a!), Tensor(b!), Tensor(c!))"
)
def npu_apply_adam_out(
    beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_nesterov, var, m, v
):
    r"""One step of Adam on `out=(var, m, v)`.

    $$ m \mathrel{+}= (1 - \beta_1)(g - m), \quad v \mathrel{+}= (1 - \beta_2)(g^2 - v), \quad
       \eta = \mathrm{lr} \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} $$
    $$ \mathrm{var} \mathrel{-}= \eta \frac{m}{\sqrt{v} + \epsilon}, \quad
       \text{with Nesterov } \mathrm{var} \mathrel{-}=
       \eta \frac{\beta_1 m + (1 - \beta_1) g}{\sqrt{v} + \epsilon} $$

    Args:
        beta1_power: beta1 to the power of the step, $\beta_1^t$.
        beta2_power: $\beta_2^t$.
        lr: the learning rate.
        beta1: the decay of the first moment.
        beta2: the decay of the second moment.
        epsilon: what is added to the root of v.
        grad: the gradient g.
        use_locking: whether concurrent updates exclude each other; tasks of a stream always do.
        use_nesterov: whether the step looks ahead; None is False.
        var: the variable; float16, float32, or bfloat16 where the chip has it.
        m: its first moment.
        v: its second moment.

    Returns:
        var, m and v, the tensors given, updated. They are computed in fp32 and rounded once; the scalars
        are first rounded to the dtype of `var` (to float32 on Ascend950), so that 0.999 is 1 beside bfloat16.

    Constraints:
        var, m, v and grad are of one shape and dtype. Without `out` the operator raises, as upstream's
        does.
    """
    rates = (beta1_power, beta2_power, lr, beta1, beta2, epsilon)
    beta1_power, beta2_power, lr, beta1, beta2, epsilon = _targets.rounded(_kind(var), *rates)
    g, m_new, v_new = wide(grad), wide(m), wide(v)
    m_new = m_new + (1 - beta1) * (g - m_new)
    v_new = v_new + (1 - beta2) * (g * g - v_new)
    one = g.new_ones(())
    rate = lr * torch.sqrt(one - beta2_power) / (one - beta1_power)
    ahead = beta1 * m_new + (1 - beta1) * g if use_nesterov else m_new
    new = wide(var) - rate * ahead / (v_new.sqrt() + epsilon)
    return _targets.store((var, m, v), (new, m_new, v_new))


@npu_apply_adam_out.check
def _(grad, use_locking, var, m, v):
    _targets.check(grad, {"var": var, "m": m, "v": v}, *_targets.floats())
    must.choice("use_locking", use_locking, (None, False, True))


@npu_apply_adam_out.native
def _(var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_nesterov):
    rates = (beta1_power, beta2_power, lr, beta1, beta2, epsilon)
    beta1_power, beta2_power, lr, beta1, beta2, epsilon = _targets.rounded(_kind(var), *rates)
    if not fits(var, m, v, grad) or beta1_power == 1 or beta2_power > 1:
        return NotImplemented
    rate = lr * math.sqrt(1 - beta2_power) / (1 - beta1_power)
    torch.ops.softnpu.apply_adam(var, m, v, grad, beta1, beta2, rate, epsilon, bool(use_nesterov))
    return var, m, v


npu_apply_adam_out.call(_targets.with_targets(_SCHEMA))


npu_apply_adam_out.samples = [
    Sample(
        lambda make: (0.9, 0.99, 0.1, 0.9, 0.99, 1e-6, make(4, 5), False, False),
        lambda make: {
            "var": make(4, 5),
            "m": make(4, 5),
            "v": make(4, 5, low=0),
        },
    ),
    Sample(
        lambda make: (
            *(0.9, 0.99, 0.1, 0.9, 0.99, 1e-3, make(7, dtype=torch.float16)),
            *(None, True),
        ),
        lambda make: {
            "var": make(7, dtype=torch.float16),
            "m": make(7, dtype=torch.float16),
            "v": make(7, dtype=torch.float16, low=0),
        },
    ),
]
