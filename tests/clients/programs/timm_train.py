"""Trains a model of timm for three steps, as written for cuda: timm_train.py MODEL cuda|cpu."""

import sys

import timm
import torch
from timm.optim import create_optimizer_v2

import torch_npu  # noqa: F401
from torch_npu.contrib import transfer_to_npu  # noqa: F401

name, device = sys.argv[1:]
torch.manual_seed(0)
options = {"img_size": 32, "patch_size": 8, "depth": 2} if name.startswith("vit") else {}
model = timm.create_model(name, num_classes=5, **options)
images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
if device == "cuda":
    model, images, labels = model.cuda(), images.cuda(), labels.cuda()
    assert images.is_cuda and images.device.type == "npu"
optimizer = create_optimizer_v2(model, "adamw", lr=1e-3)
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", f"{loss.item():.6f}")
