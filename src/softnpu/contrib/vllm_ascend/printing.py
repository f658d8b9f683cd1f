"""Printing of `_C_ascend`: what a stream prints when it comes to it; a replayed graph prints again."""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op

__all__ = ["device_print", "device_print_tensor"]

_EVERYWHERE = "CompositeExplicitAutograd"


@ascend_op("_print(Tensor tensor, str? msg) -> ()")
def _print(tensor, msg):
    """The device task. It reads values: a graph replays what other kernels launch, without Python."""
    values = str(tensor)
    print(values if msg is None else msg, flush=True)


@ascend_op("device_print(str msg) -> ()", key=_EVERYWHERE, direct=True)
def device_print(msg):
    """Prints the message."""
    _print(torch.zeros(1, device="npu"), msg)


@ascend_op("device_print_tensor(Tensor tensor) -> ()", key=_EVERYWHERE, direct=True)
def device_print_tensor(tensor):
    """Prints the values as Python does; those of a host tensor as they are now."""
    if tensor.device.type == "cpu":
        device_print(str(tensor))
    else:
        _print(tensor, None)


for operator in (_print, device_print, device_print_tensor):
    operator.meta(lambda: None)
