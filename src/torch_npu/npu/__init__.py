"""torch.npu: the runtime module of the device. File names are those of torch/cuda and of upstream."""

# ruff: noqa: F401  (every import is a public name)

from torch_npu.npu import (
    _start,
    _types,
    aclnn,
    amp,
    autocast_utils,
    backends,
    deterministic,
    memory,
    npu_config,
    random,
    streams,
    utils,
)
from torch_npu.npu._backends import (
    enable_flash_sdp,
    enable_math_sdp,
    enable_mem_efficient_sdp,
    flash_sdp_enabled,
    math_sdp_enabled,
    mem_efficient_sdp_enabled,
    preferred_linalg_library,
    sdp_kernel,
)
from torch_npu.npu._device import (
    DeferredNpuCallError,
    _get_device_index,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _sleep,
    can_device_access_peer,
    current_blas_handle,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_soc_version,
    get_sync_debug_mode,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    npurt,
    set_device,
    set_sync_debug_mode,
    synchronize,
    utilization,
)
from torch_npu.npu._graph_debug import (
    print_npugraph_tensor,
    save_npugraph_tensor,
    super_kernel_scope_begin,
    super_kernel_scope_end,
)
from torch_npu.npu._graph_update import NpuGraphOpHandler, register_npu_graph_handler
from torch_npu.npu._host_functions import (
    _launch_host_func,
    _subscribe_report,
    _unsubscribe_report,
)
from torch_npu.npu._overflow import clear_npu_overflow_flag, get_npu_overflow_flag
from torch_npu.npu._recovery import (
    _get_uce_addr,
    check_uce_in_memory,
    restart_device,
    stop_device,
    stress_detect,
)
from torch_npu.npu.autocast_utils import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torch_npu.npu.deterministic import (
    _get_deterministic_level,
    disable_deterministic_with_backward,
    enable_deterministic_with_backward,
    set_deterministic_level,
)
from torch_npu.npu.graphs import (
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
    make_graphed_callables,
)
from torch_npu.npu.memory import (
    MemPool,
    NPUPluggableAllocator,
    _dump_snapshot,
    _record_memory_history,
    _set_allocator_settings,
    _snapshot,
    caching_allocator_alloc,
    caching_allocator_delete,
    change_current_allocator,
    empty_cache,
    empty_virt_addr_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_empty_cache,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_npu.npu.mstx import mstx
from torch_npu.npu.npu_config import (
    are_compatible_impl_enabled,
    finalize_dump,
    get_device_limit,
    get_mm_bmm_format_nd,
    get_stream_limit,
    init_dump,
    is_jit_compile_false,
    reset_stream_limit,
    set_aoe,
    set_compile_mode,
    set_device_limit,
    set_dump,
    set_mm_bmm_format_nd,
    set_option,
    set_stream_limit,
    use_compatible_impl,
)
from torch_npu.npu.random import (
    _get_rng_state_offset,
    _set_rng_state_offset,
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
    ExternalEvent,
    ExternalStream,
    Stream,
    StreamContext,
    SyncLaunchStream,
    current_stream,
    default_stream,
    fake_record_stream,
    set_stream,
    stream,
)
from torch_npu.npu.utils import set_op_timeout_ms

config = npu_config._npuConfig()
matmul = npu_config._allowHF32Matmul()
conv = npu_config._allowHF32Conv()
CubeMathType = npu_config._CubeMathType
default_generators = random.default_generators()

globals().update(_types.storages())
globals().update(_types.tensor_types())

from torch_npu import _C  # noqa: E402  (upstream's private names; needs everything above)

_start.install()
