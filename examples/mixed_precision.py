"""Mixed precision: float16 under autocast with a gradient scaler, and bfloat16, which needs none.

    python examples/mixed_precision.py

The scaler multiplies the loss so that small float16 gradients do not vanish. A step whose gradients overflow is left
out and the scale halved: step 5 shows it, with a loss that was made too large on purpose.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import torch_npu

STEPS, OVERFLOWS_AT = 30, 5


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points in a plane; the label says on which side of a circle."""
    points = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    return points.npu(), (points.norm(dim=1) > 1.2).long().npu()


def train(dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Losses and scales of the steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2)).npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scaler = torch_npu.npu.amp.GradScaler(enabled=dtype is torch.float16)
    points, labels = data()
    losses, scales = [], []
    for step in range(STEPS):
        with torch.autocast("npu", dtype=dtype):
            logits = model(points)
        loss = F.cross_entropy(logits.float(), labels)
        factor = 1e30 if dtype is torch.float16 and step == OVERFLOWS_AT else 1.0
        optimizer.zero_grad()
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


def main() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        losses, scales = train(dtype)
        print(
            f"{dtype}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, scale {scales[0]:g} -> {scales[-1]:g}"
        )


if __name__ == "__main__":
    main()
