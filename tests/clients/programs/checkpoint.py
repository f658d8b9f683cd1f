"""torch.distributed.checkpoint with sharded parameters (FSDP2): save on every rank, load elsewhere, go on.

torchrun --nproc-per-node 2 checkpoint.py FOLDER DEVICE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def build(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model.to(device)
    # The mesh names the device: without it the accelerator is meant, for a model on the CPU too.
    fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.02)


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str) -> list[float]:
    x = torch.linspace(-1, 1, 128).reshape(16, 8).to(device)
    losses = []
    for _ in range(5):
        loss = (model(x) - x[:, :4].sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(folder: Path, device: str) -> None:
    dist.init_process_group("hccl" if device == "npu" else "gloo")
    if device == "npu":
        torch.npu.set_device(dist.get_rank())
    model, optimizer = build(device)
    first = steps(model, optimizer, device)
    assert all(isinstance(p, DTensor) and p.device.type == device for p in model.parameters())
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "checkpoint")
    straight = steps(model, optimizer, device)

    model, optimizer = build(device)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder / "checkpoint")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    again = steps(model, optimizer, device)
    if dist.get_rank() == 0:
        found = {"first": first, "straight": straight, "again": again}
        (folder / "found.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
