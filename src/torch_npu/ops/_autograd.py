"""Gradients and autocast of operators: what lies above the device kernel.

The dispatcher comes here for a gradient alone; csrc/torch/python_autograd.cpp goes past when none is tracked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch._C import DispatchKey

from softnpu import _C
from torch_npu.ops._operator import Operator, bind, library, mutable_arguments, spread


class _Call:
    """One call of an operator, with its tensors taken out so that autograd sees them all."""

    def __init__(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.values = bind(operator, args, kwargs)
        self.places: list[tuple[str, int | None]] = []  # (argument, index in its list)
        self.tensors: list[torch.Tensor] = []
        for name, value in self.values.items():
            if isinstance(value, torch.Tensor):
                self.places.append((name, None))
                self.tensors.append(value)
            elif isinstance(value, (list, tuple)):
                for index, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        self.places.append((name, index))
                        self.tensors.append(item)

    def filled(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, with these tensors in the places of the original ones."""
        values = self.values.copy()
        fresh: dict[str, list[Any]] = {}
        for (name, index), tensor in zip(self.places, tensors, strict=True):
            if index is None:
                values[name] = tensor
                continue
            if name not in fresh:
                fresh[name] = values[name] = list(values[name])
            fresh[name][index] = tensor
        return values


def register_autograd(operator: Operator, backward: Callable[..., dict[str, Any]]) -> None:
    """`backward(ctx, *grads) -> {"argument": gradient}`.

    `ctx.args` holds the arguments by name and `ctx.outputs` the results; `saves` on the class (names of
    tensor arguments, and "output:<i>") limits what is kept alive, the default is every tensor argument.
    `non_differentiable` lists the outputs that carry no gradient though they are floating.
    `ctx.needs` tells by name which gradients are asked for. The gradient of a tensor list is a list.
    """
    saves = getattr(operator.definition, "saves", None)
    constant = getattr(operator.definition, "non_differentiable", ())
    mutable = mutable_arguments(operator.schema)

    class Differentiate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, keyset: Any, *tensors: Any) -> Any:
            values = call.filled(tensors)
            result = _below_autograd(operator, keyset, values, mutable)
            outputs = result if isinstance(result, (tuple, list)) else (result,)
            keep = [
                t
                for (name, _), t in zip(call.places, tensors, strict=True)
                if saves is None or name in saves
            ]
            wanted = [i for i in range(len(outputs)) if f"output:{i}" in (saves or ())]
            keep += [outputs[i] for i in wanted]
            fixed = [
                t
                for i, t in enumerate(outputs)
                if _is_tensor(t) and (i in constant or not t.is_floating_point())
            ]
            ctx.mark_non_differentiable(*fixed)
            if mutable:
                ctx.mark_dirty(*(values[n] for n in mutable if _is_tensor(values[n])))
            ctx.call, ctx.wanted, ctx.outputs = (
                call,
                wanted,
                [None if _is_tensor(o) else o for o in outputs],
            )
            ctx.set_materialize_grads(True)
            ctx.save_for_backward(*keep)
            call.tensors, call.values = [], call.filled([None] * len(tensors))
            return tuple(result) if isinstance(result, list) else result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            call, saved = ctx.call, list(ctx.saved_tensors)
            tensors = [
                saved.pop(0) if saves is None or name in saves else None for name, _ in call.places
            ]
            outputs = list(ctx.outputs)
            for index in ctx.wanted:
                outputs[index] = saved.pop(0)
            needs: dict[str, bool] = {}
            for (name, _), need in zip(call.places, ctx.needs_input_grad[2:], strict=True):
                needs[name] = needs.get(name, False) or need
            view = SimpleNamespace(
                args=SimpleNamespace(**call.filled(tensors)), outputs=outputs, needs=needs
            )
            found = backward(view, *grads)
            chosen = []
            for (name, index), need in zip(call.places, ctx.needs_input_grad[2:], strict=True):
                gradient = found.get(name) if need else None
                chosen.append(gradient if index is None or gradient is None else gradient[index])
            return None, None, *chosen

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        call = _Call(operator, args, kwargs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors):
            return Differentiate.apply(call, keyset, *call.tensors)
        return _below_autograd(operator, keyset, call.values, mutable)

    library.impl(operator.name, run, "Autograd", with_keyset=True)
    _C.differentiate_on_demand(operator.schema.name, operator.schema.overload_name)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _below_autograd(
    operator: Operator, keyset: Any, values: dict[str, Any], mutable: Sequence[str]
) -> Any:
    args, kwargs = spread(operator, values)
    with torch._C._AutoDispatchBelowAutograd():
        result = operator.overload.redispatch(
            keyset & torch._C._after_autograd_keyset, *args, **kwargs
        )
    for name in mutable:
        if _is_tensor(values[name]):
            torch.autograd.graph.increment_version(values[name])
    return result


def autocast(operator: Operator, policy: str) -> Callable[..., Any]:
    """`autocast = "lower" | "fp32" | "promote"` on a class: the documented list the operator is on."""
    off = torch._C.DispatchKeySet(DispatchKey.AutocastPrivateUse1)

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args, *kwargs.values()) if _castable(t)]
        if policy == "lower":
            to = torch.get_autocast_dtype("npu")
        elif policy == "fp32" or any(t.dtype == torch.float32 for t in tensors):
            to = torch.float32
        else:
            to = torch.get_autocast_dtype("npu")
        with torch._C._ExcludeDispatchKeyGuard(off):
            return operator.overload(
                *(_cast(a, to) for a in args), **{k: _cast(v, to) for k, v in kwargs.items()}
            )

    return run


def _castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "npu"
        and value.dtype in (torch.float16, torch.bfloat16, torch.float32)
    )


def _cast(value: Any, to: torch.dtype) -> Any:
    return value.to(to) if _castable(value) else value
