"""How compiled graphs are called: with the list of their inputs, which they may empty, and with a trace in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from torchair.core.utils import logger


def boxed(run: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def call(inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()
        return run(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def logged(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def call(inputs: list[Any]) -> Any:
        if not logger.isEnabledFor(logging.DEBUG):
            if not torch.autograd._profiler_enabled():
                return run(inputs)
            with torch.profiler.record_function("npu_fx_compiler inference"):
                return run(inputs)
        with torch.profiler.record_function("npu_fx_compiler inference"):
            for index, value in enumerate(inputs):
                logger.debug("runtime input %s: %s", index, _about(value))
            results = run(inputs)
            for index, value in enumerate(results):
                logger.debug("runtime output %s: %s", index, _about(value))
            return results

    call._boxed_call = True  # type: ignore[attr-defined]
    call.program = run  # type: ignore[attr-defined]
    return call


def _about(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"Tensor({tuple(value.size())}, {value.dtype}, {value.device}, strides={value.stride()})"
    return f"{type(value).__name__}({value})"
