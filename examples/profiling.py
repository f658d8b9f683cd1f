"""Profiling: two steps of training in the files of the Ascend PyTorch Profiler, then the slowest operators.

    python examples/profiling.py [DIRECTORY]
    softnpu report DIRECTORY           # the same as an HTML page

The directory gets one folder `*_ascend_pt`; trace_view.json in it opens in Perfetto or MindStudio Insight.
"""

from __future__ import annotations

import collections
import csv
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import torch_npu


def train(directory: Path) -> Path:
    """Four steps: one is waited for, one warms up, two are recorded. Returns the folder of the files."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(128, 64, device="npu"), torch.randint(0, 8, (128,), device="npu")
    with torch_npu.profiler.profile(
        activities=[
            torch_npu.profiler.ProfilerActivity.CPU,
            torch_npu.profiler.ProfilerActivity.NPU,
        ],
        schedule=torch_npu.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(str(directory)),
        record_shapes=True,
    ) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            profiler.step()
    (folder,) = directory.glob("*_ascend_pt")
    return folder / "ASCEND_PROFILER_OUTPUT"


def slowest(output: Path, count: int = 5) -> list[tuple[str, float]]:
    """Operators by their time on the device, in microseconds, from kernel_details.csv."""
    times: collections.Counter[str] = collections.Counter()
    with (output / "kernel_details.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            times[row["Name"]] += float(row["Duration(us)"])
    return times.most_common(count)


def main() -> None:
    output = train(Path(sys.argv[1] if len(sys.argv) > 1 else "profile"))
    for name, time in slowest(output):
        print(f"{time:10.1f} us  {name}")
    print(f"files: {output}")


if __name__ == "__main__":
    main()
