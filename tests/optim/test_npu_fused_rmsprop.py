"""NpuFusedRMSprop against torch.optim.RMSprop."""

import torch

from tests.optim._like_torch import LikeTorch
from torch_npu.optim import NpuFusedRMSprop


class TestNpuFusedRMSprop(LikeTorch):
    fused = NpuFusedRMSprop
    plain = torch.optim.RMSprop
    good = [
        {},
        {"weight_decay": 0.1, "momentum": 0.9},
        {"centered": True, "momentum": 0.5, "alpha": 0.8, "eps": 1e-2},
    ]
    bad = [{"lr": -1.0}, {"alpha": -0.1}, {"momentum": -0.1}, {"eps": -1e-8}, {"weight_decay": -1}]
