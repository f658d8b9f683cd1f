"""ResNet-50 in fp32: a training step on two images, on the npu and on the CPU device."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import limits
from benchmarks.harness import Case, Goal

STEP = Goal(1.05)
BATCH, SIDE = 2, 224
FORWARD = 4.1e9 * 2  # operations an image


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.side: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.side = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


def resnet50() -> nn.Sequential:
    stem = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    blocks, inputs = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            blocks.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*stem, *blocks, *end)


class Step:
    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = resnet50().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images = torch.randn(BATCH, 3, SIDE, SIDE).to(device)
        self.labels = torch.arange(BATCH).to(device)

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def cases() -> Iterator[Case]:
    made = functools.cache(Step)

    def check() -> None:
        torch.testing.assert_close(made("npu")().cpu(), made("cpu")(), atol=1e-3, rtol=1e-3)

    name = f"training step, {BATCH}x3x{SIDE}x{SIDE}"
    others = {"limit": limits.blas(3 * FORWARD * BATCH)}
    mine, theirs = (lambda d=device: made(d)() for device in ("npu", "cpu"))
    yield Case("ResNet-50, float32", name, mine, theirs, STEP, check, others=others)
