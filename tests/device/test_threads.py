"""Threads: eight on eight devices, eight on one; and exceptions that leave the device usable."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401
from softnpu import _C
from tests.device.process import output

THREADS = 8
SECONDS = [2.5, pytest.param(30, marks=pytest.mark.slow)]


class Work:
    """A mix of operators with the results that one thread on the CPU gets."""

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(48, 64, generator=g)
        self.w = torch.randn(64, 32, generator=g)
        self.image = torch.randn(2, 3, 9, 9, generator=g)
        self.kernel = torch.randn(4, 3, 3, 3, generator=g)
        self.expected = self.run("cpu")

    def run(self, device):
        x, w = self.x.to(device), self.w.to(device, copy=True).requires_grad_()
        y = F.layer_norm((x @ w).relu(), (32,))
        (
            y.square().mean() + F.conv2d(self.image.to(device), self.kernel.to(device)).mean()
        ).backward()
        values, indices = y.detach().sort(1)
        picked = torch.cat([values[:, ::2], values.gather(1, indices)], 1)
        out = torch.empty(0, device=device)
        torch.cumsum(picked, 0, out=out)
        half = (x.half() @ x.half().t()).float()
        return out.cpu(), w.grad.cpu(), half.cpu(), x[x > 0].sum().cpu()

    def check(self, device):
        got = self.run(device)
        for a, b in zip(got, self.expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def in_threads(work, seconds, device_of):
    """Runs `work(index, device)` again and again in eight threads; returns rounds and failures."""
    end = time.monotonic() + seconds
    rounds, failures = [0] * THREADS, []
    barrier = threading.Barrier(THREADS)

    def run(index):
        device = device_of(index)
        try:
            torch.npu.set_device(device)
            barrier.wait()
            while time.monotonic() < end and not failures:
                work(index, device)
                rounds[index] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return rounds


@pytest.fixture(autouse=True)
def one_thread_an_operator():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("devices", [8, 1])
def test_eight_threads(devices, seconds):
    work = Work()
    work.check("npu:0")
    gc.collect()
    before = [torch.npu.memory_allocated(i) for i in range(8)]
    rounds = in_threads(
        lambda _, device: work.check(device), seconds, lambda i: f"npu:{i % devices}"
    )
    assert min(rounds) >= 1
    gc.collect()
    assert [torch.npu.memory_allocated(i) for i in range(8)] == before
    assert torch.npu.current_device() == 0


def test_threads_share_tensors_of_one_device():
    total = torch.zeros(1000, device="npu:1")
    lock = threading.Lock()

    def work(index, device):
        part = torch.full((1000,), 1.0, device=device).mul(index + 1)
        with lock:
            total.add_(part)
            counts[index] += 1

    counts = [0] * THREADS
    in_threads(work, 0.5, lambda i: "npu:1")
    expected = sum((i + 1) * c for i, c in enumerate(counts))
    assert total.unique().tolist() == [expected]


def test_threads_that_allocate_and_free_for_each_other():
    """Blocks are freed by other threads than the ones that took them."""
    box, lock = [], threading.Lock()

    def work(index, device):
        mine = torch.full((index * 700 + 1,), float(index), device=device)
        with lock:
            box.append(mine)
            other = box.pop(0) if len(box) > 20 else None
        if other is not None:
            assert other.unique().numel() == 1

    before = torch.npu.memory_allocated(2)
    in_threads(work, 1.0, lambda i: "npu:2")
    box.clear()
    gc.collect()
    assert torch.npu.memory_allocated(2) == before


def test_each_thread_has_its_own_current_device():
    def work(index, device):
        assert torch.npu.current_device() == index
        assert torch.ones(1, device="npu").device.index == index
        with torch.npu.device((index + 1) % 8):
            assert torch.empty(2, device="npu").device.index == (index + 1) % 8

    in_threads(work, 0.3, lambda i: f"npu:{i}")


def test_threads_on_one_generator_draw_different_numbers():
    drawn, lock = [], threading.Lock()
    torch.manual_seed(0)

    def work(index, device):
        value = tuple(torch.rand(4, device=device).tolist())
        with lock:
            drawn.append(value)

    in_threads(work, 0.3, lambda i: "npu:0")
    assert len(set(drawn)) == len(drawn)


def test_out_of_memory_in_one_thread_leaves_the_others_alone():
    def work(index, device):
        if index == 0:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(65 * 2**30, dtype=torch.uint8, device=device)
        else:
            assert torch.ones(1000, device=device).sum().item() == 1000

    in_threads(work, 0.5, lambda i: "npu:3")


def test_recording_memory_history_while_threads_allocate():
    """The allocator asks Python for the frames, while Python's threads wait for the allocator."""
    printed = output(
        """
        import faulthandler, threading, time, torch, torch_npu
        from softnpu import _C
        faulthandler.dump_traceback_later(30, exit=True)
        _C.record_history(0, True, 100, lambda: [str(len(str(threading.active_count())))], True)
        end = time.monotonic() + 1.5
        def work(index):
            kept = []
            while time.monotonic() < end:
                kept.append(torch.empty(700 * (index + 1), device="npu"))
                del kept[:-5]
                _C.memory_stats(0)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(_C.memory_history(0)))
        """
    )
    assert printed == "100"


