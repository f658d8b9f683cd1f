"""npu_fused_attention_layernorm_qkv_fwd: BERT's layer norm and its three projections."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_fused_attention_layernorm_qkv_fwd(Tensor x, Tensor kernel_query, Tensor kernel_key, "
    "Tensor kernel_value, Tensor gamma, Tensor beta, Tensor? bias_query=None, Tensor? bias_key=None, "
    "Tensor? bias_value=None, int seq_len=128, int num_heads=12, float eps=1e-05) -> Tensor[]",
    ge="AttentionLnQKV",
    aclop=True,
    product=True,
)
def npu_fused_attention_layernorm_qkv_fwd(
    x,
    kernel_query,
    kernel_key,
    kernel_value,
    gamma,
    beta,
    bias_query,
    bias_key,
    bias_value,
    seq_len,
    num_heads,
    eps,
):
    r"""Layer norm of each row, then queries, keys and values with the heads first.

    $$ n = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \gamma + \beta, \quad q = n W_q + b_q, \quad
       k = n W_k + b_k, \quad v = n W_v + b_v $$

    Args:
        x: (batch * seq_len, hidden), float16.
        kernel_query: W, (hidden, hidden), float16: inputs by outputs, the transpose of a linear layer's weight.
        kernel_key: the same.
        kernel_value: the same.
        gamma: (hidden,), float16.
        beta: (hidden,), float16.
        bias_query: b, (hidden,), float16; None for none.
        bias_key: the same.
        bias_value: the same.
        seq_len: rows of a sequence.
        num_heads: heads.
        eps: is added to the variance.

    Returns:
        n like `x`; q, k and v, (batch, num_heads, seq_len, hidden / num_heads); the mean and the variance of each row,
        (batch * seq_len,). All float16; n is rounded before the products.

    Differs from upstream: upstream's kernel takes tensors in format 29 (NZ); here any format does.
    """
    rows = wide(x)
    variance, mean = torch.var_mean(rows, -1, correction=0)
    norm = (rows - mean[:, None]) * torch.rsqrt(variance[:, None] + eps)
    norm = (norm * wide(gamma) + wide(beta)).to(x.dtype)
    made = []
    pairs = ((kernel_query, bias_query), (kernel_key, bias_key), (kernel_value, bias_value))
    for kernel, bias in pairs:
        y = wide(norm) @ wide(kernel)
        y = y if bias is None else y + wide(bias)
        y = y.to(x.dtype).view(-1, seq_len, num_heads, y.shape[1] // num_heads)
        made.append(y.transpose(1, 2).contiguous())
    return [norm, *made, mean.to(x.dtype), variance.to(x.dtype)]


@npu_fused_attention_layernorm_qkv_fwd.meta
def _(x, seq_len, num_heads):
    rows, width = x.shape
    heads = (rows // seq_len, num_heads, seq_len, width // num_heads)
    return [
        x.new_empty(rows, width),
        *(x.new_empty(heads) for _ in range(3)),
        *(x.new_empty(rows) for _ in range(2)),
    ]


@npu_fused_attention_layernorm_qkv_fwd.check
def _(
    x,
    kernel_query,
    kernel_key,
    kernel_value,
    gamma,
    beta,
    bias_query,
    bias_key,
    bias_value,
    seq_len,
    num_heads,
):
    must.dtype("x", x, torch.float16)
    must.ndim("x", x, 2)
    must.hold(seq_len > 0, "seq_len", "above 0", seq_len)
    must.hold(num_heads > 0, "num_heads", "above 0", num_heads)
    rows, width = x.shape
    must.hold(rows % seq_len == 0, "x", f"of whole sequences of {seq_len} rows", rows)
    must.hold(width % num_heads == 0, "x", f"as wide as {num_heads} equal heads", width)
    for name, kernel in (
        ("kernel_query", kernel_query),
        ("kernel_key", kernel_key),
        ("kernel_value", kernel_value),
    ):
        must.same_dtype(name, kernel, "x", x)
        must.shape(name, kernel, (width, width))
    for name, vector in (
        ("gamma", gamma),
        ("beta", beta),
        ("bias_query", bias_query),
        ("bias_key", bias_key),
        ("bias_value", bias_value),
    ):
        must.same_dtype(name, vector, "x", x)
        must.shape(name, vector, (width,))


def _half(make, *shape, **options):
    return make(*shape, dtype=torch.float16, **options)


def _inputs(make):
    return (
        _half(make, 6, 8),
        *(_half(make, 8, 8, seed=i) for i in range(3)),
        _half(make, 8, low=0.5, high=1.5),
        _half(make, 8, seed=4),
    )


npu_fused_attention_layernorm_qkv_fwd.samples = [
    Sample(_inputs, {"seq_len": 3, "num_heads": 2}),
    Sample(
        lambda make: (*_inputs(make), *(_half(make, 8, seed=i) for i in range(5, 8))),
        {"seq_len": 6, "num_heads": 4, "eps": 1e-3},
    ),
]
