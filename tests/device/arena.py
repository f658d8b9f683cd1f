"""One device that only memory tests use, so that every figure can be worked out by hand."""

from __future__ import annotations

import gc
import os

import pytest
import torch

import torch_npu  # noqa: F401

KIB, MIB, GIB = 2**10, 2**20, 2**30
DEVICE = (
    6  # a device that no other test allocates on, so that every figure can be worked out by hand
)


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats(DEVICE)
    assert torch.npu.memory_allocated(DEVICE) == 0
    assert torch.npu.memory_reserved(DEVICE) == 0
    yield
    gc.collect()
    torch.npu.empty_cache()


def take(size):
    return torch.empty(size, dtype=torch.uint8, device=f"npu:{DEVICE}")


def stat(name):
    return torch.npu.memory_stats(DEVICE)[name]


def allocated():
    return torch.npu.memory_allocated(DEVICE)


def reserved():
    return torch.npu.memory_reserved(DEVICE)


def resident():
    """Bytes of host memory that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
