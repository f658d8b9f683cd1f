"""torchair.ops.npu_print: print from inside a graph, without breaking it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchair._air import mark
from torchair._host import bodies, operators


def npu_print(*args: Any, summarize_size: int = 3, tensor_detail: bool = False) -> None:
    """Prints its arguments when the graph runs; at least one of them is a tensor.

    Args:
        args: tensors, strings, booleans and numbers, printed in order.
        summarize_size: so many values at each end of every dimension, -1 for all of them.
        tensor_detail: with shape and dtype of each tensor.
    """
    for position, value in enumerate(args):
        if not isinstance(value, (torch.Tensor, str, bool, float, int)):
            raise TypeError(
                "npu_print: expected tensors, str, bool, float or int, received "
                f"{type(value).__name__} at position {position}"
            )
    if not isinstance(summarize_size, int) or isinstance(summarize_size, bool):
        raise TypeError(
            f"npu_print: summarize_size must be an int, received {type(summarize_size).__name__}"
        )
    if summarize_size < -1 or summarize_size == 0:
        raise ValueError(
            f"npu_print: summarize_size must be positive, or -1 for all, received {summarize_size}"
        )
    if not isinstance(tensor_detail, bool):
        raise TypeError(
            f"npu_print: tensor_detail must be a bool, received {type(tensor_detail).__name__}"
        )
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if not tensors:
        raise ValueError("npu_print: expected at least one tensor")
    words = " ".join(str(value) for value in args if not isinstance(value, torch.Tensor))
    placeholder, turn = "{}", 0
    while placeholder in words:  # a text of the user's may look like ours
        placeholder, turn = f"{{{turn}}}", turn + 1
    parts = []
    for value in args:
        if not isinstance(value, torch.Tensor):
            parts.append(str(value))
        elif tensor_detail:
            parts.append(f"tensor({placeholder}, shape={placeholder}, dtype={value.dtype})")
        else:
            parts.append(placeholder)
    torch.ops.air.print(tensors, " ".join(parts), placeholder, summarize_size, tensor_detail)


def _print(
    tensors: list[torch.Tensor],
    msg_format: str,
    placeholder: str,
    summarize_size: int,
    tensor_detail: bool,
) -> None:
    if bodies.running.capturing:  # replay prints
        return
    for tensor in tensors:
        msg_format = msg_format.replace(placeholder, summary(tensor, summarize_size), 1)
        if tensor_detail:
            msg_format = msg_format.replace(placeholder, str(list(tensor.shape)), 1)
    print(msg_format, flush=True)


def _shown(
    tensors: list[torch.Tensor],
    msg_format: str,
    placeholder: str,
    summarize_size: int,
    tensor_detail: bool,
) -> None:
    """While a graph is traced there is nothing to print yet."""
    for tensor in tensors:
        if tensor.is_complex():
            raise ValueError(f"npu_print: {tensor.dtype} cannot be printed")


def summary(tensor: torch.Tensor, count: int) -> str:
    """The values as text: `count` at each end of every dimension, `...` for those between."""
    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        host = host.float()
    return _array(host.numpy(), count)


def _array(values: np.ndarray, count: int) -> str:
    if values.ndim == 0:
        value = float(values)
        return f"{value:.0f}" if value.is_integer() else f"{value:.9g}"
    everything = count < 0 or len(values) <= 2 * count
    ends = range(len(values)) if everything else [*range(count), *range(-count, 0)]
    parts = [_array(values[i], count) for i in ends]
    if not everything:
        parts.insert(count, "...")
    between = " " if values.ndim == 1 else "\n "
    return f"[{between.join(parts)}]"


_ARGUMENTS = "str msg_format, str placeholder, int summarize_size, bool tensor_detail) -> ()"
PRINT = mark(f"print(Tensor[] tensors, {_ARGUMENTS}", _print, _shown)
# In host code it claims to write the tensors, so that Inductor keeps it, after what computes them.
operators.stand_in(PRINT, f"air_print(Tensor(a!)[] tensors, {_ARGUMENTS}", _print, _shown)
