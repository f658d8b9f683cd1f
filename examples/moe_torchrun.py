"""Trains a small mixture-of-experts language model with expert and data parallelism.

    torchrun --nproc_per_node 4 examples/moe_torchrun.py

Each rank holds its share of the experts and its own part of every batch. Tokens travel to their experts and back by
all_to_all with gradients; everything but the experts is data parallel. At the end the trained layer runs once more by the
fused operators of inference, npu_moe_distribute_dispatch_v2 and npu_moe_distribute_combine_v2, and gives the same.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single

import torch_npu

TEXT = (
    "an emulated device computes what the documentation says, on a laptop, in a test, in a container. "
    "every rank holds some experts; every token asks two of them. "
) * 20
HIDDEN, CONTEXT, EXPERTS, TOP_K = 64, 32, 8, 2


class Experts(nn.Module):
    """A layer of experts, shared out over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        if EXPERTS % self.ranks != 0:
            raise SystemExit(f"{EXPERTS} experts cannot be shared out over {self.ranks} ranks")
        self.local = EXPERTS // self.ranks
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        generator = torch.Generator().manual_seed(1000 + self.rank)
        self.up = nn.Parameter(
            torch.randn(self.local, HIDDEN, 2 * HIDDEN, generator=generator) * 0.1
        )
        self.down = nn.Parameter(
            torch.randn(self.local, 2 * HIDDEN, HIDDEN, generator=generator) * 0.1
        )

    def run_local(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """This rank's experts on rows that are ordered by expert."""
        parts = rows.split(counts)
        return torch.cat([F.gelu(p @ self.up[e]) @ self.down[e] for e, p in enumerate(parts)])

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.gate(x).softmax(-1)
        weight, expert = scores.topk(TOP_K, -1)
        return weight / weight.sum(-1, keepdim=True), expert

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = self.route(x)
        order = expert.reshape(-1).argsort(stable=True)  # by expert, hence by rank
        counts = torch.bincount(expert.reshape(-1), minlength=EXPERTS)
        table = torch.empty(self.ranks, EXPERTS, dtype=counts.dtype, device=x.device)
        dist.all_gather(list(table.unbind()), counts)
        table = table.view(self.ranks, self.ranks, self.local)  # from, to, expert
        send, receive = table[self.rank].sum(1).tolist(), table[:, self.rank].sum(1).tolist()

        sent = x.repeat_interleave(TOP_K, 0)[order]
        arrived = all_to_all_single(sent, receive, send, dist.group.WORLD)
        owner = torch.arange(self.local, device=x.device).repeat(self.ranks)
        to_expert = owner.repeat_interleave(table[:, self.rank].reshape(-1)).argsort(stable=True)
        done = self.run_local(arrived[to_expert], table[:, self.rank].sum(0).tolist())
        back = torch.empty_like(done).index_copy(0, to_expert, done)
        returned = all_to_all_single(back, send, receive, dist.group.WORLD)
        results = torch.zeros_like(returned).index_copy(0, order, returned)
        return (results.view(-1, TOP_K, HIDDEN) * weight.unsqueeze(-1)).sum(1)

    @torch.no_grad()
    def fused(self, x: torch.Tensor) -> torch.Tensor:
        """The same layer by the operators that inference uses."""
        backend = dist.group.WORLD._get_backend(torch.device("npu"))
        where = (backend.get_hccl_comm_name(self.rank), self.ranks, self.rank, EXPERTS)
        weight, expert = self.route(x)
        expert = expert.int()
        rows, _, info, counts, received, _, _ = torch_npu.npu_moe_distribute_dispatch_v2(
            x.half(), expert, *where
        )
        done = torch.zeros_like(rows)
        count = int(counts.sum())
        done[:count] = self.run_local(rows[:count].float(), counts.tolist()).half()
        return torch_npu.npu_moe_distribute_combine_v2(done, expert, info, received, weight, *where)


class Model(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, HIDDEN)
        self.mix = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.norm = nn.LayerNorm(HIDDEN)
        self.experts = Experts()
        self.head = nn.Linear(HIDDEN, letters)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x, _ = self.mix(self.embed(letters))
        flat = self.norm(x).view(-1, HIDDEN)
        return self.head(x + self.experts(flat).view_as(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, over all ranks")
    options = parser.parse_args()

    torch_npu.npu.set_device(int(os.environ["LOCAL_RANK"]) % torch_npu.npu.device_count())
    dist.init_process_group("hccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    alphabet = sorted(set(TEXT))
    text = torch.tensor([alphabet.index(c) for c in TEXT])
    torch.manual_seed(0)
    model = Model(len(alphabet)).npu()
    shared = [
        p
        for name, p in model.named_parameters()
        if "experts.up" not in name and "experts.down" not in name
    ]
    for parameter in shared:
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    dice = torch.Generator().manual_seed(rank)
    for step in range(options.steps):
        starts = torch.randint(
            len(text) - CONTEXT - 1, (options.batch // ranks,), generator=dice
        ).tolist()
        chunk = torch.stack([text[s : s + CONTEXT + 1] for s in starts]).npu()
        loss = F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        for parameter in (model.experts.up, model.experts.down):
            parameter.grad /= ranks  # all ranks' tokens have come here already
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0 and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step:3d}  loss {mean.item():.3f}", flush=True)

    x = torch.randn(16, HIDDEN, generator=dice).npu()
    worst = (model.experts(x) - model.experts.fused(x).float()).abs().max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"fused operators differ from the training path by {worst.item():.4f} at most")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
