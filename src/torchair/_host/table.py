"""What operators of an npu graph become on the host: the decompositions of lowering.

Inductor's own table comes first; on top of it stand torch_npu's operators, dissolved into their kernels where these
are plain formulas, matrix products of half precision on fp32 copies, fused attention, and random operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from softnpu import _C
from torch_npu.ops import _registry
from torch_npu.ops._native import native_half
from torchair._host import operators

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)

_RANDOM_NAMES = (
    "bernoulli cauchy exponential geometric log_normal multinomial native_dropout normal normal_functional "
    "poisson binomial rand rand_like randint randint_like randn randn_like random randperm rrelu_with_noise "
    "rrelu_with_noise_functional uniform _fused_dropout _sample_dirichlet _standard_gamma dropout"
)


@functools.cache
def host_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """ATen and torch_npu operators to functions on host tensors; Inductor's decompositions among them."""
    from torch._inductor.decomposition import select_decomp_table

    table: dict[Any, Any] = dict(select_decomp_table())
    table.update(_torch_npu())
    table.update({p: functools.partial(_widened, p, table.get(p)) for p in _products()})
    table.update(_random())
    forward = aten._scaled_dot_product_fused_attention_overrideable
    table[forward.default] = _attention
    table[aten._scaled_dot_product_fused_attention_overrideable_backward.default] = (
        _attention_backward
    )
    table[aten.convolution_overrideable.default] = aten.convolution.default
    table[aten.convolution_backward_overrideable.default] = _convolution_backward
    layer_norm = aten.native_layer_norm.default
    table[layer_norm] = functools.partial(_layer_norm, table[layer_norm])
    table[torch.ops._c10d_functional.wait_tensor.default] = _already_waited
    table.update(_marks())
    return table


def _products() -> Iterator[OpOverload]:
    """What multiplies matrices, whose half-precision forms are slow on CPUs without such instructions: ATen's products
    by their traits (private ones, which are several, Inductor takes apart), and fused attention as it runs on the host."""
    for name, traits in _C.operator_traits().items():
        namespace, _, base = name.partition("::")
        if namespace == "aten" and traits["widens"] and not base.startswith("_"):
            overload = getattr(aten, base).default
            if not overload._schema.is_mutable:
                yield overload
    yield aten._scaled_dot_product_flash_attention_for_cpu.default
    yield aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _marks() -> dict[OpOverload, Callable[..., Any]]:
    """Ranges and waits of a graph on one stream: everything is in order already."""
    from torchair.ops import _record
    from torchair.scope import _attributes

    return {
        _attributes.ENTER: lambda keys, values, need_execute=False: None,
        _attributes.EXIT: lambda need_execute=False: None,
        _attributes.WAIT_TENSOR: lambda self, dependency: self,
        _record.RECORD: lambda *, device=None: torch.empty(0, device="cpu"),
        _record.WAIT: lambda x: None,
    }


def _torch_npu() -> dict[OpOverload, Callable[..., Any]]:
    table: dict[OpOverload, Callable[..., Any]] = {}
    for operator in _registry.operators.values():
        if operator.compiled == "empty":
            table[operator.overload] = _allocate
        elif operator.compiled == "fuse":
            table[operator.overload] = functools.partial(_fused, operator.as_function("kernel"))
        else:
            table[operator.overload] = functools.partial(_call_whole, operator.overload)
    return table


