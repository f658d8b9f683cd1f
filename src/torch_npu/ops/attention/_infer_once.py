"""Checks of attention over caches: asked once for the same shapes and options, though the lengths change each step.

Without a mask, a bias, a prefix and paddings, and with a query of floats, rules see how many lengths there are and that
each is in its bounds, nothing else of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softnpu import chips
from torch_npu.ops.attention import _infer_rules as rules
from torch_npu.ops.attention._infer_arguments import InferArguments

#: how many kinds of calls an operator remembers
_REMEMBERED = 1024
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (int, float, str, bool, type(None), torch.dtype)
#: whose values, or whose meeting with the lengths, rules look at
_LOOKED_INTO = (
    "atten_mask",
    "pse_shift",
    "key_shared_prefix",
    "value_shared_prefix",
    "query_padding_size",
    "kv_padding_size",
)

ArgumentsOf = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]], InferArguments]


def once(check: Callable[[InferArguments], None], call_of: ArgumentsOf) -> Callable[..., None]:
    """The check as a function of query, key, value and options: a call like one that passed is asked for lengths alone."""
    passed: dict[Any, list[tuple[str, int, int]]] = {}

    def ask(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> None:
        kind = _kind(query, key, value, options)
        bounds = passed.get(kind) if kind is not None else None
        if bounds is not None:
            for name, batch, most in bounds:
                rules.bounded(name, options[name], batch, most)
            return
        call = call_of(query, key, value, options)
        check(call)
        if kind is not None:
            if len(passed) >= _REMEMBERED:
                passed.clear()
            passed[kind] = rules.bounds(call)

    return ask


def _kind(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> Any:
    """What rules see of the call besides its lengths; None if they see more."""
    if query.dtype not in rules.FLOATS or options["input_layout"] not in ("BSH", "BSND", "BNSD"):
        return None
    for name in _LOOKED_INTO:
        if options.get(name) is not None:
            return None
    kind: list[Any] = [chips.current().name]
    for one in (query, key, value, *options.values()):
        of = type(one)
        if of in _PLAIN:
            kind.append(one)
        elif of in _TENSORS:
            kind.append((one.shape, one.dtype))
        elif of is list or of is tuple:
            kind.append((len(one),))
        else:
            return None
    return tuple(kind)
