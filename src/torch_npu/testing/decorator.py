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
