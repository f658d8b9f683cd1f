"""npu_sub_sample: a random choice of positive and negative examples; the others are ignored."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, kernel_generator, npu_op

_IGNORED, _BACKGROUND = -1, 0


@npu_op(
    "npu_sub_sample(Tensor self, int per_images, float positive_fraction) -> Tensor",
    random=True,
    ge="SubSample",
    aclop=True,
)
def npu_sub_sample(self, per_images, positive_fraction):
    r"""Keeps the labels of a random sample of the examples, and makes those of the others -1.

    Examples with label -1 are ignored, those with label 0 are negative, the others positive. The sample has
    min(positives, floor(per_images * positive_fraction)) positive examples, and negative ones up to `per_images` in all.

    Args:
        self: (n,), int32.
        per_images: the size of the sample, at least 0.
        positive_fraction: the most positive examples as a part of it, from 0 to 1.

    Returns:
        (n,), int32.

    Differs from upstream: other examples are drawn than on the card. Which labels count as what follows CANN's
    description of SubSample, made for Mask R-CNN, and the sampling of Detectron2; its kernel is not public.
    """
    positive = ((self != _IGNORED) & (self != _BACKGROUND)).nonzero()[:, 0]
    negative = (self == _BACKGROUND).nonzero()[:, 0]
    most = min(len(positive), int(per_images * positive_fraction))
    generator = kernel_generator()
    chosen = [
        places[torch.randperm(len(places), generator=generator)[:count]]
        for places, count in ((positive, most), (negative, per_images - most))
    ]
    kept = torch.cat(chosen)
    out = torch.full_like(self, _IGNORED, memory_format=torch.contiguous_format)
    out[kept] = self[kept]
    return out


@npu_sub_sample.meta
def _(self):
    return torch.empty_like(self, memory_format=torch.contiguous_format)


@npu_sub_sample.check
def _(self, per_images, positive_fraction):
    must.dtype("self", self, torch.int32)
    must.ndim("self", self, 1)
    must.hold(per_images >= 0, "per_images", "at least 0", per_images)
    fits = 0 <= positive_fraction <= 1
    must.hold(fits, "positive_fraction", "from 0 to 1", positive_fraction)


npu_sub_sample.samples = [
    Sample(lambda make: (make(12, dtype=torch.int32, low=-1, high=2), 6, 0.5)),
    Sample(lambda make: (make(9, dtype=torch.int32, low=0, high=3), 20, 0.25)),
]
