"""torch.npu: the runtime module of the device. File names are those of torch/cuda."""

from torch_npu.npu import amp, memory, random, streams
from torch_npu.npu.device import (
    current_device,
    device,
    device_count,
    device_of,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_npu.npu.device import _is_in_bad_fork, _lazy_init
from torch_npu.npu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_npu.npu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_npu.npu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

default_generators = random.default_generators()


def get_amp_supported_dtype():
    """The dtypes that torch.autocast("npu") accepts."""
    import torch

    return [torch.float16, torch.bfloat16, torch.float32]
