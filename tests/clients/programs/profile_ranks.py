"""Two ranks train under the profiler and write their profiles: torchrun ... profile_ranks.py FOLDER."""

import sys

import torch
import torch.distributed as dist

import torch_npu

dist.init_process_group("hccl")
rank = dist.get_rank()
torch.npu.set_device(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).npu())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
profiler = torch_npu.profiler
options = profiler._ExperimentalConfig(
    export_type=[profiler.ExportType.Db, profiler.ExportType.Text],
    profiler_level=profiler.ProfilerLevel.Level1,
    mstx=True,
)
with profiler.profile(
    schedule=profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=profiler.tensorboard_trace_handler(sys.argv[1]),
    experimental_config=options,
) as running:
    for _ in range(3):
        x = torch.randn(8, 32).npu()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        running.step()
dist.destroy_process_group()
