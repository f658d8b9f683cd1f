"""Triton kernels on npu tensors by Triton's interpreter. Skipped where triton is not installed (docs/differences.md)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

import torch_npu  # noqa: F401
from softnpu import chips


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, powers / tl.sum(powers, axis=0), mask=at < n)


@triton.jit
def matmul_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        p = start + tl.arange(0, K)
        left = tl.load(
            a + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0
        )
        right = tl.load(
            b + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0
        )
        total += tl.dot(left, right)
    tl.store(c + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


def test_vector_add():
    x, y = torch.randn(1000, device="npu"), torch.randn(1000, device="npu")
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(1000, 256),)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out.cpu(), x.cpu() + y.cpu())


def test_softmax():
    x = torch.randn(5, 37, device="npu")
    out = torch.empty_like(x)
    softmax_kernel[(5,)](x, out, x.stride(0), 37, BLOCK=64)
    torch.testing.assert_close(
        out.cpu().double(), torch.softmax(x.cpu().double(), -1), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_matmul(dtype):
    a, b = torch.randn(20, 40, device="npu").to(dtype), torch.randn(40, 24, device="npu").to(dtype)
    c = torch.empty(20, 24, device="npu", dtype=torch.float32)
    matmul_kernel[(2, 2)](a, b, c, 20, 24, 40, M=16, N=16, K=16)
    expected = a.cpu().double() @ b.cpu().double()
    torch.testing.assert_close(c.cpu().double(), expected, atol=1e-4, rtol=1e-4)


def test_views_and_no_copy(monkeypatch):
    """A kernel writes into a view of a larger tensor; neither storage is copied to the host or back."""
    copies = []
    before = torch.UntypedStorage.cpu

    def cpu(self):
        copies.append(self.device.type)
        return before(self)

    monkeypatch.setattr(torch.UntypedStorage, "cpu", cpu)
    monkeypatch.setattr(
        torch.UntypedStorage, "copy_", lambda *args: pytest.fail("a storage was copied back")
    )
    base = torch.zeros(4, 8, device="npu")
    add_kernel[(1,)](torch.ones(8, device="npu"), torch.ones(8, device="npu"), base[2], 8, BLOCK=8)
    assert "npu" not in copies
    assert base.tolist() == [[0.0] * 8, [0.0] * 8, [2.0] * 8, [0.0] * 8]


def test_host_tensors_are_refused_beside_npu_tensors():
    x = torch.ones(8, device="npu")
    with pytest.raises(RuntimeError, match="same device"):
        add_kernel[(1,)](x, torch.ones(8), x, 8, BLOCK=8)
    y, out = torch.ones(8), torch.empty(8)
    add_kernel[(1,)](y, y, out, 8, BLOCK=8)  # all on the host: Triton's own affair
    assert out.tolist() == [2.0] * 8


def test_a_launch_is_captured_and_replayed():
    x, out = torch.ones(8, device="npu"), torch.zeros(8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        add_kernel[(1,)](x, x, out, 8, BLOCK=8)
    x.fill_(3)
    graph.replay()
    assert out.tolist() == [6.0] * 8


def test_the_driver_answers_for_npu():
    driver = triton.runtime.driver.active
    target = driver.get_current_target()
    assert (target.backend, target.arch) == ("npu", chips.current().name)
    assert driver.get_active_torch_device() == torch.device("npu", 0)
    assert driver.get_current_device() == 0 and driver.is_active()
    assert driver.get_current_stream(0) == torch.npu.current_stream().npu_stream
    found = driver.utils.get_device_properties(0)
    assert found["num_vectorcore"] == chips.current().vector_cores
    assert found["num_aicore"] == chips.current().cube_cores
    assert driver.map_python_to_cpp_type("*fp16") == "void*"
    assert driver.map_python_to_cpp_type("i32") == "int32_t"
    with pytest.raises(ValueError, match="expected a type such as i32"):
        driver.map_python_to_cpp_type("what")


@pytest.mark.parametrize("order", ["torch_npu, triton", "triton, torch, torch_npu"])
def test_without_the_interpreter_the_error_says_how(order, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"import {order}\nimport torch, triton.language as tl\n"
        "@triton.jit\ndef kernel(x):\n    tl.store(x, 1.0)\n"
        "x = torch.zeros(1, device='npu')\nkernel[(1,)](x)\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment
    )
    assert (
        "NotImplementedError: Triton kernels are not compiled for an emulated device: set TRITON_IN"
        in done.stderr
    )
