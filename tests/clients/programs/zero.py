"""Trains a small network with DeepSpeed's ZeRO on every rank; rank 0 writes the losses and the weights to a file.

torchrun --nproc-per-node 2 zero.py FILE STAGE-OFFLOAD-DTYPE..., with OFFLOAD one of none, optimizer, parameters.
"""

from __future__ import annotations

import sys

import deepspeed
import torch

STEPS, ROWS, WIDTH = 6, 8, 16


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 1))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all ranks."""
    make = torch.Generator().manual_seed(100 + step)
    x = torch.randn(ROWS, WIDTH, generator=make)
    return x, x[:, :1] * 2 - x[:, 1:2]


def config(stage: int, offload: str, dtype: str, ranks: int) -> dict:
    zero: dict = {
        "stage": stage,
        "overlap_comm": stage > 1,
        "stage3_param_persistence_threshold": 0,
    }
    if offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    made = {
        "train_micro_batch_size_per_gpu": ROWS // ranks,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01, "torch_adam": offload != "none"}},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
    }  # fmt: skip
    half = {"enabled": True} | ({"initial_scale_power": 8} if dtype == "fp16" else {})
    return made | ({dtype: half} if dtype != "fp32" else {})


def train(stage: int, offload: str, dtype: str) -> dict:
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = network()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=config(stage, offload, dtype, ranks),
    )
    assert engine.device.type == "npu" and torch.distributed.get_backend() == "hccl"
    losses = []
    for step in range(STEPS):
        x, y = (part.chunk(ranks)[rank].to(engine.device) for part in batch(step))
        x = x.to({"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
        loss = torch.nn.functional.mse_loss(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / ranks)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        weights = {n: p.detach().float().cpu().clone() for n, p in engine.module.named_parameters()}
    engine.destroy()
    return {"losses": losses, "weights": weights}


def main(file: str, *forms: str) -> None:
    deepspeed.init_distributed()
    found = {}
    for form in forms:
        stage, offload, dtype = form.split("-")
        found[form] = train(int(stage), offload, dtype)
    if torch.distributed.get_rank() == 0:
        torch.save(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
