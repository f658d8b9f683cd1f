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
    attention,
    backward_of,
    check_gradient,
    npu_fusion_attention_grad_v3,
    npu_fusion_attention_v3,
)


def _split(names, arguments):
    """(arguments, targets) of the form without out; the workspace is checked, and nothing here needs it."""
    arguments = dict(arguments)
    must.dtype("workspace", arguments.pop("workspace"), torch.uint8)
    targets = [arguments.pop(name) for name in names]
    return arguments, targets


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
    " -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!), Tensor(e!), Tensor(f!))",
    host_ok=True,
    core="MIX_AIC",
)
def npu_fusion_attention_v3_out(**arguments):
    """`npu_fusion_attention_v3` into the given memory."""
    arguments, targets = _split(_OUTPUTS, arguments)
    return _fill(npu_fusion_attention_v3.kernel(**arguments), targets)


@npu_fusion_attention_v3_out.check
def _(**arguments):
    arguments, _ = _split(_OUTPUTS, arguments)
    _fusion_rules.check(attention(**arguments))


@npu_fusion_attention_v3_out.native
def _(**arguments):
    arguments, targets = _split(_OUTPUTS, arguments)
    return _fill(npu_fusion_attention_v3.parts["native"](**arguments), targets)


@npu_fusion_attention_v3_out.meta
def _(**arguments):
    return tuple(_split(_OUTPUTS, arguments)[1])


@npu_op(
    "npu_fusion_attention_grad_v3.out"
    + GRADIENT_ARGUMENTS.format(ints="int")
    + ", Tensor? workspace=None, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor(d!) dpse, Tensor(e!) dsink)"
    " -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!), Tensor(e!))",
    host_ok=True,
    core="MIX_AIC",
)
def npu_fusion_attention_grad_v3_out(**arguments):
    """`npu_fusion_attention_grad_v3` into the given memory."""
    arguments, targets = _split(_GRADIENTS, arguments)
    return _fill(npu_fusion_attention_grad_v3.kernel(**arguments), targets)


@npu_fusion_attention_grad_v3_out.check
def _(**arguments):
    arguments, _ = _split(_GRADIENTS, arguments)
    check_gradient(**arguments)


@npu_fusion_attention_grad_v3_out.native
def _(**arguments):
    arguments, targets = _split(_GRADIENTS, arguments)
    return _fill(npu_fusion_attention_grad_v3.parts["native"](**arguments), targets)


@npu_fusion_attention_grad_v3_out.meta
def _(**arguments):
    return tuple(_split(_GRADIENTS, arguments)[1])


def _outputs(query, key, value, head_num, input_layout):
    return Attention(query, key, value, head_num, input_layout).outputs()


@npu_op(
    "_npu_fusion_attention_v3_infer_output(Tensor query, Tensor key, Tensor value, int head_num, str input_layout)"
    " -> (Tensor, Tensor, Tensor)",
    export=False,
    core="MIX_AIC",
)
def _npu_fusion_attention_v3_infer_output(query, key, value, head_num, input_layout):
    """Memory, zeroed, for attention_out, softmax_max and softmax_sum of `npu_fusion_attention_v3`."""
    return tuple(x.zero_() for x in _outputs(query, key, value, head_num, input_layout))


@_npu_fusion_attention_v3_infer_output.check
def _(query, key, value, head_num, input_layout):
    _fusion_rules.check_tensors(Attention(query, key, value, head_num, input_layout))


@_npu_fusion_attention_v3_infer_output.meta
def _(query, key, value, head_num, input_layout):
    return _outputs(query, key, value, head_num, input_layout)


_npu_fusion_attention_v3_infer_output.samples = [
    Sample(lambda make: (make(2, 16, 64), make(2, 24, 64), make(2, 24, 64), 4, "BSH"))
]


@npu_op(
    "_npu_fusion_attention_grad_v3_infer_output(Tensor query, Tensor key, Tensor value, Tensor? pse=None,"
    " Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    export=False,
    core="MIX_AIC",
)
def _npu_fusion_attention_grad_v3_infer_output(query, key, value, pse, sink):
    """Memory, zeroed, for the gradients of `npu_fusion_attention_v3`."""
    given = [x if x is None else x.new_zeros(x.shape) for x in (query, key, value, pse, sink)]
    absent = (query.new_empty(0), query.new_empty(0, dtype=torch.float32))
    return *given[:3], *(x if x is not None else y for x, y in zip(given[3:], absent, strict=True))


@_npu_fusion_attention_grad_v3_infer_output.check
def _(query):
    must.ndim("query", query, 3, 4)


_npu_fusion_attention_grad_v3_infer_output.samples = [
    Sample(lambda make: (make(2, 16, 64), make(2, 24, 64), make(2, 24, 64)))
]


def _check_workspace(a: Attention) -> None:
    must.hold(a.layout == "TND", "input_layout", "TND", a.input_layout)
    must.unset("sink", a.sink)
    _fusion_rules.check(a)


@npu_op(
    "_npu_fusion_attention_v3_get_max_workspace" + ARGUMENTS.format(ints="int") + ") -> Tensor",
    export=False,
    host_ok=True,
    core="MIX_AIC",
)
def _npu_fusion_attention_v3_get_max_workspace(query):
    """The scratch memory of `npu_fusion_attention_v3` in a graph (TND): none, for nothing here needs it."""
    return query.new_empty(0, dtype=torch.uint8)


@_npu_fusion_attention_v3_get_max_workspace.check
def _(**arguments):
    _check_workspace(attention(**arguments))


@npu_op(
    "_npu_fusion_attention_grad_v3_get_max_workspace"
    + GRADIENT_ARGUMENTS.format(ints="int")
    + ") -> Tensor",
    export=False,
    host_ok=True,
    core="MIX_AIC",
)
def _npu_fusion_attention_grad_v3_get_max_workspace(query):
    """The scratch memory of `npu_fusion_attention_grad_v3` in a graph (TND): none, for nothing here needs it."""
    return query.new_empty(0, dtype=torch.uint8)


@_npu_fusion_attention_grad_v3_get_max_workspace.check
def _(seed, offset, **arguments):
    _check_workspace(backward_of(**arguments)[0])