def _allocate(size: list[int], *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """Memory with a format is memory: values lie in natural order whatever the format."""
    return torch.empty(size, dtype=dtype, device="cpu")


def _call_whole(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    made = operators.host_operator_of(overload)
    return NotImplemented if made is None else made(*args, **kwargs)


def _fused(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The kernel's formula as functional operators: kernels write into tensors of their own, host graphs may not."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize

    return dispatch_functionalize(kernel, FunctionalTensorMode())(*args, **kwargs)


def _random() -> dict[OpOverload, Callable[..., Any]]:
    table: dict[OpOverload, Callable[..., Any]] = {}
    for name in _RANDOM_NAMES.split():
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            chosen = getattr(packet, overload)
            if torch.Tag.nondeterministic_seeded in chosen.tags and not chosen._schema.is_mutable:
                table[chosen] = functools.partial(_call_random, chosen)
    return table


def _call_random(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return operators.random_host_operator(overload)(*args, **kwargs)


def _common_half(values: tuple[Any, ...]) -> torch.dtype | None:
    """The half-precision dtype that all floating tensors share."""
    dtypes = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= set(_HALVES) else None


def _shared_half(values: tuple[Any, ...]) -> torch.dtype | None:
    """The same, unless the CPU multiplies it natively."""
    dtype = _common_half(values)
    return None if dtype is None or native_half(dtype) else dtype


def _widened(product: OpOverload, other: Any, *args: Any, **kwargs: Any) -> Any:
    """The product of half precision by eager's kernel; what Inductor makes of it (`other`) elsewhere."""
    attention = "attention" in product.name()
    half = _shared_half(args[: 4 if "backward" in product.name() else 3] if attention else args)
    if half is not None or _may_be_skinny(product, args):
        return operators.wide_host_operator(product)(*args, **kwargs)
    if product._schema.name in _mixing():
        mixed = _mixed(product, *args, **kwargs)
        if mixed is not NotImplemented:
            return mixed
    return NotImplemented if other is None else other(*args, **kwargs)


def _may_be_skinny(product: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether eager may compute this product of half precision by the kernel for few rows, whatever the CPU can."""
    left = {"aten::mm": 0, "aten::addmm": 1, "aten::mv": 0}.get(product._schema.name)
    if left is None or _common_half(args) is None:
        return False
    rows = 1 if product._schema.name == "aten::mv" else args[left].shape[0]
    return not isinstance(rows, int) or rows <= _C.skinny_rows


@functools.cache
def _mixing() -> frozenset[str]:
    """The products that take half and single precision together."""
    return frozenset(n for n, traits in _C.operator_traits().items() if traits["mixes_floats"])


def _mixed(product: OpOverload, first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A product of several floating types: computed in the widest, with a result of the first tensor's type, as eager."""
    tensors = [first, *(value for value in args if isinstance(value, torch.Tensor))]
    types = {tensor.dtype for tensor in tensors}
    if len(types) == 1 or not all(tensor.is_floating_point() for tensor in tensors):
        return NotImplemented
    wide = functools.reduce(torch.promote_types, types, torch.float32)
    others = (value.to(wide) if isinstance(value, torch.Tensor) else value for value in args)
    return product(first.to(wide), *others, **kwargs).to(first.dtype)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The fused attention of the npu device without dropout, which the device never fuses."""
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, 0.0, is_causal, attn_mask=attn_bias, scale=scale
    )
    nothing = [torch.empty(0, dtype=torch.int64, device=query.device) for _ in range(5)]
    lengths = query.size(2), key.size(2)
    return out, logsumexp, nothing[0], nothing[1], *lengths, *nothing[2:]


def _attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        grad,
        query,
        key,
        value,
        out,
        logsumexp,
        0.0,
        is_causal,
        attn_mask=attn_bias,
        scale=scale,
    )
    return *gradients, None


def _layer_norm(
    plain: Callable[..., Any],
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and rstd of half precision are fp32 on the device, of the dtype of the input on PyTorch's CPU."""
    if input.dtype not in _HALVES:
        return plain(input, normalized_shape, weight, bias, eps)
    wide = [None if one is None else one.float() for one in (weight, bias)]
    y, mean, rstd = plain(input.float(), normalized_shape, *wide, eps)
    return y.to(input.dtype), mean, rstd


def _convolution_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    sizes = [weight.size(1) * groups if transposed else weight.size(0)] if output_mask[2] else None
    return aten.convolution_backward.default(
        grad_output,
        input,
        weight,
        sizes,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )


def _already_waited(tensor: torch.Tensor) -> torch.Tensor:
    """Collectives of the host graph return when they are done."""
    return tensor
