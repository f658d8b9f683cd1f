"""torch_npu.multiprocessing: how npu tensors travel between processes."""

from torch_npu.multiprocessing import reductions

__all__ = ["reductions"]
