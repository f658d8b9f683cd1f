"""The launch of an interpreted kernel: npu tensors go in as host tensors on the same bytes, nothing is copied."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

from softnpu.triton import references


def patch(module: Any) -> None:
    """Wraps GridExecutor and the methods of tensors of triton.runtime.interpreter; twice does nothing."""
    executor = module.GridExecutor
    if hasattr(executor.__call__, "__wrapped__"):
        return
    executor.__call__ = _launch(executor.__call__)
    executor._restore_args_dev = _restore(executor._restore_args_dev)
    if hasattr(module, "_patch_lang_tensor"):
        module._patch_lang_tensor = _indexed(module._patch_lang_tensor)


def _launch(before: Any) -> Any:
    @functools.wraps(before)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        _restore_gluon()
        if not any(_is_npu(value) for value in [*args, *kwargs.values()]):
            return before(self, *args, **kwargs)
        from softnpu import _C

        reference = references.find(self.fn)

        def run(*inside: Any, **named: Any) -> None:
            if reference is None or not _run_reference(reference, self, inside, named):
                before(self, *inside, **named)

        # Numbers and descriptors pass as they are; a capture records the call, since a kernel works on addresses.
        return _C.run_kernel(f"triton::{self.fn.__name__}", run, args, kwargs)

    return __call__


def _indexed(before: Any) -> Any:
    """A number is an array of one element, which NumPy 2.4 and later do not take for an index; Triton before 3.7 asks so."""

    @functools.wraps(before)
    def patch_tensor(tensor: Any, *scope: Any) -> None:
        before(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return patch_tensor


def _run_reference(reference: Any, launch: Any, args: Any, kwargs: Any) -> bool:
    """Whether it took the call. Settings of the launch (num_warps and the like) are dropped, as the interpreter does."""
    signature = inspect.signature(launch.fn)
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **known)
    bound.apply_defaults()
    grid = launch.grid(bound.arguments) if callable(launch.grid) else launch.grid
    return reference(grid, **bound.arguments) is not NotImplemented


def _restore_gluon() -> None:
    """Triton reads types of its gluon at a launch; programs for triton-ascend, which has none, put empty modules there."""
    stub = sys.modules.get("triton.experimental.gluon")
    if stub is None or hasattr(stub, "__path__"):
        return
    for name in [n for n in sys.modules if n.startswith("triton.experimental.gluon")]:
        del sys.modules[name]
    importlib.import_module("triton.experimental.gluon")


def _restore(before: Any) -> Any:
    @functools.wraps(before)
    def _restore_args_dev(
        self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any
    ) -> Any:
        args_dev = [_changed(dev, hst) for dev, hst in zip(args_dev, args_hst, strict=True)]
        kwargs = {key: _changed(dev, kwargs_hst[key]) for key, dev in kwargs.items()}
        return before(self, args_dev, args_hst, kwargs, kwargs_hst)

    return _restore_args_dev


def _changed(given: Any, used: Any) -> Any:
    """What was given, if the interpreter worked on a copy of it; None if on its bytes."""
    if not hasattr(given, "untyped_storage") or not hasattr(used, "untyped_storage"):
        return given
    same = given.untyped_storage().data_ptr() == used.untyped_storage().data_ptr()
    return None if same else given


def _is_npu(value: Any) -> bool:
    import torch

    if isinstance(value, (tuple, list)):
        return any(_is_npu(one) for one in value)
    return isinstance(value, torch.Tensor) and value.device.type == "npu"
