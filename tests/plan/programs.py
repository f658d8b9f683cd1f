"""Small programs for plans, and how tests run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WIDTH, LAYERS, ROWS, STEPS = 64, 3, 512, 3

TRAIN = f"""
import sys
import torch
import torch_npu
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (torch.nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range(2))

    def forward(self, x):
        return self.down(F.relu(self.up(x)))  # the line that holds activations

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range({LAYERS}))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if "recompute" in sys.argv else layer(x)
        return x

def main():
    model = Model().npu()
    optimizer = torch.optim.AdamW(model.parameters(), fused=False, foreach=False)
    for step in range({STEPS}):
        loss = model(torch.ones({ROWS}, {WIDTH}, device="npu")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("arguments", sys.argv[1:])
    print("peak", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())

main()
"""


def plan(
    directory: Path, text: str, *arguments: str, options: tuple[str, ...] = (), code: int = 0
) -> tuple[Any, subprocess.CompletedProcess[str]]:
    """What `--json` of a plan of this program holds, and the finished command."""
    program, found = directory / "program.py", directory / "plan.json"
    program.write_text(text, "utf-8")
    command = [sys.executable, "-m", "softnpu", "plan", "--json", str(found), *options, str(program), *arguments]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SOFTNPU_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == code, done.stderr
    return (json.loads(found.read_text("utf-8")) if found.exists() else None), done


def line_of(text: str, words: str) -> int:
    """The number of the line with these words."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if words in line)
