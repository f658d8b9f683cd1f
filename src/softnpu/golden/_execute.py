"""Computes a recorded call here: an operator of a recording, an API or a module of msprobe's dump."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

import torch

from softnpu.golden import _values
from softnpu.golden._msprobe import Dump
from softnpu.golden._store import Recording

_METHODS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class Skip(Exception):
    """A call that cannot be computed here; `status` and the text say why."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


def operator(
    recording: Recording, call: dict[str, Any], device: str
) -> tuple[dict[str, torch.Tensor], Any]:
    """Results and written arguments, named as in the recording, and what the result is besides tensors."""
    function = _overload(call)
    args = _values.decode(call["args"], recording.tensor, device)
    kwargs = _values.decode({"dict": call["kwargs"]}, recording.tensor, device)
    draws = call.get("rng")
    if draws is not None:
        if draws["device"] != "cpu" and not recording.about["made_by"].get("emulated"):
            raise Skip("random", "a card draws other random numbers")
        state = recording.tensor({"tensor": draws["state"]})
        if draws["device"] == "cpu" or device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.npu.set_rng_state(state)
    result = function(*args, **kwargs)
    found = {f"output {name}".strip(): t for name, t in _values.named(result).items()}
    given = {**_values.named(list(args)), **_values.named(kwargs)}
    found.update({f"written {name}": given[name] for name in call["written"]})
    return found, _values.plain(_values.encode(result, lambda tensor: ""))


def _overload(call: dict[str, Any]) -> Callable[..., Any]:
    space, _, name = call["op"].partition("::")
    if space == "module":
        raise Skip("skipped", "modules are compared by softnpu diff, not computed")
    try:
        found = getattr(getattr(getattr(torch.ops, space), name), call["overload"] or "default")
    except AttributeError:
        found = None
    if not isinstance(found, torch._ops.OpOverload):  # torch.ops has functions of Python too
        raise Skip("missing", f"there is no operator {call['op']} here")
    _refuse_files(call["op"], found)
    return found


def _refuse_files(name: str, found: torch._ops.OpOverload) -> None:
    """A recording names the operators that are called: none of them may open a file of its choice."""
    if any(argument.name == "filename" for argument in found._schema.arguments):
        raise Skip("failed", f"{name} opens files, and a recording may not")


