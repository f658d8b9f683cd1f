"""NPUGraph against eager launches: a decoder's step for one token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.harness import Case, Goal, Versus
from benchmarks.models import decoder

REPLAY = Goal(1 / 3)
CAPTURED_OPERATORS, CAPTURE_SECONDS = 5000, 2.0


def cases() -> Iterator[Case]:
    yield decode()
    yield capture()


def decode() -> Case:
    """12 layers, hidden size 256, bf16, batch 1."""
    model = decoder()
    token, position = torch.tensor([3]).npu(), torch.tensor([7]).npu()
    model(token, position)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        logits = model(token, position)

    def check() -> None:
        graph.replay()
        assert torch.equal(logits, model(token, position)), "replay differs from eager"

    return Case(
        "NPUGraph",
        "decode step, replay",
        graph.replay,
        lambda: model(token, position),
        REPLAY,
        check,
        "eager",
    )


def capture() -> Case:
    """The capture of 5,000 operators, against two seconds."""
    x = torch.ones(16, device="npu")

    def run() -> None:
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y = x
            for _ in range(CAPTURED_OPERATORS):
                y = y + 1

    allowed = Versus(CAPTURE_SECONDS, Goal(1.0), "2 s")
    return Case("NPUGraph", "capture of 5,000 operators", run, others={"limit": allowed})
