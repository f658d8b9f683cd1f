"""Mish and SiLU, as deprecated modules around the operators of torch_npu."""

from __future__ import annotations

import torch
from torch import nn

from torch_npu.contrib._checks import deprecated
from torch_npu.contrib._names import torch_npu


class Mish(nn.Module):
    r"""$x \tanh(\ln(1 + e^x))$."""

    def __init__(self) -> None:
        super().__init__()
        deprecated("module.Mish", "torch.nn.Mish")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_mish(x)


class SiLU(nn.Module):
    r"""$x / (1 + e^{-x})$."""

    def __init__(self) -> None:
        super().__init__()
        deprecated("module.SiLU", "torch.nn.SiLU")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_silu(x)


Swish = SiLU
