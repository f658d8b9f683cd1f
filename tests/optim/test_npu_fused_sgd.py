"""NpuFusedSGD against torch.optim.SGD."""

import torch

from tests.optim._like_torch import LikeTorch
from torch_npu.optim import NpuFusedSGD


class TestNpuFusedSGD(LikeTorch):
    fused = NpuFusedSGD
    plain = torch.optim.SGD
    good = [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ]
    bad = [
        {"lr": -1.0},
        {"lr": 0.1, "momentum": -1},
        {"lr": 0.1, "weight_decay": -1},
        {"lr": 0.1, "nesterov": True},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "dampening": 0.1},
    ]
