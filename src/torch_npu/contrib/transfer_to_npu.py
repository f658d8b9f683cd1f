"""Runs programs written for CUDA on the NPU, unchanged. Mirrors torch_npu/contrib/transfer_to_npu.py.

    import torch
    import torch_npu
    from torch_npu.contrib import transfer_to_npu

Importing the module switches it on: `torch.cuda.*` are the functions of `torch.npu`, `.cuda()` is `.npu()`, `"cuda"`
and `torch.device("cuda")` mean the NPU wherever a device is taken, the backend `nccl` is `hccl`, and `torch.jit.script`
leaves functions as they are. `disable()` puts torch back as it was, `enable()` switches on again.

Differs from upstream: it can be switched off; only whole device names are translated (a file called "cuda.pt" is not
renamed); patches of Inductor's internals are left out, since there is no Triton here.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.utils.cpp_extension
from torch.autograd import profiler_util
from torch.utils import _device

import torch_npu
from torch_npu._patch import Patches
from torch_npu.contrib import _cuda_libraries
from torch_npu.contrib import _cuda_words as words
from torch_npu.npu import amp

__all__: list[str] = []

#: functions of torch that take a device beside its constructors
_FUNCTIONS = (
    "empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
    "load", "set_default_device", "get_device_module", "_pin_memory",
)  # fmt: skip
_TENSOR_METHODS = (
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros", "pin_memory",
)  # fmt: skip
_PRIVATE = ("_get_device_index", "_is_in_bad_fork", "_lazy_call", "_lazy_init", "_sleep")

_patches = Patches()
_native = torch.ones  # one of the functions that are replaced


def enable() -> None:
    """Switches the translation on; nothing happens if it is on."""
    if not _patches:
        _announce()
        _apply()


def _apply() -> None:
    _device._device_constructors()  # cached now: torch compares with the functions as they were
    real = torch.cuda.is_available
    _patch_cuda()
    _patch_torch()
    _patch_tensors_and_modules()
    _patch_distributed()
    _patch_profiler()
    _patches.replace(torch, "compile", _compiling(torch.compile))
    _patches.replace(torch.jit, "script", _as_it_is)
    _patches.replace(torch.jit, "script_method", _as_it_is)
    _wrap(torch.utils.cpp_extension, ["include_paths"], words.with_npu_devices)
    for owner, name in list(_cuda_libraries.found()):
        _wrap(owner, [name], _cuda_libraries.seeing(real))


def disable() -> None:
    """Puts torch back as it was."""
    _patches.undo()
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and _native not in rules.get_torch_obj_rule_map():
        rules.clear_lru_cache()


def _announce() -> None:
    warnings.warn(
        "transfer_to_npu: torch.cuda.* are torch.npu.* now, .cuda() is .npu(), cuda devices are NPUs and the backend "
        "nccl is hccl; torch.cuda.DoubleTensor is torch.npu.FloatTensor.",
        ImportWarning,
        stacklevel=3,
    )
    warnings.warn(
        "torch.jit.script and torch.jit.script_method will be disabled by transfer_to_npu, which currently does not "
        "support them.",
        RuntimeWarning,
        stacklevel=3,
    )


def _wrap(owner: Any, names: Iterable[str], wrapper: Callable[..., Any], **options: Any) -> None:
    for name in names:
        if hasattr(owner, name):
            _patches.replace(owner, name, wrapper(getattr(owner, name), **options))


def _module(name: str, replacement: types.ModuleType) -> None:
    """Puts a module in the place of a submodule of torch, for `import` statements too."""
    owner, _, last = name.rpartition(".")
    _patches.replace(sys.modules[owner], last, replacement)
    _patches.replace_entry(sys.modules, name, replacement)


def _patch_cuda() -> None:
    """torch.cuda and its submodules: the names that torch.npu has."""
    npu, cuda = torch_npu.npu, torch.cuda
    for name in [n for n in vars(npu) if not n.startswith("_")] + list(_PRIVATE):
        thing = getattr(npu, name)
        if isinstance(thing, types.ModuleType):
            continue
        if isinstance(thing, types.FunctionType):
            thing = words.with_npu_devices(thing)
        _patches.replace(cuda, name, thing)
    _patches.replace(cuda, "DoubleTensor", vars(npu)["FloatTensor"])
    if hasattr(npu, "NPUGraph"):
        _patches.replace(cuda, "CUDAGraph", npu.NPUGraph)
    if hasattr(npu, "NPUPluggableAllocator"):
        _patches.replace(cuda, "CUDAPluggableAllocator", npu.NPUPluggableAllocator)
    _wrap(npu.device, ["__init__"], words.with_npu_devices)
    for name in ("_record_memory_history", "_snapshot", "_dump_snapshot"):
        thing = getattr(npu.memory, name)
        _patches.replace(cuda.memory, name, words.with_npu_devices(thing))
    for name in [n for n in cuda.memory.__all__ if hasattr(npu.memory, n)]:
        _patches.replace(cuda.memory, name, getattr(cuda, name, getattr(npu.memory, name)))
    for name in [n for n in cuda.random.__all__ if hasattr(npu.random, n)]:
        _patches.replace(cuda.random, name, getattr(cuda, name, getattr(npu.random, name)))
    for name in [n for n in cuda.amp.__all__ if hasattr(amp, n)]:
        _patches.replace(cuda.amp, name, getattr(amp, name))
    for name in ("autocast_mode", "common", "grad_scaler"):
        _module(f"torch.cuda.amp.{name}", getattr(amp, name))
    _patches.replace(torch._C, "_host_emptyCache", torch_npu._C._npu_hostEmptyCache)


def _patch_torch() -> None:
    """Functions and classes of torch that take a device."""
    constructors = {f.__name__ for f in _device._device_constructors()}
    made_here = [n for n in constructors if n in vars(torch)]
    _wrap(torch, [*made_here, *_FUNCTIONS], words.with_npu_devices)
    _wrap(torch.fft, ["fftfreq", "rfftfreq"], words.with_npu_devices)
    for name in ("Generator", "Event"):
        _patches.replace(torch, name, words.standing_for(getattr(torch, name)))
    _wrap(torch.UntypedStorage, ["__new__"], words.with_npu_devices)
    _patches.replace(torch.TypedStorage, "is_cuda", vars(torch.TypedStorage)["is_npu"])
    _wrap(_device.DeviceContext, ["__init__"], words.with_npu_devices)
    _wrap(torch.amp.autocast_mode.autocast, ["__init__"], words.with_npu_devices)
    _wrap(torch.amp.GradScaler, ["__init__"], words.with_default_device)
    _wrap(profiler_util.Kernel, ["__new__"], words.with_npu_devices)
    _patches.replace(torch._utils, "_get_available_device_type", lambda: "npu")


def _patch_tensors_and_modules() -> None:
    tensor: Any = torch.Tensor  # with the methods that the device adds
    module: Any = torch.nn.Module
    _wrap(tensor, _TENSOR_METHODS, words.with_npu_devices)
    _wrap(tensor, ["to"], words.with_npu_devices, numbers=True)
    _wrap(tensor, ["type"], words.with_npu_types)
    _patches.replace(tensor, "cuda", words.with_npu_devices(tensor.npu))
    _patches.replace(tensor, "is_cuda", tensor.is_npu)
    _wrap(module, ["to", "to_empty"], words.with_npu_devices, numbers=True)
    _patches.replace(module, "cuda", words.with_npu_devices(module.npu))
    _wrap(torch.nn.parallel.DistributedDataParallel, ["__init__"], words.with_npu_devices)


def _patch_distributed() -> None:
    distributed = torch.distributed
    if not distributed.is_available():
        return
    c10d = distributed.distributed_c10d

    def both(function: Callable[..., Any]) -> Callable[..., Any]:
        return words.with_hccl(words.with_npu_devices(function))

    _wrap(distributed, ["init_process_group", "new_group"], both)
    _patches.replace(c10d, "init_process_group", distributed.init_process_group)
    _wrap(c10d, ["_new_group_with_tag"], words.with_hccl)
    _wrap(distributed.ProcessGroup, ["_get_backend"], words.with_npu_devices)
    _wrap(distributed.device_mesh.DeviceMesh, ["__init__"], words.with_npu_devices)
    _wrap(distributed.device_mesh, ["init_device_mesh"], words.with_npu_devices)
    _patches.replace(distributed, "init_device_mesh", distributed.device_mesh.init_device_mesh)
    _wrap(distributed.fsdp.FullyShardedDataParallel, ["__init__"], words.with_npu_devices)
    hccl = getattr(distributed, "is_hccl_available", None) or (
        lambda: hasattr(distributed.Backend, "HCCL")
    )
    _patches.replace(distributed, "is_nccl_available", hccl)
    _del_nccl_device_backend_map()
    group = getattr(getattr(torch_npu._C, "_distributed_c10d", None), "ProcessGroupHCCL", None)
    if group is not None:
        _patches.replace(distributed, "ProcessGroupNCCL", group)
        _patches.replace(c10d, "ProcessGroupNCCL", group)


def _del_nccl_device_backend_map() -> None:
    """A device mesh finds no backend for the device type `cuda`."""
    table = getattr(torch.distributed.Backend, "default_device_backend_map", {})
    if "cuda" in table:
        backend = table.pop("cuda")
        _patches.on_undo(lambda: table.__setitem__("cuda", backend))


def _patch_profiler() -> None:
    """torch.profiler as torch_npu.profiler, where that is there."""
    ours = getattr(torch_npu, "profiler", None)
    if ours is None or not hasattr(ours, "profile"):
        return
    for name in ("schedule", "tensorboard_trace_handler", "ProfilerAction"):
        _patches.replace(torch.profiler, name, getattr(ours, name))
    _patches.replace(torch.profiler, "profile", _wrapper_profiler(ours.profile))
    _patches.replace(torch.profiler.ProfilerActivity, "CUDA", ours.ProfilerActivity.NPU)
    _patches.replace(torch.profiler.ProfilerActivity, "CPU", ours.ProfilerActivity.CPU)


def _wrapper_profiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without the experimental configuration of CUDA's profiler."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("experimental_config")
        if given is not None and not isinstance(given, torch_npu.profiler._ExperimentalConfig):
            logging.warning(
                "transfer_to_npu takes experimental_config out of torch.profiler.profile: it is CUDA's. Use "
                "torch_npu.profiler._ExperimentalConfig."
            )
            del kwargs["experimental_config"]
        return function(*args, **kwargs)

    return run


def _compiling(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile`, which must have seen torch's own functions: it finds them once, by their names.

    What the program has put in the place of a translated function (`torch.cuda.is_available = ...`) stays.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo import trace_rules

        if _native not in trace_rules.get_torch_obj_rule_map():
            changed = _patches.changed()
            _patches.undo()
            trace_rules.clear_lru_cache()
            trace_rules.get_torch_obj_rule_map()
            _apply()
            for owner, name, value in changed:
                setattr(owner, name, value)
        return function(*args, **kwargs)

    return run


def _as_it_is(obj: Any, *args: Any, **kwargs: Any) -> Any:
    """For scripting, which would compile the translating functions themselves."""
    return obj


# the names under which upstream's own helpers are known
_wrapper_cuda = words.with_npu_devices
_wrapper_hccl = words.with_hccl
_wrapper_libraries_func = _cuda_libraries.seeing(torch.cuda.is_available)

enable()
