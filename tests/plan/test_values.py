"""What a program reads in a run for shapes alone."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torch_npu

pytestmark = pytest.mark.usefixtures("planned")


def large(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="npu")


def quiet(read):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read()


def test_small_integers_are_computed():
    x = torch.arange(10, device="npu")
    assert (x * x % 7).tolist() == [i * i % 7 for i in range(10)]
    assert (x > 4).sum().item() == 5
    assert torch.nonzero(x % 3 == 0).flatten().tolist() == [0, 3, 6, 9]


def test_integers_from_the_host_are_copied():
    tokens = torch.randint(1000, (4, 4096))
    assert torch.equal(tokens.npu().cpu(), tokens)


def test_a_floating_value_that_is_known_is_kept():
    scale = torch.full((), 1024.0, device="npu")
    assert (scale / 2).item() == 512.0


def test_a_loss_reads_as_one_and_a_warning_names_the_line():
    loss = large(100, 100).square().mean()
    with pytest.warns(UserWarning, match=r"test_values\.py:\d+ reads a value"):
        assert loss.item() == 1.0


def test_one_warning_for_a_line():
    loss = large(64, 64).mean()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            loss.item()
    assert len([w for w in seen if "reads a value" in str(w.message)]) == 1


def test_a_floating_tensor_is_copied_to_the_host_as_ones():
    assert quiet(lambda: large(3, 4).cpu()).tolist() == [[1.0] * 4] * 3


def test_tests_of_a_loss_take_the_way_of_a_finite_one():
    loss = large(64, 64).mean()
    assert quiet(lambda: bool(torch.isnan(loss))) is False
    assert quiet(lambda: bool(torch.isfinite(loss).all())) is True


def test_routing_is_balanced():
    _, chosen = large(64, 8).softmax(-1).topk(2, -1)
    assert quiet(lambda: torch.bincount(chosen.flatten().cpu(), minlength=8)).tolist() == [16] * 8
    assert all(a != b for a, b in quiet(chosen.tolist))


def test_routing_with_a_skew():
    torch_npu._plan.start(skew=2.0)
    _, chosen = large(64, 8).topk(2, -1)
    counts = quiet(lambda: torch.bincount(chosen.flatten().cpu(), minlength=8)).tolist()
    assert counts[0] == 32 and sum(counts) == 128
    assert max(counts[1:]) - min(counts[1:]) <= 1
    assert all(a != b for a, b in quiet(chosen.tolist))


def test_a_skew_below_one_is_refused():
    with pytest.raises(ValueError, match=r"skew must be at least 1, but is 0\.5"):
        torch_npu._plan.start(skew=0.5)


def test_a_mask_that_is_known_selects():
    mask = torch.arange(100, device="npu") % 3 == 0
    assert large(100, 7)[mask].shape == (34, 7)
    assert torch.masked_select(large(100), mask).shape == (34,)


def test_what_cannot_be_answered_names_the_line():
    mask = large(4096, 4096) > 0
    with pytest.raises(RuntimeError, match=r"test_values\.py:\d+ needs the values of a tensor"):
        torch.nonzero(mask)


def test_a_scaler_takes_its_steps():
    model = torch.nn.Linear(64, 64).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=256.0)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for _ in range(2):
        scaler.scale(model(large(8, 64)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(steps) == 2
    assert scaler.get_scale() == 256.0


def test_shapes_are_checked_as_always():
    with pytest.raises(RuntimeError, match="same reduction dim|cannot be multiplied"):
        torch.mm(large(2, 3), large(4, 5))
    with pytest.raises(RuntimeError, match="The size of tensor a|[Bb]roadcast"):
        large(3).add_(large(4))


def test_memory_is_limited_as_always():
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        large(400_000, 400_000)


def test_no_page_is_touched():
    from pathlib import Path

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    x = torch.randn(8192, 65536, device="npu", dtype=torch.bfloat16)  # 1 GiB
    for _ in range(3):
        x = F.gelu(x) + torch_npu.npu_rms_norm(x, torch.ones(65536, device="npu", dtype=x.dtype))[0]
    assert resident() - before < 64 << 20


def test_the_gradient_of_our_operators():
    x = torch.randn(4, 512, 1024, device="npu", dtype=torch.bfloat16, requires_grad=True)
    w = torch.ones(1024, device="npu", dtype=torch.bfloat16, requires_grad=True)
    y = torch_npu.npu_swiglu(torch_npu.npu_rms_norm(x, w)[0])
    y.sum().backward()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape


def test_computing_again_afterwards():
    torch_npu._plan.stop()
    assert (torch.ones(4, device="npu") * 3).tolist() == [3.0] * 4