def test_threads_that_start_the_device_together():
    """Whoever comes first starts it; the others must find it ready."""
    printed = output(
        """
        import threading, torch, torch_npu
        barrier, sums = threading.Barrier(8), []
        def work(index):
            barrier.wait()
            sums.append((torch.ones(3, device=f"npu:{index}") + index).sum().item())
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(sorted(sums))
        """
    )
    assert printed == str([3.0 + 3 * i for i in range(8)])


# --- exceptions ----------------------------------------------------------------------------------------

FAILING = {
    "shapes": lambda: torch.ones(2, 3, device="npu") @ torch.ones(2, 3, device="npu"),
    "index": lambda: torch.ones(3, device="npu")[torch.tensor([7], device="npu")],
    "embedding": lambda: F.embedding(
        torch.tensor([9], device="npu"), torch.ones(3, 2, device="npu")
    ),
    "gather": lambda: torch.ones(3, device="npu").gather(0, torch.tensor([5], device="npu")),
    "index_select in parallel": lambda: torch.ones(70_000, 8, device="npu").index_select(
        0, torch.full((70_000,), 70_001, device="npu")
    ),
    "cholesky": lambda: torch.linalg.cholesky(-torch.eye(3, device="npu")),
    "inverse": lambda: torch.linalg.inv(torch.zeros(3, 3, device="npu")),
    "nll target": lambda: F.nll_loss(
        torch.ones(1, 3, device="npu"), torch.tensor([4], device="npu")
    ),
    "multinomial": lambda: torch.tensor([-1.0, 2], device="npu").multinomial(1),
    "integer division": lambda: torch.ones(2, dtype=torch.int, device="npu") // 0,
    "bincount": lambda: torch.bincount(torch.tensor([-1], device="npu")),
    "out dtype": lambda: torch.add(
        torch.ones(2, device="npu"), 1.5, out=torch.empty(2, dtype=torch.int, device="npu")
    ),
    "pooling": lambda: F.max_pool2d(torch.ones(1, 1, 2, 2, device="npu"), 5),
    "python kernel": lambda: _C.run_kernel(
        "test", lambda x: x @ x, (torch.ones(2, 3, device="npu"),), {}
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_exception_in_a_kernel_leaves_the_device_usable(name):
    gc.collect()
    before = torch.npu.memory_allocated()
    for _ in range(3):
        with pytest.raises((RuntimeError, IndexError, ZeroDivisionError)):
            FAILING[name]()
    gc.collect()
    assert torch.npu.memory_allocated() == before
    host = torch.empty(1 << 16)  # allocations are the CPU's again
    assert torch.npu.memory_allocated() == before and host.is_cpu
    assert (torch.ones(3, device="npu") + 1).tolist() == [2, 2, 2]
    assert torch.npu.current_device() == 0


def test_an_exception_in_backward_leaves_the_device_usable():
    x = torch.ones(2, device="npu:1", requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: grad @ torch.ones(3, 3, device="npu:1"))
    with pytest.raises(RuntimeError, match="size|shape"):
        y.sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_a_python_exception_in_a_kernel_comes_out_as_it_is():
    def body(x):
        torch.ones(100)
        raise KeyError("mine")

    before = torch.npu.memory_allocated()
    with pytest.raises(KeyError, match="mine"):
        _C.run_kernel("test", body, (torch.ones(3, device="npu"),), {})
    assert torch.npu.memory_allocated() == before and torch.ones(1).is_cpu
