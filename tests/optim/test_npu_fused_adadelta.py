"""NpuFusedAdadelta against torch.optim.Adadelta."""

import torch

from tests.optim._like_torch import LikeTorch
from torch_npu.optim import NpuFusedAdadelta


class TestNpuFusedAdadelta(LikeTorch):
    fused = NpuFusedAdadelta
    plain = torch.optim.Adadelta
    good = [
        {},
        {"weight_decay": 0.1},
        {"lr": 0.5, "rho": 0.7, "eps": 1e-3},
    ]
    bad = [{"lr": -1.0}, {"rho": 1.1}, {"rho": -0.1}, {"eps": -1e-8}, {"weight_decay": -1}]
