"""FusedColorJitter: brightness, contrast, saturation and hue of an image in one matrix product."""

from __future__ import annotations

import math
import numbers
import random
import sys
from typing import Any

import numpy as np
import torch

from torch_npu.contrib._checks import deprecated, require, require_type

__all__: list[str] = []

# Luma weights of Y, and what rotating and scaling the chroma plane of YIQ does to RGB (row vectors times matrix).
_GREY = np.array([[0.299] * 3, [0.587] * 3, [0.114] * 3], dtype=np.float32)
_COSINE = np.array(
    [[0.701, -0.299, -0.300], [-0.587, 0.413, -0.588], [-0.114, -0.114, 0.886]], dtype=np.float32
)
_SINE = np.array(
    [[0.168, -0.328, 1.250], [0.330, 0.035, -1.050], [-0.497, 0.292, -0.203]], dtype=np.float32
)


def _matrix(hue: float, saturation: float) -> np.ndarray:
    angle = hue * 255.0 * math.pi / 180.0
    return _GREY + saturation * (math.cos(angle) * _COSINE + math.sin(angle) * _SINE)


class FusedColorJitter(torch.nn.Module):
    """Changes brightness, contrast, saturation and hue of an image at random.

    A number v stands for factors from max(0, 1 - v) to 1 + v (hue: angles from -v to v), a pair for the factors
    between its two numbers.

    Args:
        brightness: of the image.
        contrast: around the middle of the range.
        saturation: of the colors.
        hue: 0 to 0.5, or a pair from -0.5 to 0.5.

    Takes a PIL image, and gives one, or an array (h, w, 3) of 0 to 255; one channel is repeated, a fourth dropped.

    Differs from upstream: upstream hands the four numbers on in another order (brightness as hue, and so on) and
    fails for pairs; here each does what its name says.
    """

    def __init__(
        self, brightness: Any = 0, contrast: Any = 0, saturation: Any = 0, hue: Any = 0
    ) -> None:
        super().__init__()
        deprecated("module.FusedColorJitter", "torchvision.transforms.ColorJitter")
        self.brightness = self._check_input(brightness, "brightness")
        self.contrast = self._check_input(contrast, "contrast")
        self.saturation = self._check_input(saturation, "saturation")
        self.hue = self._check_input(
            hue, "hue", center=0, bound=(-0.5, 0.5), clip_first_on_zero=False
        )

    def _check_input(
        self,
        value: Any,
        name: str,
        center: float = 1,
        bound: tuple[float, float] = (0, math.inf),
        clip_first_on_zero: bool = True,
    ) -> list[float] | None:
        """The range [low, high]; None where nothing changes."""
        if isinstance(value, numbers.Real):
            require(float(value) >= 0, "FusedColorJitter", name, "non-negative", value)
            low, high = center - float(value), center + float(value)
            pair = [max(low, 0.0) if clip_first_on_zero else low, high]
        else:
            is_pair = isinstance(value, (tuple, list)) and len(value) == 2
            require_type(is_pair, "FusedColorJitter", name, "a number or a pair of numbers", value)
            pair = [float(value[0]), float(value[1])]
        inside = bound[0] <= pair[0] <= pair[1] <= bound[1]
        require(inside, "FusedColorJitter", name, f"between {bound}", value)
        return None if pair[0] == pair[1] == center else pair

    def forward(self, img: Any) -> Any:
        images = sys.modules.get("PIL.Image")  # whoever has an image has loaded it
        is_image = images is not None and isinstance(img, images.Image)
        pixels = np.asarray(img, dtype=np.float32) if is_image else img
        kind = np.uint8 if is_image else pixels.dtype
        changed = self._jitter(_three_channels(pixels)).clip(0.0, 255.0).astype(kind)
        return images.fromarray(changed) if images is not None and is_image else changed

    def _jitter(self, pixels: np.ndarray) -> np.ndarray:
        hue, saturation, contrast, brightness = (
            random.uniform(*pair) if pair is not None else center
            for pair, center in (
                (self.hue, 0.0),
                (self.saturation, 1.0),
                (self.contrast, 1.0),
                (self.brightness, 1.0),
            )
        )
        matrix = _matrix(hue, saturation) * brightness * contrast
        offset = (1.0 - contrast) * brightness * 127.5
        return pixels @ matrix + offset

    def __repr__(self) -> str:
        return (
            f"FusedColorJitter(brightness={self.brightness}, contrast={self.contrast}, "
            f"saturation={self.saturation}, hue={self.hue})"
        )


def _three_channels(pixels: np.ndarray) -> np.ndarray:
    require(
        pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4),
        "FusedColorJitter",
        "img",
        "an image of 1, 3 or 4 channels",
        pixels.shape,
    )
    return pixels.repeat(3, axis=-1) if pixels.shape[2] == 1 else pixels[:, :, :3]
