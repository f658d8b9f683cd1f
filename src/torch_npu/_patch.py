"""The only place that patches torch; every patch is recorded and can be undone."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

_MISSING = object()


class Patches:
    """Replacements in modules, classes and tables, which can be put back together."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._set: dict[tuple[int, str], tuple[Any, str, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Sets `owner.name`, remembers what stood there (inherited, or in the owner itself) and returns it."""
        seen = getattr(owner, name, None)
        own = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self._set[id(owner), name] = owner, name, value
        if own is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, own))
        return seen

    def replace_entry(self, table: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Sets `table[key]` and remembers what stood there."""
        before = table.get(key, _MISSING)
        table[key] = value
        if before is _MISSING:
            self._undo.append(lambda: table.__delitem__(key))
        else:
            self._undo.append(lambda: table.__setitem__(key, before))

    def on_undo(self, action: Callable[[], None]) -> None:
        """For what is neither an attribute nor an entry."""
        self._undo.append(action)

    def changed(self) -> list[tuple[Any, str, Any]]:
        """(owner, name, value) of attributes that were set here and that someone else has set since."""
        now = (
            (owner, name, vars(owner).get(name, value), value)
            for owner, name, value in self._set.values()
        )
        return [(owner, name, found) for owner, name, found, value in now if found is not value]

    def undo(self) -> None:
        """Puts back everything that was replaced, last first."""
        self._set.clear()
        while self._undo:
            self._undo.pop()()


def after_import(name: str, action: Callable[[ModuleType], None], patches: Patches) -> None:
    """Calls `action` with the module: now, if it is imported, or when it is, until the patches are undone."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    finder = _AfterImport(name, action)
    sys.meta_path.insert(0, finder)
    patches.on_undo(finder.leave)


class _AfterImport(MetaPathFinder):
    """Finds one module by the other finders, and calls an action after it ran."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name, self.action = name, action

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        self.leave()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self.action(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


#: what the device needs; other modules keep their own
_device = Patches()
replace = _device.replace
replace_entry = _device.replace_entry
undo = _device.undo
_applied = _device._undo


def _apply_patches(monkey_patches: Iterable[Sequence[Any]]) -> None:
    """Puts a program's own objects into torch: pairs of a dotted name below torch and what is to stand there."""
    import torch

    for name, value in monkey_patches:
        *path, last = name.split(".")
        _device.replace(functools.reduce(getattr, path, torch), last, value)


def apply() -> None:
    """All patches that the device needs."""
    _share_between_processes()
    _dlpack_device()
    _copies_keep_formats()
    _old_dropout()
    _distributed()
    _version_of_cann()
    _shapes_of_mixed_products()
    _libraries_of_the_card()


def _shapes_of_mixed_products() -> None:
    """Products of half and single precision are the device's; PyTorch's shape functions of batched ones refuse them."""

    def register(fake_impls: ModuleType) -> None:
        import torch

        from softnpu import _C

        for name, traits in _C.operator_traits().items():
            if traits["mixes_floats"]:
                overload = getattr(torch.ops.aten, name.removeprefix("aten::")).default
                replace_entry(fake_impls.op_implementations_dict, overload, _mixed_product)

    after_import("torch._subclasses.fake_impls", register, _device)


def _mixed_product(mode: Any, product: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    """A result of the first tensor's type, as the device gives it."""
    import torch

    types = {value.dtype for value in (first, *args) if isinstance(value, torch.Tensor)}
    if first is None or len(types) != 2 or torch.float32 not in types:
        return NotImplemented
    floats = {torch.float32, torch.float16, torch.bfloat16}
    if not types <= floats or first.device.type != "npu":
        return NotImplemented
    with mode:
        same = (v.to(first.dtype) if isinstance(v, torch.Tensor) else v for v in args)
        return product(first, *same, **kwargs)


def _libraries_of_the_card() -> None:
    """torch.ops.load_library finds what softnpu.kernels has in the place of a file that does not exist."""
    import torch

    from softnpu import kernels

    before = torch._ops._Ops.load_library

    def load_library(self: Any, path: Any) -> None:
        try:
            return before(self, path)
        except OSError as error:
            failure = error
        if not kernels.load_library(path):
            raise failure
        self.loaded_libraries.add(str(path))

    functools.update_wrapper(load_library, before)
    replace(torch._ops._Ops, "load_library", load_library)


def _version_of_cann() -> None:
    """torch.version.cann, beside torch.version.cuda; None without a device."""
    import torch

    from softnpu import settings

    chosen = settings.current()
    replace(torch.version, "cann", chosen.cann_version if chosen.enabled else None)


def _share_between_processes() -> None:
    """The pickler of `torch.multiprocessing` learns about NPU storages and tensors."""
    from torch.multiprocessing import reductions

    from torch_npu import _multiprocessing
    from torch_npu.multiprocessing.reductions import _npu_reduce_tensor

    replace(reductions, "reduce_tensor", _npu_reduce_tensor(reductions.reduce_tensor))
    for kind, reducer in _multiprocessing.REDUCERS.items():
        replace_entry(ForkingPickler._extra_reducers, kind, reducer)  # type: ignore[attr-defined]


def _dlpack_device() -> None:
    """torch knows PrivateUse1 by its old name only when it is asked for a tensor's DLPack device."""
    import torch
    from torch.overrides import has_torch_function_unary
    from torch.utils.dlpack import DLDeviceType

    before = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type == "npu" and not has_torch_function_unary(self):
            return DLDeviceType.kDLExtDev, self.device.index
        return before(self)

    replace(torch.Tensor, "__dlpack_device__", __dlpack_device__)


def _copies_keep_formats() -> None:
    """A deep copy of a storage has the storage format of the original."""
    import torch

    from softnpu import _C

    before = torch.UntypedStorage.__deepcopy__

    def __deepcopy__(self: torch.UntypedStorage, memo: Any) -> torch.UntypedStorage:
        copied = before(self, memo)
        if self.device.type == "npu":
            _C.copy_storage_format(self, copied)
        return copied

    replace(torch.UntypedStorage, "__deepcopy__", __deepcopy__)


def _distributed() -> None:
    """torch.distributed asks for backends by name in three places that hccl must pass."""
    import torch.distributed as dist

    from softnpu import _C

    if not (dist.is_available() and hasattr(_C, "hccl")):
        return
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.nn import functional

    from torch_npu._C import _distributed_c10d  # noqa: F401
    from torch_npu.distributed import _backend
    from torch_npu.distributed import distributed_c10d as ours

    _backend.register()
    barrier = ours.monitored_barrier(c10d.monitored_barrier)
    replace(c10d, "monitored_barrier", barrier)
    replace(dist, "monitored_barrier", barrier)
    group = dist.ProcessGroup
    number = ours.sequence_number(group._get_sequence_number_for_group)
    replace(group, "_get_sequence_number_for_group", number)
    gather = functional._AllGatherBase
    replace(gather, "backward", staticmethod(ours.all_gather_backward(gather.backward)))
    for name in ("is_hccl_available", "reinit_process_group"):
        replace(dist, name, getattr(ours, name))
    after_import("torch.distributed.tensor", _operators_on_dtensor, _device)


def _operators_on_dtensor(tensor: ModuleType) -> None:
    from torch_npu.distributed.tensor import install

    install(tensor, _device)


def _old_dropout() -> None:
    """`torch.nn.DropoutWithByteMask` and its function, which upstream once put there and now warns of."""
    import warnings

    import torch

    def module(*args: Any, **kwargs: Any) -> Any:
        from torch_npu.contrib.module import DropoutWithByteMask

        _moved("torch.nn.DropoutWithByteMask", "torch_npu.contrib.module.DropoutWithByteMask")
        return DropoutWithByteMask(*args, **kwargs)

    def function(*args: Any, **kwargs: Any) -> Any:
        from torch_npu.contrib.function import dropout_with_byte_mask

        name = "dropout_with_byte_mask"
        _moved(f"torch.nn.functional.{name}", f"torch_npu.contrib.function.{name}")
        return dropout_with_byte_mask(*args, **kwargs)

    def _moved(old: str, new: str) -> None:
        text = f"{old} is deprecated and will be removed in a future version. Use {new} instead."
        warnings.warn(text, stacklevel=3)

    replace(torch.nn, "DropoutWithByteMask", module)
    replace(torch.nn.functional, "dropout_with_byte_mask", function)
