"""Kind g: with poison, reads of memory that nobody wrote."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from tests.sanitizer import found_in, ready


def _empty(order):
    x = torch.empty(64, device="npu")
    if order:
        x.fill_(1)
    x + 1


def _half_written(order):
    x = torch.empty(64, device="npu")
    x[:32] = 1
    if order:
        x[32:] = 2
    x.sum()


def _every_other_column(order):
    x = torch.empty(8, 8, device="npu")
    x[:, ::2] = 1
    if order:
        x[:, 1::2] = 1
    x.sum()


def _grown(order):
    x = ready(64)
    x.resize_(128)
    if order:
        x[64:].zero_()
    x.sum()


def _copied_to_the_host(order):
    x = torch.empty_like(ready(64))
    if order:
        x.copy_(torch.ones(64))
    x.cpu()


def _in_place(order):
    x = torch.empty(64, device="npu")
    if order:
        x.zero_()
    x.add_(1)


def _operator_of_torch_npu(order):
    x = torch.empty(4, 8, device="npu")
    if order:
        x.normal_()
    torch_npu.npu_rms_norm(x, torch.ones(8, device="npu"))


PROGRAMS = [
    _empty, _half_written, _every_other_column, _grown, _copied_to_the_host, _in_place, _operator_of_torch_npu,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_first_operator_that_reads_it_is_named(program):
    (found,) = found_in(lambda: program(False), poison=True)
    assert found.kind == "g" and "bytes that nobody has written" in found.text
    assert found.accesses[0].operator in found.text
    assert any(frame.function == program.__name__ for frame in found.allocated) or program is _grown


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True), poison=True) == []


def test_fresh_memory_is_a_pattern():
    def program():
        x = torch.empty(64, device="npu")
        assert x.isnan().all()

    assert [f.kind for f in found_in(program, poison=True)] == ["g"]


def test_a_model_that_trains_is_silent():
    def program():
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)
        ).npu()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(
                model(torch.randn(4, 8, device="npu")), torch.ones(4, 2).npu()
            )
            loss.backward()
            optimizer.step()
            loss.item()

    assert found_in(program, poison=True) == []


def _index_put():
    x = torch.empty(8, 4, device="npu")
    x[torch.arange(8).npu()] = torch.ones(8, 4).npu()
    x.sum()


def _masked_fill():
    x = torch.empty(8, device="npu")
    x.masked_fill_(torch.arange(8).npu() < 4, 0.0)
    x[:4].sum()


def _scatter():
    x = torch.empty(4, 1, device="npu")
    x.scatter_(0, torch.arange(4).npu()[:, None], torch.ones(4, 1).npu())
    x.sum()


def _lists():
    many = [torch.empty(4, device="npu") for _ in range(2)]
    torch._foreach_zero_(many)
    others = [torch.empty(4, device="npu") for _ in range(2)]
    torch._foreach_copy_(others, many)
    torch._foreach_add(others, 1)


def _unused_addend():
    """Attention as it is often written: the first argument is a buffer that beta leaves out."""
    a = torch.ones(2, 4, 4).npu()
    torch.baddbmm(torch.empty(2, 4, 4, device="npu"), a, a, beta=0.0).sum()
    torch.empty(4, 4, device="npu").addmm_(a[0], a[0], beta=0).sum()


def _cache():
    keys, values = (torch.empty(4, 16, 2, 16, dtype=torch.float16, device="npu") for _ in range(2))
    new = torch.ones(3, 2, 16, dtype=torch.float16).npu()
    slots = torch.arange(3, dtype=torch.int32).npu()
    torch_npu._npu_reshape_and_cache(new, new, keys, values, slots)
    keys[0, :3].sum()


def _random():
    for fill in ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_"):
        getattr(torch.empty(8, device="npu"), fill)().sum()


@pytest.mark.parametrize(
    "program",
    [_index_put, _masked_fill, _scatter, _lists, _unused_addend, _cache, _random],
    ids=lambda p: p.__name__.strip("_"),
)
def test_what_is_only_written_is_silent(program):
    assert found_in(program, poison=True) == []


def test_an_addend_that_is_used_is_found():
    def program():
        a = torch.ones(2, 4, 4).npu()
        torch.baddbmm(torch.empty(2, 4, 4, device="npu"), a, a).sum()

    assert [f.kind for f in found_in(program, poison=True)] == ["g"]
