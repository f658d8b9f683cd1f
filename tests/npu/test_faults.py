"""softnpu.faults, and the functions that meet them: stop, restart, UCE, stress test."""

import threading

import pytest
import torch

import torch_npu
from examples.fault_recovery import train
from softnpu import faults
from torch_npu.npu import _recovery


def test_a_stopped_device_refuses_work_until_restarted():
    x = torch.ones(3, device="npu")
    assert torch.npu.stop_device(0) == 0
    works = (
        lambda: x + 1,
        lambda: x.cpu(),
        lambda: torch.ones(2, device="npu"),
        torch.npu.synchronize,
    )
    for work in works:
        with pytest.raises(
            RuntimeError, match=r"FORCE STOP\.(.|\n)*ERR00100 PTA call acl api failed"
        ):
            work()
    assert torch.ones(2, device="npu:1").sum().item() == 2
    torch.npu.restart_device(0)
    assert (x + 1).sum().item() == 6


def test_own_operators_and_backward_stop_too():
    x = torch.ones(2, 8, device="npu", requires_grad=True)
    loss = (x * x).sum()
    torch.npu.stop_device(0)
    with pytest.raises(RuntimeError, match="FORCE STOP"):
        loss.backward()
    with pytest.raises(RuntimeError, match="FORCE STOP"):
        torch_npu.npu_rms_norm(x, x[0])
    torch.npu.restart_device(0)
    loss.backward()
    assert torch.equal(x.grad.cpu(), torch.full((2, 8), 2.0))


def test_restarting_a_running_device_changes_nothing():
    x = torch.ones(2, device="npu")
    torch.npu.restart_device(0)
    assert x.sum().item() == 2


def test_a_copy_makes_its_target_safe_again():
    lost, fresh = torch.ones(2, device="npu"), None
    _recovery.set_npu_tensor_unsafe_check_flag(True)
    _recovery.mark_all_npu_tensor_unsafe(0)
    fresh = torch.full((2,), 5.0, device="npu")
    assert not _recovery.check_npu_tensor_is_safe(lost)
    with pytest.raises(RuntimeError, match="There is unsafe data in the input tensor"):
        fresh.copy_(lost)
    lost.copy_(fresh)
    assert _recovery.check_npu_tensor_is_safe(lost) and (lost + 1).tolist() == [6.0, 6.0]


def test_rebuilding_all_resources_loses_the_tensors():
    x, y = torch.ones(2, device="npu"), torch.ones(2, device="npu")
    torch.npu.stop_device(0)
    torch.npu.restart_device(0, rebuild_all_resources=True)
    assert _recovery.get_npu_tensor_unsafe_check_flag() is True
    assert _recovery.check_npu_tensor_is_safe(x) is False
    with pytest.raises(RuntimeError, match="There is unsafe data in the input tensor"):
        x + 1
    _recovery.update_npu_tensor_to_safe(x)
    assert _recovery.check_npu_storage_is_safe(x.untyped_storage())
    x.copy_(torch.full((2,), 5.0))
    assert (x + 1).sum().item() == 12
    assert _recovery.check_npu_tensor_is_safe(torch.ones(2, device="npu"))  # made afterwards
    torch.npu.restart_device(0, rebuild_all_resources=True, disable_tensor_unsafe_check=True)
    assert (x + 1).sum().item() == 12
    del y


def test_a_memory_error_raises_at_the_next_operator():
    x = torch.ones(1000, device="npu")
    address = faults.memory_error(x)
    assert torch.npu._get_uce_addr() == [{"ptr": address, "size": 32}]
    with pytest.raises(RuntimeError, match=r"UCE ERROR\."):
        torch.ones(2, device="npu") + 1
    torch.npu.restart_device(0)
    assert torch.npu._get_uce_addr() == []
    assert (x + 1).sum().item() == 2000


def test_classes_of_memory_errors():
    assert torch.npu.check_uce_in_memory(0) == 0
    faults.memory_error(4096)
    assert torch.npu.check_uce_in_memory(0) == 1
    torch.npu.restart_device(0)

    x = torch.empty(64 * 2**20, dtype=torch.uint8, device="npu")
    address = x.data_ptr()
    del x
    faults.memory_error(address)
    assert torch.npu.check_uce_in_memory(0) == 2
    torch.npu.restart_device(0)

    y = torch.ones(64 * 2**20, dtype=torch.uint8, device="npu")
    faults.memory_error(y)
    assert torch.npu.check_uce_in_memory(0) == 3
    torch.npu.restart_device(0)
    assert not _recovery.check_npu_tensor_is_safe(y)  # its bytes are lost
    with pytest.raises(RuntimeError, match="unsafe data"):
        y.sum()
    faults.fail("ecc")
    assert torch.npu.check_uce_in_memory(0) == 3


