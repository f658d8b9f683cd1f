"""Prefetcher: copies the next batch to the device while the current one is worked on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_npu.contrib._names import torch_npu


class Prefetcher:
    """Hands out the (input, target) pairs of a loader as NPU tensors, one copied ahead.

    Args:
        loader: a DataLoader, or anything that yields pairs of tensors.
        stream: the stream of the copies; a new one if None. A program that makes many prefetchers should give
            one, since streams are never returned.
    """

    def __init__(self, loader: Iterable[Any], stream: Any = None) -> None:
        self.loader = iter(loader)
        self.stream = torch_npu.npu.Stream() if stream is None else stream
        self.preload()

    def preload(self) -> None:
        """Starts the copy of the next pair; both are None after the last one."""
        pair: tuple[Any, Any] = next(self.loader, (None, None))
        self.next_input, self.next_target = pair
        if self.next_input is None or self.next_target is None:
            return
        with torch_npu.npu.stream(self.stream):
            self.next_input = self.next_input.npu(non_blocking=True)
            self.next_target = self.next_target.npu(non_blocking=True)

    def next(self) -> tuple[Any, Any]:
        """The next pair, (None, None) after the last one."""
        torch_npu.npu.current_stream().wait_stream(self.stream)
        pair = self.next_input, self.next_target
        if pair[1] is not None:
            self.preload()
        return pair
