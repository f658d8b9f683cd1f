"""The batch norms with an int32 count, under upstream's public path."""

from torch_npu.contrib.module._batchnorm_with_int32_count import (  # noqa: F401
    FastBatchNorm1d,
    FastBatchNorm2d,
    FastBatchNorm3d,
    FastSyncBatchNorm,
)

__all__: list[str] = []
