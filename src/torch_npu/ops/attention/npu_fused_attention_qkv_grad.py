"""npu_fused_attention_qkv_grad: the gradients of BERT's three projections."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_fused_attention_qkv_grad(Tensor grad_output_query, Tensor grad_output_key, "
    "Tensor grad_output_value, Tensor query_kernel, Tensor key_kernel, Tensor value_kernel, "
    "Tensor hidden_states, Tensor grad_output_ln) -> Tensor[]",
    ge="AttentionQKVGradX",
    aclop=True,
    product=True,
)
def npu_fused_attention_qkv_grad(
    grad_output_query,
    grad_output_key,
    grad_output_value,
    query_kernel,
    key_kernel,
    value_kernel,
    hidden_states,
    grad_output_ln,
):
    r"""The gradients of q = h W_q + b_q, k = h W_k + b_k and v = h W_v + b_v.

    $$ dh = g_{ln} + g_q W_q^T + g_k W_k^T + g_v W_v^T, \quad dW = h^T g, \quad db = \sum_i g_i $$

    Args:
        grad_output_query: g_q, (rows, hidden), float16.
        grad_output_key: g_k, the same.
        grad_output_value: g_v, the same.
        query_kernel: W_q, (hidden, hidden), float16: inputs by outputs.
        key_kernel: W_k, the same.
        value_kernel: W_v, the same.
        hidden_states: h, (rows, hidden), float16.
        grad_output_ln: what another path adds to the gradient of h, (rows, hidden), float16.

    Returns:
        dh, the three dW and the three db, float16.

    Differs from upstream: upstream's kernels take tensors in format 29 (NZ); here any format does.
    """
    gradients = [wide(g) for g in (grad_output_query, grad_output_key, grad_output_value)]
    hidden, total = wide(hidden_states), wide(grad_output_ln)
    for g, kernel in zip(gradients, (query_kernel, key_kernel, value_kernel), strict=True):
        total = total + g @ wide(kernel).mT
    made = [total, *(hidden.mT @ g for g in gradients), *(g.sum(0) for g in gradients)]
    return [t.to(hidden_states.dtype) for t in made]


@npu_fused_attention_qkv_grad.meta
def _(hidden_states, query_kernel, key_kernel, value_kernel):
    kernels = (query_kernel, key_kernel, value_kernel)
    return [
        hidden_states.new_empty(hidden_states.shape),
        *(k.new_empty(k.shape) for k in kernels),
        *(k.new_empty(k.shape[1]) for k in kernels),
    ]


@npu_fused_attention_qkv_grad.check
def _(
    grad_output_query,
    grad_output_key,
    grad_output_value,
    query_kernel,
    key_kernel,
    value_kernel,
    hidden_states,
    grad_output_ln,
):
    must.dtype("hidden_states", hidden_states, torch.float16)
    must.ndim("hidden_states", hidden_states, 2)
    rows, width = hidden_states.shape
    for name, tensor in (
        ("grad_output_query", grad_output_query),
        ("grad_output_key", grad_output_key),
        ("grad_output_value", grad_output_value),
        ("grad_output_ln", grad_output_ln),
    ):
        must.same_dtype(name, tensor, "hidden_states", hidden_states)
        must.shape(name, tensor, (rows, width))
    for name, kernel in (
        ("query_kernel", query_kernel),
        ("key_kernel", key_kernel),
        ("value_kernel", value_kernel),
    ):
        must.same_dtype(name, kernel, "hidden_states", hidden_states)
        must.shape(name, kernel, (width, width))


def _half(make, *shape, **options):
    return make(*shape, dtype=torch.float16, **options)


npu_fused_attention_qkv_grad.samples = [
    Sample(
        lambda make: (
            *(_half(make, 6, 8, seed=i) for i in range(3)),
            *(_half(make, 8, 8, seed=i) for i in range(3, 6)),
            _half(make, 6, 8, seed=6),
            _half(make, 6, 8, seed=7),
        )
    ),
]
