"""LabelSmoothingCrossEntropy: cross entropy against softened labels."""

from __future__ import annotations

import torch
from torch import nn

from torch_npu.contrib._names import torch_npu


class LabelSmoothingCrossEntropy(nn.Module):
    r"""The mean over the batch of $-\sum_c t_c \log p_c$.

    t is 1 - s for the right class and s / (classes - 1) for each other one.

    Args:
        num_classes: the number of classes.
        smooth_factor: s, from 0 to 1.
    """

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.on_value = 1.0 - smooth_factor
        self.off_value = smooth_factor / (num_classes - 1)

    def forward(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        labels = torch_npu.npu_one_hot(
            target.int(), -1, pred.size(1), self.on_value, self.off_value
        )
        loss = torch_npu.npu_softmax_cross_entropy_with_logits(pred, labels)
        return torch.mean(loss, [0], keepdim=False, dtype=torch.float32)
