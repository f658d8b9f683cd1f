"""The sanitizer: what it costs in a training step, and in a decoder's step from a graph.

What it costs where it is off needs a build without it: `benchmarks/builds.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Case, Goal
from benchmarks.models import decoder
from softnpu import _C

TRAINING, DECODING = Goal(3.0), Goal(2.0)


def cases() -> Iterator[Case]:
    yield training()
    yield decoding()


def _sanitized(body: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        _C.sanitizer_enable()
        try:
            return body()
        finally:
            _C.sanitizer_disable()

    return run


def training() -> Case:
    """Two layers, hidden size 256, 64 tokens, AdamW, fp32."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).npu()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(4, 64, 256).npu()

    def step() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        torch.npu.synchronize()

    return Case("sanitizer", "training step", _sanitized(step), step, TRAINING, against="off")


def decoding() -> Case:
    """12 layers, hidden size 256, bf16, batch 1, captured with the sanitizer."""
    model = decoder()
    token, position = torch.tensor([3]).npu(), torch.tensor([7]).npu()
    model(token, position)
    graph = torch.npu.NPUGraph()
    _C.sanitizer_enable()
    with torch.npu.graph(graph):
        model(token, position)
    _C.sanitizer_disable()

    def step() -> None:
        for _ in range(4):
            graph.replay()
            torch.npu.synchronize()

    return Case("sanitizer", "decode step, replay", _sanitized(step), step, DECODING, against="off")
