"""Shared by the tests of sgl-kernel-npu's operators, `ops`, which `library` defines before they run."""

import pytest
import torch

from softnpu.contrib import sgl_kernel_npu

ops = torch.ops.npu


@pytest.fixture(scope="module", autouse=True)
def library():
    sgl_kernel_npu.install()
    torch.ops.load_library("/nowhere/lib/libsgl_kernel_npu.so")


def npu(*tensors):
    return tuple(None if tensor is None else tensor.npu() for tensor in tensors)


def close(found, expected, tolerance=2e-2):
    torch.testing.assert_close(found.cpu().double(), expected, atol=tolerance, rtol=tolerance)
