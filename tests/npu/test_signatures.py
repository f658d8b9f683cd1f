"""Every documented name of torch_npu.npu exists, also as torch.npu, with upstream's parameters and defaults.

ExternalEvent and the graph functions stand with the graphs.
"""

import inspect

import pytest
import torch

import torch_npu

# name under torch_npu.npu -> parameters; "" for what is no function (switches, tensor types)
DOCUMENTED = {
    "get_npu_overflow_flag": "()",
    "clear_npu_overflow_flag": "()",
    "matmul.allow_hf32": "",
    "conv.allow_hf32": "",
    "set_option": "(option)",
    "config.allow_internal_format": "",
    "stress_detect": "(detect_type='aic')",
    "stop_device": "(device_id)",
    "restart_device": "(device_id, rebuild_all_resources=False, disable_tensor_unsafe_check=False)",
    "check_uce_in_memory": "(device_id)",
    "SyncLaunchStream": "(device=None, priority=0, **kwargs)",
    "utils.is_support_inf_nan": "()",
    "utils.npu_check_overflow": "(grad)",
    "Event.recorded_time": "",
    "set_dump": "(cfg_file)",
    "init_dump": "()",
    "finalize_dump": "()",
    "set_compile_mode": "(jit_compile=False)",
    "is_jit_compile_false": "()",
    "set_mm_bmm_format_nd": "(is_nd=True)",
    "get_mm_bmm_format_nd": "()",
    "aclnn.version": "",
    "aclnn.allow_hf32": "",
    "get_amp_supported_dtype": "()",
    "is_autocast_enabled": "()",
    "set_autocast_enabled": "(enable)",
    "get_autocast_dtype": "()",
    "set_autocast_dtype": "(dtype)",
    "get_rng_state": "(device='npu')",
    "set_rng_state": "(new_state, device='npu')",
    "get_rng_state_all": "()",
    "set_rng_state_all": "(new_states)",
    "manual_seed": "(seed)",
    "manual_seed_all": "(seed)",
    "seed": "()",
    "seed_all": "()",
    "initial_seed": "()",
    "is_initialized": "()",
    "init": "()",
    "get_device_name": "(device_name=None)",
    "can_device_access_peer": "(device_id, peer_device_id)",
    "get_device_properties": "(device_name=None)",
    "device_of": "(obj)",
    "current_blas_handle": "()",
    "set_stream": "(stream)",
    "set_sync_debug_mode": "(debug_mode)",
    "get_sync_debug_mode": "()",
    "utilization": "(device=None)",
    "get_device_capability": "(device=None)",
    "caching_allocator_alloc": "(size, device=None, stream=None)",
    "caching_allocator_delete": "(mem_ptr)",
    "set_per_process_memory_fraction": "(fraction, device=None)",
    "empty_cache": "()",
    "memory_stats": "(device=None)",
    "memory_stats_as_nested_dict": "(device=None)",
    "reset_accumulated_memory_stats": "(device=None)",
    "reset_peak_memory_stats": "(device=None)",
    "reset_max_memory_allocated": "(device=None)",
    "reset_max_memory_cached": "(device=None)",
    "memory_allocated": "(device=None)",
    "max_memory_allocated": "(device=None)",
    "memory_reserved": "(device=None)",
    "max_memory_reserved": "(device=None)",
    "memory_cached": "(device=None)",
    "max_memory_cached": "(device=None)",
    "memory_snapshot": "()",
    "memory_summary": "(device=None, abbreviated=False)",
    "NPUPluggableAllocator": "(path_to_so_file, alloc_fn_name, free_fn_name)",
    "change_current_allocator": "(allocator)",
    "set_aoe": "(dump_path)",
    "mstx": "()",
    "mstx.mark": "(message, stream=None, domain='default')",
    "mstx.range_start": "(message, stream=None, domain='default')",
    "mstx.range_end": "(range_id, domain='default')",
    "mstx.mstx_range": "(message, stream=None, domain='default')",
    "BoolStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "ByteStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "ShortStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "LongStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "IntStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "HalfStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "CharStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "DoubleStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "FloatStorage": "(*args, wrap_storage=None, dtype=None, device=None, _internal=False)",
    "DoubleTensor": "",
    "ShortTensor": "",
    "CharTensor": "",
    "ByteTensor": "",
    "FloatTensor": "",
    "HalfTensor": "",
    "IntTensor": "",
    "BoolTensor": "",
    "LongTensor": "",
    "enable_deterministic_with_backward": "(tensor)",
    "disable_deterministic_with_backward": "(tensor)",
}


def find(root, path):
    for part in path.split("."):
        root = getattr(root, part)
    return root


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_name(name):
    found = find(torch_npu.npu, name)
    assert find(torch.npu, name) is found or isinstance(found, bool)
    text = DOCUMENTED[name]
    if text:
        scope: dict = {}
        exec(f"def expected{text}: pass", scope)
        assert parameters(found) == parameters(scope["expected"])


def test_all_of_them():
    assert len(DOCUMENTED) == 95
