"""torch_npu.dynamo: what torch.compile needs to know of the npu device; mirrors upstream's torch_npu.dynamo.

`torch_npu.dynamo.torchair` is torchair itself. torch._dynamo takes seconds to import, so nothing here imports it: the
device is made known to it when a program first imports it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from softnpu import torch_versions
from torch_npu._patch import Patches

_ALIAS = "torch_npu.dynamo.torchair"
#: what graph mode replaces in torch; the device's own patches come and go without these
patches = Patches()


def __getattr__(name: str) -> Any:
    if name == "torchair":
        return importlib.import_module(_ALIAS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _LazyModule(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str, real: str):
        super().__init__(name)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(importlib.import_module(self._real), name)


class _SameModule(importlib.abc.Loader):
    """Gives a module that is already imported under another name."""

    def __init__(self, module: ModuleType):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: Any) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


class _AndThen(importlib.abc.Loader):
    """Loads a module as it would be, and then does one thing more."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]):
        self.loader, self.then = loader, then

    def create_module(self, spec: Any) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.then(module)


class _Finder(importlib.abc.MetaPathFinder):
    """torch_npu.dynamo.torchair and everything in it, and the modules of dynamo that learn about the device."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == _ALIAS or name.startswith(_ALIAS + "."):
            module = importlib.import_module("torchair" + name[len(_ALIAS) :])
            return importlib.machinery.ModuleSpec(name, _SameModule(module), is_package=True)
        if name in _LEARNING:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _AndThen(spec.loader, _LEARNING[name])
            return spec
        return None


def _register_interface(module: ModuleType) -> None:
    from torch_npu.dynamo._interface import npu_interface

    interface = npu_interface(module.DeviceInterface)
    for device in ("npu", *(f"npu:{index}" for index in range(interface.device_count()))):
        module.register_interface_for_device(device, interface)


def _register_backends(registry: ModuleType) -> None:
    for name in ("npu", "npugraph_ex", "npugraphs"):
        registry.register_backend(_backend(name), name=name)


def _backend(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        backends = importlib.import_module("torchair._register")
        return getattr(backends, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


def _trace_is_npu(module: ModuleType) -> None:
    """`tensor.is_npu` is known while tracing, as `is_cuda` is."""
    build = module.VariableTracker.build

    def method_attr_is_npu(self: Any, tx: Any) -> Any:
        return None if self.device is None else build(tx, self.device.type == "npu")

    patches.replace(module.TensorVariable, "method_attr_is_npu", method_attr_is_npu)


def _trace_streams(module: ModuleType) -> None:
    """Streams and events of torch.npu go into graphs as torch.Stream does, where this torch can do that."""
    if not torch_versions.traces_streams():
        return
    kind = module.TorchInGraphFunctionVariable
    before = kind._get_handlers

    @functools.cache
    def _get_handlers() -> dict[Any, Callable[..., Any]]:
        streams = importlib.import_module("torch_npu.dynamo._streams")
        return before() | streams.handlers(sys.modules["torch._dynamo.variables"])

    patches.replace(kind, "_get_handlers", staticmethod(_get_handlers))


def _know_streams(trace_rules: ModuleType) -> None:
    if not torch_versions.traces_streams():
        return
    streams = importlib.import_module("torch_npu.dynamo._streams")
    for function in map(id, streams.functions()):
        trace_rules._allowed_callable_ids.add(function)
        patches.on_undo(functools.partial(trace_rules._allowed_callable_ids.remove, function))


_LEARNING: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.device_interface": _register_interface,
    "torch._dynamo.backends.registry": _register_backends,
    "torch._dynamo.variables.tensor": _trace_is_npu,
    "torch._dynamo.variables.torch": _trace_streams,
    "torch._dynamo.trace_rules": _know_streams,
}


def install() -> None:
    """Called once, when torch_npu is imported."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, learn in _LEARNING.items():
        if name in sys.modules:
            learn(sys.modules[name])
    _inductor()
    _npugraph_ex()


def _npugraph_ex() -> None:
    """torch.npu.npugraph_ex is a part of torchair."""
    from torch_npu import npu

    if not hasattr(npu, "npugraph_ex"):
        npu.npugraph_ex = _LazyModule("torch_npu.npu.npugraph_ex", "torchair.npugraph_ex")  # type: ignore[attr-defined]


def _inductor() -> None:
    """torch.compile without a backend: Inductor's own pipeline, with its last step on the host."""
    import torch

    wrapper = torch._TorchCompileInductorWrapper
    before = wrapper.__call__

    def __call__(self: Any, model_: Any, inputs_: Any, **options: Any) -> Any:
        if any(isinstance(v, torch.Tensor) and v.device.type == "npu" for v in inputs_) or (
            _makes_npu_tensors(model_)
        ):
            host = importlib.import_module("torchair._host.inductor")
            asked = options.get("config_patches") or {}  # handed over since torch 2.13
            return host.compile_fx(model_, inputs_, {**self.config, **asked})
        return before(self, model_, inputs_, **options)

    patches.replace(wrapper, "__call__", __call__)


def _makes_npu_tensors(model: Any) -> bool:
    """Whether a graph without npu inputs makes npu tensors itself."""
    import torch

    for node in model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ():
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.device.type == "npu":
            return True
    return False


install()
