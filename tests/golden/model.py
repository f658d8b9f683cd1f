"""A program with a model of 12 layers, run by test_diff.py in several ways."""

from __future__ import annotations

import torch

import torch_npu

LAYERS, WIDTH = 12, 32


class Layer(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.norm = torch.nn.Parameter(torch.ones(WIDTH))
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch_npu.npu_rms_norm(x, self.norm)[0]
        y = torch_npu.npu_swiglu(self.up(y))
        return x + self.down(y)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(i) for i in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def run(dtype: torch.dtype = torch.float32, backward: bool = True) -> torch.Tensor:
    torch.manual_seed(0)
    model = Model().npu().to(dtype)
    x = torch.randn(4, WIDTH).npu().to(dtype)
    y = model(x)
    if backward:
        y.float().square().mean().backward()
    return y.detach()