class Api:
    """Calls of a dump. `model` is asked for the modules of the dump, by their path."""

    def __init__(self, dump: Dump, device: str, model: Any = None) -> None:
        self.dump, self.device, self.model = dump, device, model

    def compute(self, call: dict[str, Any]) -> dict[str, torch.Tensor]:
        if call["why"]:
            raise Skip("skipped", call["why"])
        result = self._backward(call) if call["phase"] == "backward" else self._forward(call)[0]
        if isinstance(result, torch.Tensor):
            result = (result,)
        return {f"output {name}".strip(): t for name, t in _values.named(result).items()}

    def _decoded(self, call: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args = _values.decode(call["args"], self.dump.tensor, self.device)
        kwargs = _values.decode({"dict": call["kwargs"]}, self.dump.tensor, self.device)
        if call["path"] in ("__getitem__", "__setitem__"):
            args = [tuple(a) if isinstance(a, list) else a for a in args]
        return args, kwargs

    def _forward(self, call: dict[str, Any], differentiate: bool = False) -> tuple[Any, list[Any]]:
        args, kwargs = self._decoded(call)
        if differentiate:
            for entry, value in zip(call["args"], args):
                if isinstance(entry, dict) and entry.get("requires_grad"):
                    value.requires_grad_()
            args = [a.view_as(a) if torch.is_tensor(a) and a.requires_grad else a for a in args]
            leaves = [a._base if torch.is_tensor(a) and a._base is not None else a for a in args]
        else:
            leaves = args
        function = self._module(call) if call["kind"] == "Module" else _function(call)
        with torch.set_grad_enabled(differentiate):
            return function(*args, **kwargs), leaves

    def _backward(self, call: dict[str, Any]) -> list[Any]:
        """The gradients of the positional arguments, None for those that have none."""
        name = call["name"]
        forward = self.dump.by_name.get(name.replace(".backward", ".forward"))
        if forward is None or forward["why"]:
            raise Skip("skipped", f"the dump has no forward of {name} to differentiate")
        result, args = self._forward(forward, differentiate=True)
        outputs = [t for t in _values.named(result).values()]
        given = _values.decode(call["args"], self.dump.tensor, self.device)
        pairs = [(o, g) for o, g in zip(outputs, given) if o.requires_grad and torch.is_tensor(g)]
        wanted = [a for a in args if torch.is_tensor(a) and a.requires_grad]
        if not pairs or not wanted:
            raise Skip("skipped", f"nothing that {name} differentiates is in the dump")
        grads = torch.autograd.grad(
            [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
        )
        by_id = {id(a): g for a, g in zip(wanted, grads)}
        return [by_id.get(id(a)) for a in args]

    def _module(self, call: dict[str, Any]) -> Callable[..., Any]:
        path, _, kind = call["path"].rpartition(".")
        parameters = {
            name: self.dump.tensor(entry).to(self.device)
            for name, entry in _values.tensors({"dict": call["parameters"]})
        }
        if self.model is None:
            return _known_module(kind, parameters)
        try:
            module = self.model.get_submodule(path)
        except AttributeError:
            raise Skip("missing", f"the model has no module {path}") from None
        if type(module).__name__ != kind:
            found = type(module).__name__
            raise Skip("missing", f"{path} is a {kind} in the dump, a {found} in the model")
        return lambda *a, **k: torch.func.functional_call(module, parameters, a, k)


def _known_module(kind: str, parameters: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """Modules that their parameters describe; others have settings that a dump does not hold."""
    plain = torch.nn.functional
    if kind == "Linear":
        return lambda x: plain.linear(x, parameters["weight"], parameters.get("bias"))
    if kind == "Embedding":
        return lambda x: plain.embedding(x, parameters["weight"])
    if kind in ("ReLU", "SiLU", "Sigmoid", "Tanh", "Identity"):
        return getattr(torch.nn, kind)()
    raise Skip("skipped", f"the settings of a {kind} are not in the dump: --model gives the model")


def _function(call: dict[str, Any]) -> Callable[..., Any]:
    """The function that a dump names. The name comes from a file: what is no operator of PyTorch's or ours is not called."""
    kind, path = call["kind"], call["path"]
    homes: dict[str, Any] = {
        "Functional": torch.nn.functional,
        "Torch": torch,
        "Tensor": torch.Tensor,
        "VF": torch._VF,
        "Aten": torch.ops.aten,
        "NPU": torch.ops.npu,
    }
    if kind not in homes:
        raise Skip("skipped", f"{kind} is not a kind of API that this softnpu knows")
    found: Any = homes[kind]
    for word in path.split("."):
        found = getattr(found, word, None)
    if kind in ("Aten", "NPU"):
        packet = isinstance(found, torch._ops.OpOverloadPacket)
        known = packet or isinstance(found, torch._ops.OpOverload)
        for one in [getattr(found, name) for name in found.overloads()] if packet else [found]:
            if known:
                _refuse_files(call["op"], one)
    else:
        known = _is_operator(kind, path, found)
    if not known:
        raise Skip("missing", f"there is no {kind} API {path} here")
    if kind == "NPU":  # by its public name, where it has one
        return getattr(importlib.import_module("torch_npu"), path, found)
    return found


@functools.cache
def _overridable() -> frozenset[Any]:
    return frozenset(torch.overrides.get_testing_overrides())


def _is_operator(kind: str, path: str, found: Any) -> bool:
    """Whether it is one of PyTorch's functions on tensors: torch, for one, also has os, hub and load."""
    if kind == "Tensor":
        methods = (*vars(torch.Tensor), *vars(torch._C.TensorBase))
        return path in methods and isinstance(found, _METHODS)
    if isinstance(found, types.BuiltinFunctionType):
        name = found.__name__
        plain = getattr(torch._C._VariableFunctions, name, None) == found
        return name != "from_file" and (plain or found in _overridable())
    return isinstance(found, types.FunctionType) and found in _overridable()
