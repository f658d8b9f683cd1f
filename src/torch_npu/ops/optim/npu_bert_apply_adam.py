"""npu_bert_apply_adam: one step of BERT's Adam, without bias correction."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.optim import _targets

ADAM, MBART = 0, 1

_ARGUMENTS = (
    "Scalar lr, Scalar beta1, Scalar beta2, Scalar epsilon, Tensor grad, Scalar max_grad_norm, "
    "Scalar global_grad_norm, Scalar weight_decay, Scalar? step_size=None, int adam_mode=0"
)

_SCHEMA = f"npu_bert_apply_adam({_ARGUMENTS}) -> (Tensor var, Tensor m, Tensor v)"

_targets.without_targets(_SCHEMA)


@npu_op(
    f"npu_bert_apply_adam.out({_ARGUMENTS}, *, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) "
    "-> (Tensor(a!), Tensor(b!), Tensor(c!))",
    aclop=True,
)
def npu_bert_apply_adam_out(
    lr,
    beta1,
    beta2,
    epsilon,
    grad,
    max_grad_norm,
    global_grad_norm,
    weight_decay,
    step_size,
    adam_mode,
    var,
    m,
    v,
):
    r"""One step of BERT's Adam on `out=(var, m, v)`.

    $$ m = \beta_1 m + (1 - \beta_1) g, \quad v = \beta_2 v + (1 - \beta_2) g^2, \quad
       u = \frac{m}{\sqrt{v} + \epsilon} $$
    $$ \text{adam\_mode } 0: \; \mathrm{var} \mathrel{-}=
       \mathrm{lr} (u + \text{weight\_decay} \cdot \mathrm{var}), \qquad
       1: \; \mathrm{var} \mathrel{-}= \text{step\_size} \cdot u +
       \mathrm{lr} \cdot \text{weight\_decay} \cdot \mathrm{var} $$

    In mode 0 the gradient is clipped first: where 0 < max_grad_norm < global_grad_norm it is
    multiplied by max_grad_norm / global_grad_norm.

    Args:
        lr: the learning rate.
        beta1: the decay of the first moment.
        beta2: the decay of the second moment.
        epsilon: what is added to the root of v.
        grad: the gradient g.
        max_grad_norm: the norm to clip to; none or a negative one does not clip. Mode 0 only.
        global_grad_norm: the norm of all gradients. Mode 0 only.
        weight_decay: what the variable shrinks by, times `lr`; only a positive one counts.
        step_size: what multiplies u in mode 1; None is `lr`.
        adam_mode: 0 for "adam", 1 for "mbart_adam".
        var: the variable; float16 or float32.
        m: its first moment.
        v: its second moment.

    Returns:
        var, m and v, the tensors given, updated. They are computed in fp32 and rounded once; the scalars
        are first rounded to the dtype of `var`.

    Constraints:
        var, m, v and grad are of one shape and dtype. Without `out` the operator raises, as upstream's
        does.
    """
    given = (lr, beta1, beta2, epsilon, max_grad_norm, global_grad_norm, weight_decay)
    rates = _targets.rounded(var.dtype, *given)
    lr, beta1, beta2, epsilon, max_grad_norm, global_grad_norm, weight_decay = rates
    if step_size is not None:
        (step_size,) = _targets.rounded(var.dtype, step_size)
    g = wide(grad)
    if adam_mode == ADAM and 0 < max_grad_norm < global_grad_norm:
        g = g * (max_grad_norm / global_grad_norm)
    m_new = beta1 * wide(m) + (1 - beta1) * g
    v_new = beta2 * wide(v) + (1 - beta2) * g * g
    rate = lr if adam_mode == ADAM or step_size is None else step_size
    change = rate * (m_new / (v_new.sqrt() + epsilon))
    if weight_decay > 0:
        change = change + lr * weight_decay * wide(var)
    return _targets.store((var, m, v), (wide(var) - change, m_new, v_new))


@npu_bert_apply_adam_out.check
def _(grad, adam_mode, var, m, v):
    _targets.check(grad, {"var": var, "m": m, "v": v}, torch.float16, torch.float32)
    must.choice("adam_mode", adam_mode, (ADAM, MBART))


npu_bert_apply_adam_out.call(_targets.with_targets(_SCHEMA))


npu_bert_apply_adam_out.samples = [
    Sample(
        lambda make: (0.1, 0.9, 0.99, 1e-6, make(4, 5), 1.0, 3.0, 0.01),
        lambda make: {
            "var": make(4, 5),
            "m": make(4, 5),
            "v": make(4, 5, low=0),
        },
    ),
    Sample(
        lambda make: (0.1, 0.9, 0.99, 1e-6, make(7), -1.0, 0.0, 0.0, 0.2, 1),
        lambda make: {
            "var": make(7),
            "m": make(7),
            "v": make(7, low=0),
        },
    ),
]
