"""Deformable sampling: the image read at shifted points between its pixels, and the gradients of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def sizes(
    input: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    """The height and width of the result; padding is (top, bottom, left, right)."""
    height = input.shape[2] + padding[0] + padding[1] - ((kernel_size[0] - 1) * dilation[2] + 1)
    width = input.shape[3] + padding[2] + padding[3] - ((kernel_size[1] - 1) * dilation[3] + 1)
    return height // stride[2] + 1, width // stride[3] + 1


@dataclass
class Window:
    """How the kernel walks over the image: the geometry of one call."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    start: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    modulated: bool

    @staticmethod
    def of(kernel_size, stride, padding, dilation, deformable_groups, modulated) -> Window:
        return Window(
            (kernel_size[0], kernel_size[1]),
            (stride[2], stride[3]),
            (-padding[0], -padding[2]),
            (dilation[2], dilation[3]),
            deformable_groups,
            modulated,
        )

    @property
    def parts(self) -> int:
        """What `offset` holds for each point: x, y and, if modulated, the factor."""
        return 3 if self.modulated else 2


class Points:
    """The points of one call: where each lies, its four pixels and their weights.

    Everything has the shape (N, groups, 1, kH * kW * outH * outW), one entry a point.
    """

    def __init__(self, input: torch.Tensor, offset: torch.Tensor, window: Window) -> None:
        self.window, self.shape = window, input.shape
        (kh, kw), (self.out_h, self.out_w) = window.kernel, offset.shape[2:]
        parts = offset.reshape(
            input.shape[0], window.parts, window.groups, kh, kw, self.out_h, self.out_w
        )
        rows = _grid(window, 0, kh, self.out_h, offset)[:, None, :, None]
        columns = _grid(window, 1, kw, self.out_w, offset)[None, :, None, :]
        height, width = input.shape[2:]
        # beyond two pixels outside nothing changes any more; this keeps infinite offsets finite
        self.y = self._flat(parts[:, 1] + rows).clamp(-2, height + 1)
        self.x = self._flat(parts[:, 0] + columns).clamp(-2, width + 1)
        self.factor = self._flat(parts[:, 2]) if window.modulated else None
        self.top, self.left = self.y.floor(), self.x.floor()
        self.down, self.right = self.y - self.top, self.x - self.left

    def _flat(self, part: torch.Tensor) -> torch.Tensor:
        return part.reshape(self.shape[0], self.window.groups, 1, -1)

    def corners(self):
        """(row step, column step, weight along y, weight along x) of the four pixels around a point."""
        for down in (0, 1):
            for right in (0, 1):
                along_y = self.down if down else 1 - self.down
                along_x = self.right if right else 1 - self.right
                yield down, right, along_y, along_x

    def pixel(self, down: int, right: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The index of a corner in the flattened image, and whether it lies inside."""
        height, width = self.shape[2:]
        row, column = self.top + down, self.left + right
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        # a NaN becomes an arbitrary integer: clamp after the conversion, so that no index leaves the image
        row_index = row.long().clamp(0, height - 1)
        return row_index * width + column.long().clamp(0, width - 1), inside

    def planes(self, image: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) as (N, groups, C / groups, H * W)."""
        n, c, h, w = image.shape
        return image.reshape(n, self.window.groups, c // self.window.groups, h * w)

    def read(self, planes: torch.Tensor, down: int, right: int) -> torch.Tensor:
        """The values of one corner of every point; zero outside the image."""
        index, inside = self.pixel(down, right)
        wide_index = index.expand(-1, -1, planes.shape[2], -1)
        return torch.where(inside, torch.gather(planes, 3, wide_index), 0)

    def unfold(self, values: torch.Tensor) -> torch.Tensor:
        """(N, groups, C / groups, points) as (N, C, outH * kH, outW * kW)."""
        (kh, kw), n = self.window.kernel, self.shape[0]
        values = values.reshape(n, self.shape[1], kh, kw, self.out_h, self.out_w)
        values = values.permute(0, 1, 4, 2, 5, 3)
        return values.reshape(n, self.shape[1], self.out_h * kh, self.out_w * kw)

    def fold(self, values: torch.Tensor) -> torch.Tensor:
        """The inverse of `unfold`."""
        (kh, kw), n = self.window.kernel, self.shape[0]
        values = values.reshape(n, self.shape[1], self.out_h, kh, self.out_w, kw)
        values = values.permute(0, 1, 3, 5, 2, 4)
        return values.reshape(n, self.window.groups, self.shape[1] // self.window.groups, -1)


def _grid(window: Window, axis: int, kernel: int, out: int, like: torch.Tensor) -> torch.Tensor:
    """Where the undeformed kernel reads along one axis: (kernel, out)."""
    steps = torch.arange(out, dtype=like.dtype, device=like.device) * window.stride[axis]
    taps = torch.arange(kernel, dtype=like.dtype, device=like.device) * window.dilation[axis]
    return window.start[axis] + taps[:, None] + steps[None, :]


def sample(input: torch.Tensor, offset: torch.Tensor, window: Window) -> torch.Tensor:
    """The deformed image (N, C, outH * kH, outW * kW): what a plain convolution then multiplies."""
    points = Points(input, offset, window)
    planes = points.planes(input)
    total = planes.new_zeros(())
    for down, right, along_y, along_x in points.corners():
        total = total + points.read(planes, down, right) * (along_y * along_x)
    if points.factor is not None:
        total = total * points.factor
    return points.unfold(total)


def sample_gradients(
    grad: torch.Tensor, input: torch.Tensor, offset: torch.Tensor, window: Window
) -> tuple[torch.Tensor, torch.Tensor]:
    """From the gradient of the deformed image, those of `input` and `offset`.

    A point that lies a pixel or more outside the image has no gradient.
    """
    points = Points(input, offset, window)
    planes, grad = points.planes(input), points.fold(grad)
    height, width = input.shape[2:]
    near = (points.y > -1) & (points.y < height) & (points.x > -1) & (points.x < width)
    scaled = grad if points.factor is None else grad * points.factor
    d_planes = torch.zeros_like(planes)
    slope_y = slope_x = value = planes.new_zeros(())
    for down, right, along_y, along_x in points.corners():
        index, inside = points.pixel(down, right)
        share = torch.where(inside, scaled * (along_y * along_x), 0)
        d_planes.scatter_add_(3, index.expand_as(share), share)
        # the corners are set against each other before the channels add up: less is canceled
        corner = points.read(planes, down, right)
        slope_y = slope_y + corner * (along_x if down else -along_x)
        slope_x = slope_x + corner * (along_y if right else -along_y)
        value = value + corner * (along_y * along_x)
    d_y, d_x = ((slope * scaled).sum(2, keepdim=True) for slope in (slope_y, slope_x))
    d_factor = (value * grad).sum(2, keepdim=True)
    parts = [d_x, d_y, d_factor][: window.parts]
    d_offset = torch.stack([torch.where(near, part, 0) for part in parts], 1)
    return d_planes.reshape(input.shape), d_offset.reshape(offset.shape)
