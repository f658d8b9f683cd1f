"""`out=`, `resize_` and `set_`: outputs grow, and the new storage and geometry are written back."""

from __future__ import annotations

import gc

import pytest
import torch

import torch_npu  # noqa: F401


def npu(*values, **options):
    return torch.tensor(values, device="npu", **options)


# --- out= ---


def test_out_writes_the_given_memory():
    out = torch.empty(3, device="npu")
    at = out.data_ptr()
    torch.add(npu(1.0, 2, 3), 1, out=out)
    assert out.tolist() == [2, 3, 4] and out.data_ptr() == at


def test_out_may_be_a_strided_view():
    base = torch.zeros(3, 4, device="npu")
    torch.exp(torch.zeros(3, device="npu"), out=base[:, 1])
    assert base.cpu().sum() == 3 and base[:, 1].tolist() == [1, 1, 1]


RESIZED = {
    "abs": lambda x, o: torch.abs(x, out=o),
    "logsumexp": lambda x, o: torch.logsumexp(x, 1, out=o),
    "logical_not": lambda x, o: torch.logical_not(x, out=o),
    "logical_and": lambda x, o: torch.logical_and(x, x, out=o),
    "polar": lambda x, o: torch.polar(x.abs(), x, out=o),
    "complex": lambda x, o: torch.complex(x, x, out=o),
    "mm": lambda x, o: torch.mm(x, x.t(), out=o),
    "cat": lambda x, o: torch.cat([x, x], out=o),
    "stack": lambda x, o: torch.stack([x, x], out=o),
    "index_select": lambda x, o: torch.index_select(
        x, 1, torch.tensor([0, 2], device=x.device), out=o
    ),
    "nonzero": lambda x, o: torch.nonzero(x, out=o),
    "masked_select": lambda x, o: torch.masked_select(x, x > 0, out=o),
    "linalg.norm": lambda x, o: torch.linalg.norm(x, out=o),
    "sum": lambda x, o: torch.sum(x, 0, out=o),
    "arange": lambda x, o: torch.arange(7, out=o),
    "fft": lambda x, o: torch.fft.fft(x, out=o),
    "isin": lambda x, o: torch.isin(x, x[0], out=o),
}


@pytest.mark.parametrize("name", RESIZED)
def test_empty_outputs_are_resized_and_written_back(name):
    host = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    dtype = RESIZED[name](host, torch.empty(0, dtype=_dtype(name))).dtype
    expected = RESIZED[name](host, torch.empty(0, dtype=dtype))
    out = torch.empty(0, dtype=dtype, device="npu")
    returned = RESIZED[name](host.npu(), out)
    assert returned is out
    assert (out.shape, out.stride()) == (expected.shape, expected.stride())
    assert out.device.type == "npu" and out.untyped_storage().device.type == "npu"
    torch.testing.assert_close(out.cpu(), expected)
    out.add_(out)  # the new storage is whole and writable
    torch.testing.assert_close(out.cpu(), expected + expected)


def _dtype(name):
    return {
        "logical_not": torch.bool,
        "logical_and": torch.bool,
        "isin": torch.bool,
        "polar": torch.complex64,
        "complex": torch.complex64,
        "fft": torch.complex64,
        "nonzero": torch.int64,
        "arange": torch.int64,
    }.get(name, torch.float32)


@pytest.mark.parametrize("name", ["kthvalue", "median", "max", "sort", "topk", "mode", "cummax"])
def test_pairs_of_outputs_are_resized(name):
    host = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    arguments = {"kthvalue": (2, 1), "topk": (3,)}.get(name, (1,))
    function = getattr(torch, name)
    values = torch.empty(0, device="npu")
    indices = torch.empty(0, dtype=torch.int64, device="npu")
    function(host.npu(), *arguments, out=(values, indices))
    expected = function(host, *arguments)
    assert torch.equal(values.cpu(), expected[0]) and torch.equal(indices.cpu(), expected[1])


def test_resizing_many_outputs_leaves_the_heap_sound():
    x = torch.randn(1000, device="npu")
    gc.collect()
    before = torch.npu.memory_allocated()
    for size in range(1, 200, 7):
        out = torch.empty(0, device="npu")
        torch.abs(x[:size], out=out)
        torch.abs(x[: size * 3], out=out.resize_(0))
        assert torch.equal(out, x[: size * 3].abs())
    del out
    gc.collect()
    assert torch.npu.memory_allocated() == before


def test_a_wrongly_sized_output_warns_as_on_the_cpu():
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(npu(1.0, 2.0), 1, out=torch.empty(3, device="npu"))


def test_views_of_a_resized_output_stay_valid():
    out = torch.zeros(2, device="npu")
    view = out[1:]
    out.resize_(1000)
    out.fill_(4)
    assert view.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    assert view.tolist() == [4]


# --- resize_ and set_ ---


def test_resize_keeps_the_bytes_and_draws_from_the_device():
    x = torch.arange(4.0, device="npu")
    before = torch.npu.memory_allocated()
    x.resize_(1000)
    assert x[:4].tolist() == [0, 1, 2, 3]
    assert torch.npu.memory_allocated() - before == 4096 - 512
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_as_(torch.empty(5, 1, device="npu"))
    assert x.shape == (5, 1)


def test_storage_resize_gives_memory_back_and_takes_it_again():
    with torch.npu.use_mem_pool(torch.npu.MemPool(), "npu:6"):  # blocks of just the size asked for
        x = torch.ones(1 << 20, device="npu:6")
        before = torch.npu.memory_allocated(6)
        x.untyped_storage().resize_(0)
        assert before - torch.npu.memory_allocated(6) == 4 << 20
        x.untyped_storage().resize_(4 << 20)
        assert torch.npu.memory_allocated(6) == before
        x.fill_(2)
        assert x.sum().item() == 2 << 20


def test_set_shares_the_source():
    source = torch.arange(6.0, device="npu")
    x = torch.empty(0, device="npu")
    x.set_(source)
    assert x.data_ptr() == source.data_ptr() and x.shape == (6,)
    x.set_(source.untyped_storage(), 2, (2, 2), (2, 1))
    assert x.tolist() == [[2, 3], [4, 5]]
    source.add_(1)
    assert x.tolist() == [[3, 4], [5, 6]]
    x.set_()
    assert x.shape == (0,) and x.device.type == "npu"
    assert source.tolist() == [1, 2, 3, 4, 5, 6]


def test_set_refuses_another_devices_storage():
    with pytest.raises(RuntimeError, match='device "npu:0".*different device "npu:1"'):
        torch.empty(0, device="npu:0").set_(torch.ones(2, device="npu:1").untyped_storage())
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device="npu:0").set_(torch.ones(2).untyped_storage())


def test_data_assignment_swaps_the_storage():
    p = torch.nn.Parameter(torch.zeros(2, device="npu"))
    fresh = torch.ones(3, device="npu")
    p.data = fresh
    assert p.data_ptr() == fresh.data_ptr() and p.shape == (3,)
