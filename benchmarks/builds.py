"""Small operators of two builds, by turns in processes of their own: what code costs that is switched off.

python -m benchmarks.builds OLD/src NEW/src [--rounds 5]

Each folder holds the packages with a built extension. A row is the shortest time of a call in each build, and their
ratio. docs/sanitizer.md has the figures of the sanitizer: the last commit without it against the first one with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click

PROGRAM = """
import json, time, torch, torch_npu
x, gamma, y = torch.rand(16).npu(), torch.rand(16).npu(), torch.rand(4, 16).npu()
stream, event = torch.npu.Stream(), torch.npu.Event()
def record_and_wait():
    event.record(stream)
    event.wait()
calls = {
    "add, 16 elements": lambda: torch.add(x, gamma),
    "npu_rms_norm": lambda: torch_npu.npu_rms_norm(y, gamma),
    "npu_swiglu": lambda: torch_npu.npu_swiglu(y),
    "empty": lambda: torch.empty(16, device="npu"),
    "event, record and wait": record_and_wait,
}
best = {}
for name, call in calls.items():
    for _ in range(200):
        call()
    for _ in range(60):
        begun = time.perf_counter_ns()
        for _ in range(300):
            call()
        took = (time.perf_counter_ns() - begun) / 300
        best[name] = min(best.get(name, took), took)
print(json.dumps(best))
"""


def measure(source: str) -> dict[str, float]:
    """Nanoseconds a call, by name, in a fresh process."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.path.abspath(source),
        "SOFTNPU_QUIET": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise click.ClickException(f"{source}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


@click.command()
@click.argument("old", type=click.Path(exists=True, file_okay=False))
@click.argument("new", type=click.Path(exists=True, file_okay=False))
@click.option("--rounds", default=5, show_default=True, help="Processes of each build.")
def main(old: str, new: str, rounds: int) -> None:
    """Compares two builds."""
    best: dict[str, dict[str, float]] = {old: {}, new: {}}
    for _ in range(rounds):
        for source, known in best.items():
            for name, took in measure(source).items():
                known[name] = min(known.get(name, took), took)
    for name, before in best[old].items():
        after = best[new][name]
        click.echo(f"{name:24} {before:8.0f} ns {after:8.0f} ns  {after / before:.3f}")


if __name__ == "__main__":
    main()
