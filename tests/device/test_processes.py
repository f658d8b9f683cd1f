"""Loaders with workers, forks, and tensors shared between spawned processes."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

import torch_npu  # noqa: F401
from tests.device.process import output

# --- loaders ---


def test_dataloader_with_workers_and_pinned_memory():
    data = TensorDataset(torch.arange(32.0).reshape(16, 2), torch.arange(16))
    loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
    total = torch.zeros(2, device="npu")
    for features, labels in loader:
        assert features.is_pinned() and labels.is_pinned()
        total += features.to("npu", non_blocking=True).sum(0)
    assert total.tolist() == [240, 256]


def test_dataloader_pins_without_workers():
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), pin_memory=True)
    assert all(batch[0].is_pinned() for batch in loader)


class OnDevice(torch.utils.data.Dataset):
    """Uses the device in the worker and reports the error as an item."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        with pytest.raises(RuntimeError) as error:
            torch.ones(1, device="npu")
        return str(error.value)


def test_device_work_in_a_forked_worker_is_a_clear_error():
    torch.ones(1, device="npu")
    loader = DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork")
    assert [batch[0] for batch in loader] == [
        "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the "
        "'spawn' start method"
    ]


# --- processes ---


def test_a_forked_child_lets_go_of_tensors_while_the_parent_allocates():
    """The allocator's lock may be held at the moment of the fork; the child must not wait for it."""
    printed = output(
        """
        import os, threading, torch, torch_npu
        held = [torch.ones(64, device="npu") for _ in range(50)]
        stop = threading.Event()
        def allocate():
            while not stop.is_set():
                [torch.empty(n, device="npu") for n in range(1, 200)]
        workers = [threading.Thread(target=allocate) for _ in range(2)]
        for worker in workers:
            worker.start()
        codes = []
        for _ in range(30):
            child = os.fork()
            if child == 0:
                held.clear()
                os._exit(0)
            codes.append(os.waitpid(child, 0)[1])
        stop.set()
        for worker in workers:
            worker.join()
        print(set(codes), held[0].sum().item())
        """
    )
    assert printed == "{0} 64.0"


def test_fork_is_detected():
    printed = output(
        """
        import os, sys, torch, torch_npu
        x = torch.ones(3, device="npu")
        def attempt(what):
            try:
                what()
            except RuntimeError as error:
                print("Cannot re-initialize NPU in forked subprocess" in str(error), "spawn" in str(error))
            else:
                print("no error")
        if os.fork() == 0:
            attempt(lambda: torch.ones(1, device="npu"))
            attempt(lambda: x + 1)
            attempt(lambda: x.cpu())
            attempt(lambda: torch.npu.current_device())
            attempt(lambda: torch.npu.synchronize())
            attempt(lambda: torch.npu.Stream())
            torch.manual_seed(0)  # workers do this; it must pass
            print(torch.npu._is_in_bad_fork(), torch.npu.is_initialized(), torch.ones(2).sum().item())
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print(torch.npu._is_in_bad_fork(), (x + 1).sum().item())
        """
    ).split("\n")
    assert printed == ["True True"] * 6 + ["True False 2.0", "False 6.0"]


def test_a_fork_before_the_first_use_is_fine():
    printed = output(
        """
        import os, sys, torch, torch_npu
        torch.npu.device_count(), torch.npu.is_available()
        if os.fork() == 0:
            print(torch.ones(3, device="npu").sum().item())
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print(torch.ones(4, device="npu").sum().item())
        """
    )
    assert printed.split("\n") == ["3.0", "4.0"]


def _child(inbox, outbox):
    whole, part, parameter, storage, typed = inbox.get(timeout=60)
    devices = [str(t.device) for t in (whole, part, parameter, storage)]
    kinds = [type(parameter).__name__, parameter.requires_grad, part.stride(), part.tolist()]
    kinds += [type(typed).__name__, typed.dtype, typed.tolist()]
    whole.add_(100)
    fresh = torch.full((3,), 5.0, device="npu:1")
    outbox.put((devices, kinds, part.sum().item(), fresh))
    inbox.get(timeout=60)  # stay until the parent has read `fresh`
    outbox.put(fresh.tolist())


def test_sharing_between_spawned_processes():
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_child, args=(inbox, outbox), daemon=True)
    process.start()
    try:
        whole = torch.arange(6.0, device="npu:2").reshape(2, 3)
        before = whole.clone()
        parameter = torch.nn.Parameter(torch.ones(2, device="npu"))
        half = torch.ones(2, device="npu", dtype=torch.float16)
        inbox.put((whole, whole.t()[1:], parameter, half.untyped_storage(), half._typed_storage()))
        devices, kinds, total, fresh = outbox.get(timeout=60)
        assert devices == ["npu:2", "npu:2", "npu:0", "npu:0"]
        assert kinds[:4] == ["Parameter", True, (1, 3), [[1, 4], [2, 5]]]
        assert kinds[4:] == ["TypedStorage", torch.float16, [1, 1]]
        assert torch.equal(whole, before + 100)  # the child wrote our memory
        assert total == (1 + 4 + 2 + 5) + 400  # and its view saw its write
        assert str(fresh.device) == "npu:1" and fresh.tolist() == [5, 5, 5]
        fresh.mul_(2)
        inbox.put("go on")
        assert outbox.get(timeout=60) == [10, 10, 10]  # we wrote the child's memory
        process.join(60)
        assert process.exitcode == 0
        assert fresh.tolist() == [10, 10, 10]  # the bytes outlive the process that made them
    finally:
        if process.is_alive():
            process.terminate()


def test_sharing_refuses_a_tensor_with_history():
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(2, device="npu", requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        ForkingPickler.dumps(x)


def test_sharing_keeps_the_values_and_frees_the_host_copy():
    from multiprocessing.reduction import ForkingPickler

    from torch_npu import _multiprocessing

    x = torch.arange(5.0, device="npu")
    view = x[1:]
    ForkingPickler.dumps(x)
    ForkingPickler.dumps(view)  # the same storage: shared once
    x.add_(1)
    assert view.tolist() == [2, 3, 4, 5] and x.device.type == "npu"
    del x, view
    _multiprocessing.forget_freed()
    assert not _multiprocessing._shared


def test_share_memory_is_a_no_op_as_on_cuda():
    x = torch.ones(3, device="npu")
    assert x.share_memory_() is x and x.is_shared()
    module = torch.nn.Linear(2, 2).npu()
    assert module.share_memory() is module and module.weight.is_npu
