"""How DTensor may divide training attention: over batches or heads, and only the plain form, as upstream has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_npu.ops._sharding import Placement, Sharding

#: arguments with which the work is not divided
_WHOLE = (
    "pse",
    "padding_mask",
    "prefix",
    "actual_seq_qlen",
    "actual_seq_kvlen",
    "sink",
    "dropout_mask",
)


def _ways(arguments: dict[str, Any]) -> Iterator[tuple[int, int, Placement, tuple[str, ...]]]:
    """The dimension of query, key and value, that of the softmax's statistics, that of the mask, and what is divided."""
    if arguments["keep_prob"] < 1 or any(arguments.get(name) is not None for name in _WHOLE):
        return
    layout, atten_mask = arguments["input_layout"], arguments["atten_mask"]
    for statistics, letter in enumerate("BN"):
        if letter in layout:
            own = atten_mask is not None and atten_mask.ndim == 4
            mask = statistics if own and atten_mask.shape[statistics] != 1 else None
            divided = ("head_num",) if letter == "N" else ()
            yield layout.index(letter), statistics, mask, divided


def forward(outputs: int, arguments: dict[str, Any]) -> Iterator[Sharding]:
    for dim, statistics, mask, divided in _ways(arguments):
        found = (dim, statistics, statistics, *[None] * (outputs - 3))
        given: dict[str, Placement] = dict.fromkeys(("query", "key", "value"), dim)
        yield Sharding(found, {**given, "atten_mask": mask}, bool(divided), divided)


def backward(arguments: dict[str, Any]) -> Iterator[Sharding]:
    for dim, statistics, mask, divided in _ways(arguments):
        names = ("query", "key", "value", "dy", "attention_in")
        given: dict[str, Placement] = dict.fromkeys(names, dim)
        given |= {"softmax_max": statistics, "softmax_sum": statistics, "atten_mask": mask}
        yield Sharding((dim, dim, dim, None, None), given, bool(divided), divided)
