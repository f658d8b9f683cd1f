"""Dumps two training steps of a small model with msprobe: msprobe_dump.py npu|cpu CONFIG."""

import sys

import torch
from msprobe.pytorch import PrecisionDebugger

import torch_npu  # noqa: F401

device, config = sys.argv[1:]
debugger = PrecisionDebugger(config_path=config)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
)
x, labels = torch.randn(5, 8), torch.tensor([0, 1, 2, 3, 0])
model, x, labels = model.to(device), x.to(device), labels.to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    debugger.start(model=model)
    loss = torch.nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    debugger.stop()
    optimizer.step()
    optimizer.zero_grad()
    debugger.step()
