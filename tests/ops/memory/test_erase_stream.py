"""erase_stream: memory recorded on a stream is free again at once."""

import pytest
import torch

import torch_npu


def test_the_page():
    first, second = torch.npu.Stream(), torch.npu.Stream()
    event = torch.npu.Event()
    with torch.npu.stream(second):
        one, two = torch.ones(1000, 1000, device="npu"), torch.ones(1000, 1000, device="npu")
        tensor = one @ two
        where = tensor.data_ptr()
        tensor.record_stream(first)
        event.record(second)
        event.wait(first)
        assert torch_npu.erase_stream(tensor, first) is None
        del tensor
        assert torch.ones(1000, 1000, device="npu").data_ptr() == where


def test_only_the_stream_that_is_named(monkeypatch):
    from softnpu import _C

    seen = []
    monkeypatch.setattr(_C, "erase_stream", lambda t, s: seen.append((t.data_ptr(), s)))
    tensor, stream = torch.ones(4, device="npu"), torch.npu.Stream()
    torch_npu.erase_stream(tensor[1:], stream)
    assert seen == [(tensor[1:].data_ptr(), stream.stream_id)]


def test_a_stream_that_was_never_recorded():
    tensor = torch.ones(4, device="npu")
    torch_npu.erase_stream(tensor, torch.npu.Stream())
    assert tensor.sum() == 4


def test_bad_arguments():
    tensor, stream = torch.ones(4, device="npu"), torch.npu.Stream()
    with pytest.raises(TypeError, match="tensor should be torch.Tensor"):
        torch_npu.erase_stream([1], stream)
    with pytest.raises(TypeError, match="stream should be torch_npu.npu.Stream"):
        torch_npu.erase_stream(tensor, 0)
    with pytest.raises(RuntimeError, match="should be on an NPU, but is on cpu"):
        torch_npu.erase_stream(torch.ones(4), stream)
