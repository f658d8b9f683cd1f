"""Shape functions beside kernels: what FakeTensor states of an operator's results is what the device gives.

A graph is compiled for what its fake tensors state, so a kernel with results of another dtype or shape makes it read other
bytes than were written. `check(pair)` runs samples of the operator database with their gradients and compares every operator
that reaches the dispatcher.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.opinfo.compare import Pair, _call, _mine, _samples, tensors

SAMPLES = 2
#: operators whose results' sizes the data decides, or that say nothing of the device
_UNKNOWN = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}

#: operator -> why its shape function states something else
EXCUSED = {
    "aten._to_copy.default": "a cast to float64 gives float32 on the device and float64 in graphs",
    "aten.native_batch_norm.default": "statistics that only its gradient reads: those of PyTorch's CPU kernel",
    "aten._embedding_bag.default": "tables that only its gradient reads: those of PyTorch's CPU kernel",
}


class Compare(TorchDispatchMode):
    """Runs each operator a second time on fake tensors and keeps what differs."""

    def __init__(self) -> None:
        super().__init__()
        self.different: list[str] = []
        self.compared = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        plain = given and all(t.device.type == "npu" and t.layout == torch.strided for t in given)
        if (
            not plain
            or func._schema.is_mutable
            or _UNKNOWN & set(func.tags)
            or str(func) in EXCUSED
        ):
            return func(*args, **kwargs)
        stated = self._stated(func, args, kwargs)
        result = func(*args, **kwargs)
        for one, fake in zip(tensors(result), tensors(stated), strict=False):
            self.compared += 1
            real, said = _form(one), _form(fake)
            if real != said:
                self.different.append(f"{func}: gives {real}, its shape function says {said}")
        return result

    def _stated(self, func: Any, args: Any, kwargs: Any) -> Any:
        with FakeTensorMode() as mode:
            fakes = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            try:
                return func(*fakes[0], **fakes[1])
            except (
                RuntimeError,
                NotImplementedError,
            ):  # it needs the data, or takes no fake tensors at all
                return None


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.device.type


def check(pair: Pair) -> Compare:
    """What was compared in the first samples of the pair."""
    mode = Compare()
    gradients = pair.op.supports_autograd and pair.dtype in pair.op.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, sample in zip(range(SAMPLES), _samples(pair, requires_grad=gradients), strict=False):
            _run(pair, _mine(pair, (sample.input, sample.args, sample.kwargs)), mode)
    return mode


def _run(pair: Pair, arguments: Any, mode: Compare) -> None:
    try:
        with mode:
            results = list(_differentiable(_call(pair, arguments)))
            leaves = list(_differentiable(arguments))
            if results and leaves:
                ones = [torch.ones_like(one) for one in results]
                torch.autograd.grad(results, leaves, ones, allow_unused=True)
    except (AssertionError, NotImplementedError, RuntimeError):
        return  # not on this device, or not differentiable here: compare.py is about that


def _differentiable(value: Any) -> Iterator[torch.Tensor]:
    return (one for one in tensors(value) if one.requires_grad)
