"""Tests made from one method for every dtype and format."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch


class Dtypes:
    """`@Dtypes(torch.half, torch.float)`: the method runs once for each, as its argument with `dtype` in the name."""

    def __init__(self, *args: torch.dtype) -> None:
        if not args:
            raise RuntimeError("No dtypes given")
        if not all(isinstance(arg, torch.dtype) for arg in args):
            raise RuntimeError(f"Unknown dtype in {args}")
        self.args = args

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.dtypes = self.args  # type: ignore[attr-defined]
        return fn


class Formats:
    """`@Formats(0, 2)`: the method runs once for each, as its argument with `format` in the name."""

    def __init__(self, *args: int) -> None:
        if not args:
            raise RuntimeError("No formats given")
        self.args = args

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.formats = self.args  # type: ignore[attr-defined]
        return fn


def feed_data(
    func: Callable[..., Any], new_name: str, *args: Any, **kwargs: Any
) -> Callable[..., Any]:
    """The method with these arguments, under another name."""

    @functools.wraps(func)
    def run(self: Any) -> Any:
        return func(self, *args, **kwargs)

    run.__name__ = new_name
    return run


def _parameter(func: Callable[..., Any], kind: str) -> str:
    found = [name for name in inspect.getfullargspec(func).args if kind in name]
    if len(found) > 1:
        raise RuntimeError(f"Multiple matches for {kind}")
    if not found:
        raise RuntimeError(f"{func.__name__} has no argument for {kind}")
    return found[0]


def instantiate_tests(arg: type) -> type:
    """Class decorator: replaces every method with `Dtypes` or `Formats` by one for each combination."""
    for name, func in list(vars(arg).items()):
        axes = {k: getattr(func, f"{k}s") for k in ("dtype", "format") if hasattr(func, f"{k}s")}
        if not axes:
            continue
        places = {kind: _parameter(func, kind) for kind in axes}
        fixed = {"device": "npu"} if "device" in inspect.getfullargspec(func).args else {}
        for values in itertools.product(*axes.values()):
            suffix = "".join(f"_{str(v).removeprefix('torch.')}" for v in values)
            given = dict(zip((places[k] for k in axes), values, strict=True))
            setattr(arg, name + suffix, feed_data(func, name + suffix, **fixed, **given))
        delattr(arg, name)
    return arg


def gen_op_input(testcase: str, func: Callable[..., Any], op_info: Any) -> dict[str, Any]:
    """The dtypes and formats of a test of an operator: the method's own, else the operator's on the device."""
    data = {
        "dtype": getattr(func, "dtypes", None) or op_info.dtypesIfNPU,
        "npu_format": getattr(func, "formats", None) or op_info.formats,
    }
    if "test_variant_consistency_eager" in testcase:
        every = op_info.dtypesIfNPU
        data["dtype"] = {torch.float32 if torch.float32 in every else list(every)[-1]}
    return data


def gen_ops_testcase(
    cls: type, func: Callable[..., Any], name: str, keys: Any, value: Any, op_info: Any
) -> None:
    """Adds the method for one operator, dtype and format to the class."""
    given = dict(zip(keys, value, strict=True))
    suffix = "".join(f"_{str(v).removeprefix('torch.')}" for v in given.values())
    test: Any = functools.partialmethod(func, **given, op=op_info)
    title = f"{func.__name__}_{name}{suffix}"
    setattr(cls, title, test)
    for decorator in op_info.get_decorators(cls.__name__, func.__name__, "cpu", value[0], {}):
        setattr(cls, title, decorator(test))


def instantiate_ops_tests(op_db: Any) -> Callable[[type], type]:
    """Class decorator: replaces every test by one for each operator, dtype and format."""

    def decorate(cls: type) -> type:
        for testcase in [name for name in dir(cls) if name.startswith("test_")]:
            func = getattr(cls, testcase)
            for op_info in op_db:
                data = gen_op_input(testcase, func, op_info)
                for value in itertools.product(*data.values()):
                    gen_ops_testcase(cls, func, op_info.name, data.keys(), value, op_info)
            delattr(cls, testcase)
        return cls

    return decorate
