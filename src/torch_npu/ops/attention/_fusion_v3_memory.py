"""npu_fusion_attention_v3 in graphs: its out forms, and the operators that make memory for them."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _fusion_rules
from torch_npu.ops.attention._fusion import Attention
from torch_npu.ops.attention.npu_fusion_attention_v3 import (
    ARGUMENTS,
    GRADIENT_ARGUMENTS,
    NpuFusionAttentionGradV3,
    NpuFusionAttentionV3,
    attention,
    backward_of,
)

_INPUTS = 21  # positional arguments of the forward; the workspace may follow


def _split(names, args, kwargs):
    """(args, kwargs, targets) of the form without out; the workspace is checked, and nothing here needs it."""
    kwargs = dict(kwargs)
    targets = [kwargs.pop(name) for name in names]
    workspace = args[_INPUTS] if len(args) > _INPUTS else kwargs.pop("workspace", None)
    must.dtype("workspace", workspace, torch.uint8)
    return args[:_INPUTS], kwargs, targets


def _fill(results, targets):
    for result, target in zip(results, targets, strict=True):
        target.copy_(result)
    return tuple(targets)


_OUTPUTS = ("attention_score", "softmax_max", "softmax_sum", "softmax_out", "seed", "offset")
_GRADIENTS = ("dq", "dk", "dv", "dpse", "dsink")


@npu_op(
    "npu_fusion_attention_v3.out"
    + ARGUMENTS.format(ints="int")
    + ", Tensor? workspace=None, *, Tensor(a!) attention_score, Tensor(b!) softmax_max, Tensor(c!) softmax_sum,"
    " Tensor(d!) softmax_out, Tensor(e!) seed, Tensor(f!) offset)"
    " -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!), Tensor(e!), Tensor(f!))"
)
class NpuFusionAttentionV3Out:
    """`npu_fusion_attention_v3` into the given memory."""

    host_ok = True

    def check(*args, **kwargs):
        args, kwargs, _ = _split(_OUTPUTS, args, kwargs)
        _fusion_rules.check(attention(*args, **kwargs))

    def kernel(*args, **kwargs):
        args, kwargs, targets = _split(_OUTPUTS, args, kwargs)
        return _fill(NpuFusionAttentionV3.kernel(*args, **kwargs), targets)

    def native(*args, **kwargs):
        args, kwargs, targets = _split(_OUTPUTS, args, kwargs)
        return _fill(NpuFusionAttentionV3.native(*args, **kwargs), targets)

    def meta(*args, **kwargs):
        return tuple(_split(_OUTPUTS, args, kwargs)[2])


@npu_op(
    "npu_fusion_attention_grad_v3.out"
    + GRADIENT_ARGUMENTS.format(ints="int")
    + ", Tensor? workspace=None, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor(d!) dpse, Tensor(e!) dsink)"
    " -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!), Tensor(e!))"
)
class NpuFusionAttentionGradV3Out:
    """`npu_fusion_attention_grad_v3` into the given memory."""

    host_ok = True

    def check(*args, **kwargs):
        args, kwargs, _ = _split(_GRADIENTS, args, kwargs)
        NpuFusionAttentionGradV3.check(*args, **kwargs)

    def kernel(*args, **kwargs):
        args, kwargs, targets = _split(_GRADIENTS, args, kwargs)
        return _fill(NpuFusionAttentionGradV3.kernel(*args, **kwargs), targets)

    def native(*args, **kwargs):
        args, kwargs, targets = _split(_GRADIENTS, args, kwargs)
        return _fill(NpuFusionAttentionGradV3.native(*args, **kwargs), targets)

    def meta(*args, **kwargs):
        return tuple(_split(_GRADIENTS, args, kwargs)[2])


def _outputs(query, key, value, head_num, input_layout):
    return Attention(query, key, value, head_num, input_layout).outputs()


@npu_op(
    "_npu_fusion_attention_v3_infer_output(Tensor query, Tensor key, Tensor value, int head_num, str input_layout)"
    " -> (Tensor, Tensor, Tensor)",
    export=False,
)
class NpuFusionAttentionV3InferOutput:
    """Memory, zeroed, for attention_out, softmax_max and softmax_sum of `npu_fusion_attention_v3`."""

    def check(query, key, value, head_num, input_layout):
        _fusion_rules.check_tensors(Attention(query, key, value, head_num, input_layout))

    def kernel(query, key, value, head_num, input_layout):
        return tuple(x.zero_() for x in _outputs(query, key, value, head_num, input_layout))

    def meta(query, key, value, head_num, input_layout):
        return _outputs(query, key, value, head_num, input_layout)

    samples = [Sample(lambda make: (make(2, 16, 64), make(2, 24, 64), make(2, 24, 64), 4, "BSH"))]


@npu_op(
    "_npu_fusion_attention_grad_v3_infer_output(Tensor query, Tensor key, Tensor value, Tensor? pse=None,"
    " Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    export=False,
)
class NpuFusionAttentionGradV3InferOutput:
    """Memory, zeroed, for the gradients of `npu_fusion_attention_v3`."""

    def check(query, key, value, pse=None, sink=None):
        must.ndim("query", query, 3, 4)

    def kernel(query, key, value, pse=None, sink=None):
        given = [x if x is None else x.new_zeros(x.shape) for x in (query, key, value, pse, sink)]
        absent = (query.new_empty(0), query.new_empty(0, dtype=torch.float32))
        return *given[:3], *(
            x if x is not None else y for x, y in zip(given[3:], absent, strict=True)
        )

    samples = [Sample(lambda make: (make(2, 16, 64), make(2, 24, 64), make(2, 24, 64)))]


def _check_workspace(a: Attention) -> None:
    must.be(a.layout == "TND", "input_layout", "TND", a.input_layout)
    must.unset("sink", a.sink)
    _fusion_rules.check(a)


@npu_op(
    "_npu_fusion_attention_v3_get_max_workspace" + ARGUMENTS.format(ints="int") + ") -> Tensor",
    export=False,
)
class NpuFusionAttentionV3GetMaxWorkspace:
    """The scratch memory of `npu_fusion_attention_v3` in a graph (TND): none, for nothing here needs it."""

    host_ok = True

    def check(*args, **kwargs):
        _check_workspace(attention(*args, **kwargs))

    def kernel(query, *args, **kwargs):
        return query.new_empty(0, dtype=torch.uint8)


@npu_op(
    "_npu_fusion_attention_grad_v3_get_max_workspace"
    + GRADIENT_ARGUMENTS.format(ints="int")
    + ") -> Tensor",
    export=False,
)
class NpuFusionAttentionGradV3GetMaxWorkspace:
    """The scratch memory of `npu_fusion_attention_grad_v3` in a graph (TND): none, for nothing here needs it."""

    host_ok = True

    def check(*args, seed=None, offset=None, **kwargs):
        _check_workspace(backward_of(*args, **kwargs)[0])

    def kernel(query, *args, **kwargs):
        return query.new_empty(0, dtype=torch.uint8)
