"""Triton kernels on npu tensors by Triton's interpreter. Skipped where triton is not installed (docs/differences.md)."""

from __future__ import annotations

import importlib.util
import inspect
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
from triton.language.extra.cann import libdevice
from triton.language.extra.cann.extension import extract_slice, get_element, insert_slice

import torch_npu  # noqa: F401
from softnpu import chips
from softnpu.triton import references


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


@triton.jit
def slices_kernel(x, out, one):
    at = tl.arange(0, 16)
    values = tl.load(x + at)
    odd = extract_slice(values, offsets=(1,), sizes=(8,), strides=(2,))
    tl.store(out + at, insert_slice(values, odd, (8,), (8,), (1,)))
    tl.store(one, get_element(values, (3,)))


@triton.jit
def outside_kernel(x, out):
    values = tl.load(x + tl.arange(0, 16))
    tl.store(out + tl.arange(0, 8), extract_slice(values, (9,), (8,), (1,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_slices_and_elements_of_cann(dtype):
    x = torch.arange(16).to(dtype)
    out, one = torch.zeros(16, dtype=dtype).npu(), torch.zeros(1, dtype=dtype).npu()
    slices_kernel[(1,)](x.npu(), out, one)
    assert out.tolist() == [*x[:8].tolist(), *x[1::2].tolist()] and one.item() == 3


def test_a_slice_outside_raises():
    x, out = torch.zeros(16, device="npu"), torch.zeros(8, device="npu")
    with pytest.raises(Exception, match=r"must stay inside the shape \[16\]"):
        outside_kernel[(1,)](x, out)


@triton.jit
def libdevice_kernel(x, out, nan):
    at = tl.arange(0, 8)
    values = tl.load(x + at)
    tl.store(out + at, libdevice.log1p(libdevice.round(values)))
    tl.store(nan + at, libdevice.isnan(values).to(tl.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_libdevice_of_cann(dtype):
    x = torch.tensor([0.5, 1.5, 2.4, 2.5, 0.0, 7.9, 100.0, float("nan")]).to(dtype)
    rounded = torch.tensor([1.0, 2.0, 2.0, 3.0, 0.0, 8.0, 100.0, float("nan")])
    out, nan = torch.zeros(8, dtype=dtype).npu(), torch.zeros(8, dtype=torch.int32).npu()
    libdevice_kernel[(1,)](x.npu(), out, nan)
    torch.testing.assert_close(out.cpu(), torch.log1p(rounded).to(dtype), equal_nan=True)
    assert nan.tolist() == [0] * 7 + [1]


def test_without_the_variable_kernels_are_interpreted_despite_empty_gluon_modules(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, types\n"
        "for name in ('triton.experimental.gluon', 'triton.experimental.gluon.language'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "import torch, torch_npu, triton, triton.language as tl\n"
        "@triton.jit\ndef kernel(x, n):\n    tl.store(x, tl.cdiv(n, 2) * 1.0)\n"
        "x = torch.zeros(1, device='npu')\nkernel[(1,)](x, 7)\nassert x.item() == 4, x\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


@triton.jit
def bfloat16_kernel(x, y, sums, best, products, out):
    rows, columns = tl.arange(0, 16), tl.arange(0, 16)
    at = rows[:, None] * 16 + columns[None, :]
    a, b = tl.load(x + at), tl.load(y + at)
    value = tl.where(a > b, a * b + a, -(b * b))
    tl.store(out + at, tl.maximum(value, -1.0))
    tl.store(sums + rows, tl.sum(a, axis=1))
    tl.store(best + rows, tl.max(a, axis=1))
    tl.store(products + at, tl.dot(a, b))


def test_arithmetic_of_bfloat16():
    """Triton's interpreter alone calculates with the bits."""
    x, y = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    out, products = torch.zeros(16, 16).bfloat16().npu(), torch.zeros(16, 16).npu()
    sums, best = torch.zeros(16).bfloat16().npu(), torch.zeros(16).bfloat16().npu()
    bfloat16_kernel[(1,)](x.npu(), y.npu(), sums, best, products, out)
    expected = torch.where(x > y, x.double() * y.double() + x.double(), -y.double().square())
    close = {"atol": 0.05, "rtol": 0.02}
    torch.testing.assert_close(out.cpu().double(), expected.clamp(min=-1), **close)
    torch.testing.assert_close(sums.cpu().double(), x.double().sum(1), **close)
    assert torch.equal(best.cpu(), x.max(1).values)
    expected = x.double() @ y.double()
    torch.testing.assert_close(products.cpu().double(), expected, atol=1e-4, rtol=1e-4)


@triton.jit
def _add_columns(x, y, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    both = tl.load(x + at)[:, None] + tl.load(y + at)[None, :]
    tl.store(out + at, tl.sum(both, 1))


def test_blocks_of_any_size():
    """triton-ascend takes block sizes that are no powers of two."""
    x, y = torch.randn(48), torch.randn(48)
    out = torch.empty(48).npu()
    _add_columns[(1,)](x.npu(), y.npu(), out, 48)
    torch.testing.assert_close(
        out.cpu().double(), 48 * x.double() + y.double().sum(), rtol=1e-5, atol=1e-4
    )


@triton.jit
def _double(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) * 2)


def test_a_reference_stands_for_one_version_of_a_kernel(monkeypatch):
    """Found by module, name and source; with another digest the kernel is interpreted."""
    monkeypatch.setattr(references, "_references", {})
    monkeypatch.setattr(references, "_found", {})
    seen = []

    def double(grid, x, out, SIZE):
        seen.append((grid, SIZE, x.device.type))
        out.copy_(x * 2)

    name, right = f"{__name__}._double", references.digest(inspect.getsource(_double.fn))
    x = torch.arange(8.0).npu()
    for known, launches in ((right, 1), ("another", 1)):
        references.register(name, double, known)
        out = torch.zeros(8).npu()
        _double[(2,)](x, out, SIZE=4, num_warps=1)
        assert torch.equal(out.cpu(), torch.arange(0.0, 16, 2))
        assert len(seen) == launches
    assert seen == [((2,), 4, "cpu")]


def test_the_digest_of_a_source():
    source = "@jit\ndef f(x):  # why\n    return x + 1\n"
    assert references.digest(source) == references.digest("def f(x):\n\n    return x  +  1  # so\n")
    assert references.digest(source) != references.digest("def f(x):\n    return x + 2\n")
