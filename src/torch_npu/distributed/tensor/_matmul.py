"""Sharding of `aten.matmul` and its gradient, which DTensor meets whole on the card.

Here autograd takes them apart before DTensor sees them; in inference mode, and for programs that put a strategy of their own
around the registered one, they are there.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import register_sharding

from torch_npu._patch import Patches
from torch_npu.distributed.tensor._operators import placement
from torch_npu.ops import _sharding

_NAMES = ("first", "second")


def _ways(first: Any, second: Any) -> list[_sharding.Sharding]:
    nothing = _sharding.Sharding((None,), {})
    return [nothing, *_sharding.matmul(first.shape, second.shape, _NAMES)]


def _forward(self: Any, other: Any) -> list[tuple[list[Any], list[Any]]]:
    return [
        ([placement(way.outputs[0])], [placement(way.inputs.get(name)) for name in _NAMES])
        for way in _ways(self, other)
    ]


def _backward(grad: Any, self: Any, other: Any, mask: Any) -> list[tuple[list[Any], list[Any]]]:
    """The gradient of a factor is divided as the factor; that of a whole one is a sum over what the ranks have."""
    found = []
    for way in _ways(self, other):
        result = way.outputs[0]
        divided = isinstance(result, int)
        gradients = [
            placement(way.inputs.get(name, _sharding.SUM if divided else None)) for name in _NAMES
        ]
        given = placement(result) if divided else Replicate()
        found.append((gradients, [given, *(placement(way.inputs.get(n)) for n in _NAMES), None]))
    return found


def register(patches: Patches) -> None:
    aten = torch.ops.aten
    known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    for overload, sharding in (
        (aten.matmul.default, _forward),
        (aten.matmul_backward.default, _backward),
    ):
        register_sharding(overload)(sharding)
        patches.on_undo(functools.partial(known.__delitem__, overload))
