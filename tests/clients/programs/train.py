"""A training loop with accelerate, written for no device in particular; writes its losses as JSON.

accelerate launch train.py OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main(out: Path) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    inputs = torch.randn(64, 8)
    data = DataLoader(TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    losses = []
    for _ in range(6):
        for x, y in data:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    accelerator.wait_for_everyone()
    accelerator.save_state(str(out / "state"))
    accelerator.wait_for_everyone()
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(str(out / "state"))
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(before, after), "a saved state comes back"
    if accelerator.is_main_process:
        found = {
            "device": str(accelerator.device),
            "processes": accelerator.num_processes,
            "kind": accelerator.distributed_type.value,
            "losses": losses,
        }
        (out / "found.json").write_text(json.dumps(found), "utf-8")
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
