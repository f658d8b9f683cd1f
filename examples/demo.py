"""`make demo`: one small Llama-style model through everything: eager training, TorchAir, NPUGraph, the profiler.

    python -m examples.demo [DIRECTORY]

The model of quick_start.py is trained in bfloat16 on the emulated NPU with the fused operators, beside plain PyTorch on
the CPU device. What it has learnt then runs three ways: eagerly, compiled by TorchAir, and as a captured NPUGraph. Two
more steps are profiled. It ends with a table and the places of the HTML report and the trace.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torch_npu
import torchair
from examples.quick_start import BATCH, LENGTH, TEXT, Llama, Training
from softnpu.report import report

STEPS, CPU_STEPS, REPEATS = 24, 6, 10


def batches() -> Callable[[], torch.Tensor]:
    """Random pieces of the text, the same for everybody who starts here."""
    text = torch.frombuffer(bytearray(TEXT.encode()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,), generator=generator)
        return torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()])

    return draw


def train(device: str, weights: dict[str, torch.Tensor], steps: int) -> Training:
    training, draw = Training(weights, device), batches()
    for _ in range(steps):
        training.step(draw())
    return training


def speed(run: Callable[[], object]) -> float:
    """Milliseconds, the median of some runs after the first."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        run()
        torch.npu.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


@torch.no_grad()
def three_ways(model: Llama, ids: torch.Tensor) -> dict[str, tuple[float, float]]:
    """Milliseconds of a forward pass, and the largest difference from the eager one."""
    model = model.eval().bfloat16()
    want = model(ids)
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True)
    answer = compiled(ids)
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph):
        captured = model(ids)
    graph.replay()

    def difference(other: torch.Tensor) -> float:
        return (other.float() - want.float()).abs().max().item()

    errors = {"eager": 0.0, "TorchAir": difference(answer), "NPUGraph": difference(captured)}
    runs = {
        "eager": lambda: model(ids),
        "TorchAir": lambda: compiled(ids),
        "NPUGraph": graph.replay,
    }
    return {name: (speed(run), errors[name]) for name, run in runs.items()}


def profile(training: Training, directory: Path) -> Path:
    """Two steps in the files of the Ascend PyTorch Profiler; returns their folder."""
    draw = batches()
    with torch_npu.profiler.profile(
        schedule=torch_npu.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(str(directory)),
        record_shapes=True,
    ) as profiler:
        for _ in range(3):
            training.step(draw())
            profiler.step()
    return max(directory.glob("*_ascend_pt"), key=lambda path: path.stat().st_mtime)


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo")
    directory.mkdir(parents=True, exist_ok=True)
    console, began = Console(), time.perf_counter()
    torch.manual_seed(0)
    weights = Llama().state_dict()

    console.print(f"training: {STEPS} steps on npu, {CPU_STEPS} of them on the CPU device too")
    npu, cpu = train("npu", weights, STEPS), train("cpu", weights, CPU_STEPS)
    memory = torch.npu.max_memory_allocated() / 2**20
    console.print("profiling two steps")
    folder = profile(npu, directory)
    report.callback(folder, directory / "report.html")
    console.print("compiling with TorchAir, capturing an NPUGraph")
    ways = three_ways(npu.model, batches()()[:, :-1].npu())

    table = Table(title=f"{torch.npu.get_device_name()}, emulated; bfloat16")
    for column in ("what", "npu", "CPU device", "npu is"):
        table.add_column(column, justify="left" if column == "what" else "right")
    same = CPU_STEPS - 1
    table.add_row("loss, step 1", f"{npu.losses[0]:.4f}", f"{cpu.losses[0]:.4f}", "")
    table.add_row(
        f"loss, step {CPU_STEPS}", f"{npu.losses[same]:.4f}", f"{cpu.losses[same]:.4f}", ""
    )
    table.add_row(f"loss, step {STEPS}", f"{npu.losses[STEPS - 1]:.4f}", "", "")
    times = [1e3 * statistics.median(t.times[1:CPU_STEPS]) for t in (npu, cpu)]
    table.add_row(
        "training, ms a step", *(f"{t:.1f}" for t in times), f"{times[1] / times[0]:.1f} x as fast"
    )
    for name, (milliseconds, error) in ways.items():
        note = "" if name == "eager" else f"differs by {error:.2g} from eager"
        table.add_row(f"forward, {name}, ms", f"{milliseconds:.1f}", "", note)
    table.add_row("peak memory, MiB", f"{memory:.1f}", "", "")
    console.print(table)
    console.print(f"report  {directory / 'report.html'}", soft_wrap=True)
    console.print(
        f"trace   {folder / 'ASCEND_PROFILER_OUTPUT' / 'trace_view.json'}", soft_wrap=True
    )
    console.print(f"{time.perf_counter() - began:.0f} s in all")
    if npu.losses[STEPS - 1] > npu.losses[0] / 2:
        raise SystemExit("the loss did not fall: something is wrong")


if __name__ == "__main__":
    main()
