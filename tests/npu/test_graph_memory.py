"""What a capture reads and saves: indices are data of the device, and untouched memory costs nothing."""

from __future__ import annotations

import os
import resource

import pytest
import torch

import torch_npu  # noqa: F401


def captured(function):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = function()
    return graph, result


def test_integer_indices_are_read_at_each_replay():
    x = torch.arange(12.0, device="npu").view(4, 3)
    rows, columns = torch.tensor([0, 2], device="npu"), torch.tensor([1, 1], device="npu")
    graph, (some, elements) = captured(lambda: (x[rows], x[rows, columns]))
    rows.copy_(torch.tensor([3, 1]))
    graph.replay()
    assert some.tolist() == [[9.0, 10.0, 11.0], [3.0, 4.0, 5.0]] and elements.tolist() == [
        10.0,
        4.0,
    ]


def test_a_mask_as_index_has_a_size_that_the_host_must_read():
    x = torch.arange(4.0, device="npu")
    mask = x > 1
    with pytest.raises(RuntimeError, match="aten::index makes the host wait"):
        captured(lambda: x[mask])


def test_repetitions_are_captured_if_their_number_is_given():
    x, counts = torch.arange(3.0, device="npu"), torch.tensor([1, 0, 2], device="npu")
    graph, result = captured(lambda: x.repeat_interleave(counts, output_size=3))
    counts.copy_(torch.tensor([0, 2, 1]))
    graph.replay()
    assert result.tolist() == [1.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="makes the host wait"):
        captured(lambda: x.repeat_interleave(counts))


def test_a_large_buffer_of_which_little_was_touched_is_not_copied():
    """A KV cache takes most of a device's memory; a capture that writes into it saves the pages that exist."""
    cache = torch.zeros(2 << 30, dtype=torch.int8, device="npu")
    cache[1000:1010] = 7
    slots = torch.tensor([5, 1 << 30, (2 << 30) - 1], device="npu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph, _ = captured(lambda: cache.index_fill_(0, slots, 3))
    assert cache[slots].tolist() == [0, 0, 0], "a capture computes nothing"
    assert cache[1000:1010].tolist() == [7] * 10
    graph.replay()
    assert cache[slots].tolist() == [3, 3, 3]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10, f"{grown >> 10} MiB"


def _resized(x):
    x.untyped_storage().resize_(0)


def _grown(x):
    x.resize_(2 * x.numel())


@pytest.mark.parametrize("move", [_resized, _grown])
def test_an_input_that_has_lost_its_memory(move):
    """The graph's addresses would be free memory, or another tensor's."""
    x = torch.ones(1 << 20, device="npu")
    graph, result = captured(lambda: x * 2)
    graph.replay()
    move(x)
    torch.npu.empty_cache()
    with pytest.raises(RuntimeError, match="has lost the memory .* 4194304 bytes"):
        graph.replay()
    assert result.sum().item() == 2 << 20


def test_what_a_graph_owns_may_be_resized():
    x = torch.ones(1 << 20, device="npu")
    graph, result = captured(lambda: x * 2)
    result.untyped_storage().resize_(0)
    torch.npu.empty_cache()
    graph.replay()
    y = torch.ones(4, device="npu")
    graph, result = captured(lambda: y * 3)
    y = None  # the graph keeps its storage
    graph.replay()
    assert result.tolist() == [3.0] * 4


def test_a_tensor_without_memory_is_not_printed_at_its_place():
    x = torch.ones(2, 3, device="npu")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="its memory was released"):
        torch.npu.print_npugraph_tensor(x)


def test_a_forked_process_replays_nothing():
    x = torch.ones(4, device="npu")
    graph, _ = captured(lambda: x * 2)
    child = os.fork()
    if child == 0:
        try:
            graph.replay()
        except RuntimeError as error:
            os._exit(3 if "forked subprocess" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
