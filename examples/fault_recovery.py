"""A training loop that meets a memory fault, restarts the device and goes on from its last checkpoint.

    python examples/fault_recovery.py

The fault is an uncorrectable memory error in a weight, injected with `softnpu.faults`; on the card it comes by
itself. The loop stops the device, asks what the fault hit, restarts it, declares the tensors it will overwrite
safe, and loads the checkpoint. Its losses are those of a run without a fault.
"""

from __future__ import annotations

from typing import Any

import torch

import torch_npu  # noqa: F401
from softnpu import faults
from torch_npu.npu import _recovery


def on_host(state: Any) -> Any:
    """A copy of nested tensors that survives the device."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu().clone(), state)


def recover(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Stops and restarts device 0 and loads the checkpoint; raises where that is not enough."""
    torch.npu.stop_device(0)
    found = torch.npu.check_uce_in_memory(0)
    if found == 0:
        raise RuntimeError("the memory of device 0 has no fault: something else failed")
    torch.npu.restart_device(0)
    for tensor in model.parameters():
        _recovery.update_npu_tensor_to_safe(tensor)
    weights, moments = saved
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)


def train(steps: int, fault_at: int | None = None) -> tuple[dict[int, float], int]:
    """The loss of each step, and how often the loop recovered; a fault is injected before step `fault_at`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).npu()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    data = torch.randn(steps, 8, 4, generator=torch.Generator().manual_seed(1))
    saved: Any = None
    step, saved_at, recoveries = 0, 0, 0
    losses: dict[int, float] = {}
    while step < steps:
        if step % 2 == 0:
            saved_at, saved = step, on_host((model.state_dict(), optimizer.state_dict()))
        try:
            if step == fault_at and recoveries == 0:
                faults.memory_error(model.weight)
            optimizer.zero_grad()
            loss = model(data[step].npu()).square().mean()
            loss.backward()
            optimizer.step()
            losses[step] = loss.item()
            step += 1
        except RuntimeError as error:
            if "UCE ERROR" not in str(error):
                raise
            recoveries += 1
            recover(model, optimizer, saved)
            step = saved_at
    return losses, recoveries


def main() -> None:
    plain, _ = train(6)
    survived, recoveries = train(6, fault_at=3)
    print("step  without fault  with a fault before step 3")
    for step, loss in plain.items():
        print(f"{step:4}  {loss:13.6f}  {survived[step]:13.6f}")
    print(f"recovered {recoveries} time(s)")


if __name__ == "__main__":
    main()
