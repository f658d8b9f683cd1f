"""NpuFusedAdam against torch.optim.Adam."""

import torch

from tests.optim._like_torch import LikeTorch
from torch_npu.optim import NpuFusedAdam


class TestNpuFusedAdam(LikeTorch):
    fused = NpuFusedAdam
    plain = torch.optim.Adam
    good = [
        {},
        {"weight_decay": 0.1},
        {"amsgrad": True, "betas": (0.7, 0.8), "eps": 1e-3, "lr": 0.1},
    ]
    bad = [
        {"lr": -1.0},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"eps": -1e-8},
        {"weight_decay": -1},
    ]
