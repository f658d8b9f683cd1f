"""Focus: YOLOv5's first layer, which folds each 2 x 2 block of pixels into channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def autopad(k: Any, p: Any = None) -> Any:
    """The padding that keeps the size for an odd kernel, unless one is given."""
    if p is not None:
        return p
    return k // 2 if isinstance(k, int) else [x // 2 for x in k]


class Conv(nn.Module):
    """Convolution, batch norm and leaky ReLU."""

    def __init__(self, c1, c2, k=1, s=1, p=None, g=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, autopad(k, p), groups=g, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.LeakyReLU(0.1, inplace=True) if act else nn.Identity()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))

    def fuseforward(self, x):
        """For a convolution that the batch norm was folded into."""
        return self.act(self.conv(x))


def fast_slice(x: torch.Tensor) -> list[torch.Tensor]:
    """The four images of every other pixel: even rows first, even columns first."""
    return [x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]


class Focus(nn.Module):
    """Four images of every other pixel as channels, then a convolution.

    Args:
        c1: channels of the image.
        c2: channels of the result.
        k: size of the kernel.
        s: stride.
        p: padding; half the kernel if None.
        g: groups of the convolution.
        act: whether leaky ReLU follows.
    """

    def __init__(self, c1, c2, k=1, s=1, p=None, g=1, act=True):
        super().__init__()
        self.conv = Conv(c1 * 4, c2, k, s, p, g, act)

    def forward(self, x):
        return self.conv(torch.cat(fast_slice(x), 1))
