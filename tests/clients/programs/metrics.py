"""A metric over two ranks: torchrun --nproc-per-node 2 metrics.py"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torchmetrics


def main() -> None:
    dist.init_process_group("hccl")
    rank = dist.get_rank()
    torch.npu.set_device(rank)
    metric = torchmetrics.classification.BinaryAccuracy().npu()
    guess = torch.tensor([1, 1, 0, 0], device="npu")
    truth = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0]][rank], device="npu")
    metric.update(guess, truth)
    value = metric.compute()
    print(f"accuracy {value.item():g} on {value.device.type}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
