"""_npu_silent_check, _npu_silent_check_v2: whether a norm of gradients jumps as a faulty core would make it jump."""

from __future__ import annotations

import logging

import torch

from torch_npu._errors import ErrCode, ops_error
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op

_log = logging.getLogger("torch_npu.silent_check")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)

#: what the result says
NORMAL, FAULT, WARNING = 0, 1, 2
#: npu_asd_detect: a fault is only logged
LOG = 1


def _found(value, history, steps, c_min_steps, limits, jumps):
    """NORMAL, FAULT or WARNING for a value; `history` is the value before it, the least and the greatest so far."""
    before, least, most = history
    if not torch.isfinite(value):
        return FAULT
    # (value - before) / (most - least), CANN's measure of a jump, without a division by zero.
    judged = steps >= c_min_steps and most >= least
    for level, limit, jump in zip((FAULT, WARNING), limits, jumps, strict=True):
        jumped = judged and (value - before).abs() > jump * (most - least)
        if value.abs() > limit or jumped:
            return level
    return NORMAL


def _report(operator, found, value, history, input_grad, only_log):
    """Writes the log, and for a fault that is more than logged clears the gradient and raises."""
    if found == NORMAL:
        return
    before, least, most = (float(part) for part in history)
    text = (
        f"{operator}: {'fault' if found == FAULT else 'warning'}: val {float(value)}, before {before}, "
        f"min {least}, max {most}"
    )
    if found == WARNING:
        _log.warning(text)
        return
    _log.error(text)
    if not only_log:
        input_grad.zero_()
        raise RuntimeError(text + "." + ops_error(ErrCode.ACL))


def _moved_on(value, history, first):
    """The history after a value; one that is not finite leaves it as it is."""
    before, least, most = history
    if not torch.isfinite(value):
        return before, least, most
    return (value, value, value) if first else (value, least.minimum(value), most.maximum(value))


@npu_op(
    "_npu_silent_check(Tensor(a!) input_grad, Tensor val, Tensor(b!) pre_val, Tensor(c!) min_val, "
    "Tensor(d!) max_val, Tensor val_counter, int c_min_steps, float c_thresh_l1, float c_coeff_l1, "
    "float c_thresh_l2, float c_coeff_l2) -> Tensor",
    aclop=True,
)
def _npu_silent_check(
    input_grad,
    val,
    pre_val,
    min_val,
    max_val,
    val_counter,
    c_min_steps,
    c_thresh_l1,
    c_coeff_l1,
    c_thresh_l2,
    c_coeff_l2,
):
    r"""Looks for silent faults: whether a value, the norm of a gradient, is too large or jumps too far.

    It is a fault (1) where the value is not finite, exceeds `c_thresh_l1`, or, after `c_min_steps` steps,

    $$ \frac{|val - pre\_val|}{max\_val - min\_val} > c\_coeff\_l1 $$

    and a warning (2) by the other two thresholds. A fault clears `input_grad` and raises, a warning is logged by
    the logger `torch_npu.silent_check`.

    Args:
        input_grad: the gradient, float16, bfloat16 or float32; written.
        val: its norm, one element; float16, bfloat16 or float32.
        pre_val: the value before this one, one element; written.
        min_val: the least value so far, one element; written.
        max_val: the greatest value so far, one element; written.
        val_counter: how many values there were, one integer.
        c_min_steps: from which `val_counter` on jumps are judged.
        c_thresh_l1: the largest value that is no fault.
        c_coeff_l1: the largest jump that is no fault.
        c_thresh_l2: the largest value without a warning.
        c_coeff_l2: the largest jump without a warning.

    Returns:
        0 normal, 1 fault, 2 warning, in the shape and dtype of `val_counter`.

    Differs from upstream:
        Its kernel is not public; what a value that is not finite does to the history is not known. Here it leaves it.
    """
    value = val.float().reshape(())
    history = tuple(part.float().reshape(()) for part in (pre_val, min_val, max_val))
    limits, jumps = (c_thresh_l1, c_thresh_l2), (c_coeff_l1, c_coeff_l2)
    found = _found(value, history, val_counter.reshape(()), c_min_steps, limits, jumps)
    _report("_npu_silent_check", found, value, history, input_grad, only_log=False)
    for part, moved in zip(
        (pre_val, min_val, max_val), _moved_on(value, history, first=False), strict=True
    ):
        part.fill_(moved)
    return torch.full_like(val_counter, found)


@_npu_silent_check.meta
def _(val_counter):
    return torch.empty_like(val_counter)


