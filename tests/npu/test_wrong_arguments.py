"""Things of a wrong kind in the place of streams, events, graphs, devices and numbers: the error names the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_npu

npu = torch_npu.npu

WRONG = {
    "wait_event": (lambda: npu.Stream().wait_event(3), "Stream.wait_event: argument 'event' must be an event.* int"),
    "wait_stream": (lambda: npu.Stream().wait_stream("x"), "Stream.wait_stream: argument 'stream' must be a stream.* str"),
    "record_event": (lambda: npu.Stream().record_event([]), "Stream.record_event: argument 'event' .* list"),
    "external record": (lambda: npu.ExternalEvent().record(7), "ExternalEvent.record: argument 'stream' .* int"),
    "external wait": (lambda: npu.ExternalEvent().wait("x"), "ExternalEvent.wait: argument 'stream' .* str"),
    "external reset": (lambda: npu.ExternalEvent().reset([]), "ExternalEvent.reset: argument 'stream' .* list"),
    "set_stream": (lambda: npu.set_stream(16), "set_stream: argument 'stream' must be a stream or None, .* int"),
    "device_of": (lambda: npu.device_of(1.5), "device_of: argument 'obj' must be a tensor or a storage, .* float"),
    "graph": (lambda: npu.graph("x"), "graph: argument 'npu_graph' must be an NPUGraph, .* str"),
    "handler": (lambda: npu.register_npu_graph_handler(3), "argument 'op_names' must be a name or a list of names.* 3"),
    "states": (lambda: npu.set_rng_state_all(1), "set_rng_state_all: argument 'new_states' must be a list .* int"),
    "seed": (lambda: npu.manual_seed(None), "manual_seed: argument 'seed' must be an integer, but received None"),
    "seeds": (lambda: npu.manual_seed_all([]), "manual_seed_all: argument 'seed' must be an integer"),
    "delete": (lambda: npu.caching_allocator_delete([]), "mem_ptr must be an address, but received"),
    "bytes": (lambda: npu.caching_allocator_alloc(2**64), "size must be a number of bytes, but received 18446744073709551616"),
    "handle": (lambda: npu.caching_allocator_alloc(8, 0, 2**40), "Invalid type for stream argument"),
    "scaler": (lambda: npu.amp.GradScaler(growth_factor="x"), "GradScaler: argument 'growth_factor' must be a number"),
    "tensor": (lambda: npu.LongTensor(None), "new\\(\\): invalid data for .*LongTensor.* NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("which", WRONG)
def test_wrong_kinds(which):
    call, message = WRONG[which]
    with pytest.raises(TypeError, match=message):
        call()


def test_a_stream_context():
    with pytest.raises(TypeError, match="stream: argument 'stream' must be a stream or None"):
        npu.stream(7).__enter__()


@pytest.mark.parametrize("index", [2**31, 2**64, -(2**40)])
def test_devices_that_no_integer_counts(index):
    for call in (npu.set_device, npu.device, npu.memory_allocated, npu.synchronize):
        with pytest.raises(RuntimeError, match=f"invalid NPU device index {index}"):
            call(index)


def test_an_infinite_seed_and_a_mode_that_is_no_integer():
    with pytest.raises(OverflowError, match="manual_seed: argument 'seed' must be an integer"):
        npu.manual_seed(float("inf"))
    with pytest.raises(
        RuntimeError, match="invalid value of debug_mode, expected one of 0,1,2, but received 1.0"
    ):
        npu.set_sync_debug_mode(1.0)


def test_what_works_goes_on():
    npu.amp.GradScaler(growth_factor=np.float32(2.0), backoff_factor=torch.tensor(0.5))
    npu.amp.GradScaler(growth_factor=None, enabled=False)
    npu.manual_seed("7")
    assert npu.initial_seed() == 7
    npu.set_stream(None)
    with npu.stream(None), npu.device_of(torch.ones(1)):
        pass
