"""torch_npu.utils: helpers beside the device."""

from torch_npu.npu.utils import get_cann_version
from torch_npu.utils.affinity import _reset_thread_affinity as reset_thread_affinity
from torch_npu.utils.affinity import _set_thread_affinity as set_thread_affinity
from torch_npu.utils.asd_detector import register_asd_hook, set_asd_loss_scale
from torch_npu.utils.combine_tensors import (
    get_part_combined_tensor,
    is_combined_tensor_valid,
    npu_combine_tensors,
)
from torch_npu.utils.flops_count import _FlopsCounter as FlopsCounter
from torch_npu.utils.serialization import save_async

__all__ = [
    "FlopsCounter",
    "get_cann_version",
    "get_part_combined_tensor",
    "is_combined_tensor_valid",
    "npu_combine_tensors",
    "register_asd_hook",
    "reset_thread_affinity",
    "save_async",
    "set_asd_loss_scale",
    "set_thread_affinity",
]