@_npu_silent_check.check
def _(input_grad, val, pre_val, min_val, max_val, val_counter):
    must.dtype("input_grad", input_grad, *_FLOATS)
    for name, tensor in (
        ("val", val),
        ("pre_val", pre_val),
        ("min_val", min_val),
        ("max_val", max_val),
    ):
        must.dtype(name, tensor, *_FLOATS)
        must.hold(tensor.numel() == 1, name, "of one element", tuple(tensor.shape), ErrCode.PARAM)
    must.dtype("val_counter", val_counter, torch.int32, torch.int64)
    one = val_counter.numel() == 1
    must.hold(one, "val_counter", "of one element", tuple(val_counter.shape), ErrCode.PARAM)


@npu_op(
    "_npu_silent_check_v2(Tensor val, Tensor(a!) input_grad, Tensor(b!) sfda, Tensor(c!) step, int c_min_steps, "
    "float c_thresh_l1, float c_coeff_l1, float c_thresh_l2, float c_coeff_l2, int npu_asd_detect) -> Tensor",
    chips=("A2", "A3"),
)
def _npu_silent_check_v2(
    val,
    input_grad,
    sfda,
    step,
    c_min_steps,
    c_thresh_l1,
    c_coeff_l1,
    c_thresh_l2,
    c_coeff_l2,
    npu_asd_detect,
):
    """`_npu_silent_check` with its history in one tensor, which also counts the steps.

    Args:
        val: the norm of a gradient, without dimensions; float16, bfloat16 or float32.
        input_grad: the gradient, float16, bfloat16 or float32; a fault that raises clears it.
        sfda: the value before this one, the least and the greatest so far, (3) float32; written.
        step: how many values there were, (1) int64; written.
        c_min_steps: from which step on jumps are judged.
        c_thresh_l1: the largest value that is no fault.
        c_coeff_l1: the largest jump that is no fault, in units of the range so far.
        c_thresh_l2: the largest value without a warning.
        c_coeff_l2: the largest jump without a warning.
        npu_asd_detect: 1 logs a fault and goes on; else it clears `input_grad` and raises.

    Returns:
        0 normal, 1 fault, 2 warning: (1) int32.

    Constraints:
        Atlas A2 and A3.

    Differs from upstream:
        Its kernel is not public. The first value is the least and the greatest so far, whatever `sfda` held; what a
        value that is not finite does to the history is not known, and here it leaves it.
    """
    if val.numel() == 0 or input_grad.numel() == 0:
        return torch.zeros_like(step, dtype=torch.int32)
    value, history = val.float(), tuple(sfda.clone())
    limits, jumps = (c_thresh_l1, c_thresh_l2), (c_coeff_l1, c_coeff_l2)
    found = _found(value, history, step[0], c_min_steps, limits, jumps)
    only_log = npu_asd_detect == LOG
    _report("_npu_silent_check_v2", found, value, history, input_grad, only_log)
    sfda.copy_(torch.stack(_moved_on(value, history, first=bool(step[0] == 0))))
    step.add_(1)
    return torch.full_like(step, found, dtype=torch.int32)


@_npu_silent_check_v2.meta
def _(step):
    return torch.empty_like(step, dtype=torch.int32)


@_npu_silent_check_v2.check
def _(val, input_grad, sfda, step):
    must.dtype("val", val, *_FLOATS)
    must.dtype("input_grad", input_grad, *_FLOATS)
    must.dtype("sfda", sfda, torch.float32)
    must.dtype("step", step, torch.int64)
    must.ndim("val", val, 0)
    must.shape("sfda", sfda, (3,))
    must.shape("step", step, (1,))


_LIMITS = (1e6, 1e5, 1e4, 5e3)


def _counter(make, value):
    return make(1, dtype=torch.int64, low=value, high=value + 1)


_npu_silent_check.samples = [
    Sample(
        lambda make: (
            make(3, 4),
            make(1, low=0, high=5),
            make(1),
            make(1, low=-9, high=-8),
            make(1, low=8, high=9),
            _counter(make, 7).int(),
            7,
            *_LIMITS,
        )
    )
]
_npu_silent_check_v2.samples = [
    Sample(
        lambda make, steps=steps, detect=detect: (
            make(1, low=0, high=5)[0],
            make(3, 4),
            make(3, low=1, high=9),
            _counter(make, steps),
            7,
            *_LIMITS,
            detect,
        )
    )
    for steps, detect in ((0, 1), (20, 2))
]
