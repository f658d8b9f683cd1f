"""torch_npu.utils: helpers beside the device."""

from torch_npu.npu.utils import get_cann_version
from torch_npu.utils.affinity import reset_thread_affinity, set_thread_affinity

__all__ = ["get_cann_version", "reset_thread_affinity", "set_thread_affinity"]
