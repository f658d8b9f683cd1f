"""Gradients and autocast of operators: what lies above the device kernel.

The dispatcher comes here for a gradient alone: the C++ kernel in front (python_autograd.cpp) asks whether one is tracked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from softnpu import _C
from torch_npu.ops._operator import Operator, library_of
from torch_npu.ops._signatures import parameters


class _Saved(NamedTuple):
    """What `backward` reads, by the names of its keyword-only parameters."""

    arguments: frozenset[str]
    outputs: tuple[int, ...]
    all_results: bool
    needs: bool


def _reads(operator: Operator, backward: Callable[..., Any]) -> _Saved:
    positional = backward.__code__.co_argcount
    names, rest = parameters(backward)
    named = names[positional:]
    count = len(operator.schema.returns)
    outputs = tuple(i for i in range(count) if f"result{i}" in named)
    special = {"needs", "results", *(f"result{i}" for i in outputs)} - set(operator.arguments)
    unknown = [n for n in named if n not in operator.arguments and n not in special]
    if unknown or backward.__kwdefaults__:
        raise TypeError(
            f"backward of {operator.name}: keyword-only parameters are arguments of the schema, result0 to "
            f"result{count - 1}, results and needs, without defaults; received {', '.join(unknown) or named}"
        )
    gradients = count
    if operator.output_differentiability is not None:
        gradients = sum(operator.output_differentiability)
    takes_any = backward.__code__.co_flags & inspect.CO_VARARGS
    if positional > gradients or not takes_any and positional < gradients:
        raise TypeError(
            f"backward of {operator.name}: takes {positional} gradients for {gradients} outputs"
        )
    every = "results" in special & set(named)
    return _Saved(
        frozenset(operator.arguments) if rest else frozenset(n for n in named if n not in special),
        tuple(range(count)) if every else outputs,
        every,
        "needs" in named and "needs" in special,
    )


class _Call:
    """One call of an operator, with its tensors taken out so that autograd sees them all."""

    def __init__(self, operator: Operator, values: tuple[Any, ...]) -> None:
        self.values = list(values)
        self.places: list[tuple[int, int | None]] = []  # (argument, index in its list)
        self.tensors: list[torch.Tensor] = []
        for argument, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                self.places.append((argument, None))
                self.tensors.append(value)
            elif isinstance(value, (list, tuple)):
                for index, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        self.places.append((argument, index))
                        self.tensors.append(item)

    def filled(self, tensors: Sequence[Any]) -> list[Any]:
        """All arguments, with these tensors in the places of the original ones."""
        values = self.values.copy()
        fresh: dict[int, list[Any]] = {}
        for (argument, index), tensor in zip(self.places, tensors, strict=True):
            if index is None:
                values[argument] = tensor
                continue
            if argument not in fresh:
                fresh[argument] = values[argument] = list(values[argument])
            fresh[argument][index] = tensor
        return values


def register_autograd(operator: Operator, backward: Callable[..., dict[str, Any]]) -> None:
    """See `Operator.backward` for what `backward` takes and returns."""
    reads = _reads(operator, backward)
    saved_arguments = [name in reads.arguments for name in operator.arguments]
    differentiable = operator.output_differentiability

    def _wants(output: int) -> bool:
        return differentiable is None or differentiable[output]

    class Differentiate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, keyset: Any, *tensors: Any) -> Any:
            values = call.filled(tensors)
            result = _below_autograd(operator, keyset, values)
            outputs = result if isinstance(result, (tuple, list)) else (result,)
            keep = [t for (a, _), t in zip(call.places, tensors, strict=True) if saved_arguments[a]]
            # An output that is no tensor is kept beside the tensors.
            ctx.plain = {i: outputs[i] for i in reads.outputs if not _is_tensor(outputs[i])}
            keep += [outputs[i] for i in reads.outputs if i not in ctx.plain]
            ctx.mark_non_differentiable(
                *(
                    t
                    for i, t in enumerate(outputs)
                    if _is_tensor(t) and not (t.is_floating_point() and _wants(i))
                )
            )
            if operator.mutable:
                written = zip(operator.arguments, values, strict=True)
                ctx.mark_dirty(*(v for n, v in written if n in operator.mutable and _is_tensor(v)))
            ctx.set_materialize_grads(True)
            ctx.save_for_backward(*keep)
            call.tensors, call.values = [], call.filled([None] * len(tensors))
            ctx.call = call
            return tuple(result) if isinstance(result, list) else result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            call, saved = ctx.call, iter(ctx.saved_tensors)
            tensors = [next(saved) if saved_arguments[a] else None for a, _ in call.places]
            values = dict(zip(operator.arguments, call.filled(tensors), strict=True))
            given = {name: value for name, value in values.items() if name in reads.arguments}
            outputs = {i: ctx.plain[i] if i in ctx.plain else next(saved) for i in reads.outputs}
            if reads.all_results:
                given["results"] = [outputs[i] for i in reads.outputs]
            else:
                given.update((f"result{i}", value) for i, value in outputs.items())
            wanted = ctx.needs_input_grad[2:]
            if reads.needs:
                given["needs"] = dict.fromkeys(operator.arguments, False)
                for (a, _), need in zip(call.places, wanted, strict=True):
                    given["needs"][operator.arguments[a]] |= need
            grads = tuple(g for i, g in enumerate(grads) if _wants(i))
            found = backward(*grads, **given)
            chosen = []
            for (a, index), need in zip(call.places, wanted, strict=True):
                gradient = found.get(operator.arguments[a]) if need else None
                chosen.append(gradient if index is None or gradient is None else gradient[index])
            return None, None, *chosen

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        call = _Call(operator, operator.bind(args, kwargs))
        return Differentiate.apply(call, keyset, *call.tensors)

    library_of(operator.namespace).impl(operator.local, run, "Autograd", with_keyset=True)
    _C.differentiate_on_demand(operator.schema.name, operator.schema.overload_name)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _below_autograd(operator: Operator, keyset: Any, values: Sequence[Any]) -> Any:
    args, kwargs = operator.spread(values)
    with torch._C._AutoDispatchBelowAutograd():
        result = operator.overload.redispatch(
            keyset & torch._C._after_autograd_keyset, *args, **kwargs
        )
    for name, value in zip(operator.arguments, values, strict=True):
        if name in operator.mutable and _is_tensor(value):
            torch.autograd.graph.increment_version(value)
    return result


def register_autocast(operator: Operator, policy: str) -> None:
    """`autocast="lower" | "fp32" | "promote"`: the documented list that the operator is on."""
    off = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))

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

    library_of(operator.namespace).impl(operator.local, run, "AutocastPrivateUse1")


def _castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "npu"
        and value.dtype in (torch.float16, torch.bfloat16, torch.float32)
    )


def _cast(value: Any, to: torch.dtype) -> Any:
    return value.to(to) if _castable(value) else value