@pytest.mark.parametrize(
    "kind, text",
    [
        ("link", "HCCS LINK ERROR"),
        ("ecc", "HBM MULTI BIT ECC ERROR"),
        ("suspect_memory", "SUSPECT MEM ERROR"),
        ("suspect_remote", "SUSPECT REMOTE ERROR"),
        ("retry", "HCCL OP RETRY FAILED"),
        ("stuck", "507014"),
    ],
)
def test_other_errors(kind, text):
    x = torch.ones(2, device="npu:1")
    faults.fail(kind, device=1)
    with pytest.raises(RuntimeError, match=text):
        x.exp()
    torch.ones(2, device="npu:0").exp()
    torch.npu.restart_device(1)
    x.exp()


def test_silent_corruption_is_found_by_the_stress_test():
    a = torch.ones(4, 4, device="npu")
    assert torch.npu.stress_detect() == 0
    faults.corrupt_products(after=1)
    assert torch.equal((a @ a).cpu(), torch.full((4, 4), 4.0))
    wrong = (a @ a).cpu()
    assert (wrong != 4.0).sum() == 1
    assert torch.npu.stress_detect("aic") == 2
    faults.clear()
    assert torch.npu.stress_detect("aic") == 0


def test_results_of_the_stress_test():
    for result in (1, 2):
        faults.stress("aic", result)
        assert torch.npu.stress_detect() == result
    faults.stress("aic", 3)
    with pytest.raises(RuntimeError, match="574007"):
        torch.npu.stress_detect()
    with pytest.warns(UserWarning, match="`aic` or `hccs`"):
        assert torch.npu.stress_detect("memory") == 1
    with pytest.warns(UserWarning, match="torch.distributed should be initialized"):
        assert torch.npu.stress_detect("hccs") == 1


def test_hccs_stress_test(tmp_path, monkeypatch):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.warns(UserWarning, match="are not set"):
            assert torch.npu.stress_detect("hccs") == 1
        for name in ("RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
            monkeypatch.setenv(name, "1" if "SIZE" in name else "0")
        assert torch.npu.stress_detect("hccs") == 0
        faults.stress("hccs", 2)
        assert torch.npu.stress_detect("hccs") == 2
    finally:
        torch.distributed.destroy_process_group()


def test_out_of_memory_at_the_nth_allocation():
    faults.out_of_memory(nth=3)
    kept = [torch.empty(1, device="npu") for _ in range(2)]
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(1, device="npu")
    assert torch.empty(1, device="npu").numel() == len(kept) - 1


def test_injected_ends_with_the_block():
    x = torch.ones(1, device="npu")
    with faults.injected():
        faults.link_error()
        with pytest.raises(RuntimeError, match="LINK"):
            x + 1
    assert (x + 1).item() == 2


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda: faults.memory_error(torch.ones(1)), ValueError, "must be an npu tensor"),
        (lambda: faults.memory_error("here"), TypeError, "npu tensor or an address"),
        (lambda: faults.memory_error(1, size=0), ValueError, "size must be positive"),
        (lambda: faults.fail("fire"), ValueError, "kind must be one of link"),
        (lambda: faults.link_error(9), ValueError, "device must be from 0 to 7"),
        (lambda: faults.link_error("npu:0"), TypeError, "index of a device"),
        (lambda: faults.stress("gpu", 1), ValueError, "kind must be one of aic, hccs"),
        (lambda: faults.stress("aic", 7), ValueError, "result must be 0, 1, 2 or 3"),
        (lambda: faults.corrupt_products(-1), ValueError, "after must not be negative"),
        (lambda: faults.out_of_memory(0), ValueError, "nth must be at least 1"),
        (lambda: torch_npu.npu.stop_device("npu:0"), TypeError, "device_id must be an int"),
        (lambda: torch_npu.npu.stop_device(9), RuntimeError, "invalid NPU device index 9"),
        (lambda: torch_npu.npu.restart_device(9), RuntimeError, "invalid NPU device index 9"),
        (lambda: torch_npu.npu.check_uce_in_memory(9), RuntimeError, "invalid NPU device index 9"),
        (lambda: _recovery.check_npu_tensor_is_safe(3), RuntimeError, "should be Tensor"),
        (lambda: _recovery.update_npu_storage_to_safe(3), RuntimeError, "UntypedStorage"),
    ],
)
def test_wrong_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_faults_come_and_go_while_another_thread_works():
    begun, done, results = threading.Event(), threading.Event(), []

    def work():
        x = torch.ones(8, 8, device="npu")
        while not done.is_set():
            results.append((x @ x).relu().sum())
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    for _ in range(20):
        torch.npu.stop_device(1)
        torch.npu.restart_device(1)
    done.set()
    thread.join()
    assert all(r.item() == 512 for r in results)


def test_training_survives_a_fault_and_ends_the_same():
    plain, none = train(6)
    recovered, once = train(6, fault_at=3)
    assert (none, once) == (0, 1)
    assert recovered == pytest.approx(plain, rel=1e-6)
