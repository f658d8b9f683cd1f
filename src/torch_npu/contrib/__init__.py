"""Ready-made functions and modules around NPU operators, and the translation of CUDA programs.

Mirrors torch_npu/contrib. `transfer_to_npu` is switched on by importing it, or from outside a program with
TORCH_TRANSFER_TO_NPU=1.
"""

import os

from torch_npu.contrib.function import (  # noqa: F401  (those not in __all__ are upstream's, too)
    fuse_add_softmax_dropout,
    matmul_transpose,
    npu_batched_multiclass_nms,
    npu_bbox_coder_decode_xywh2xyxy,
    npu_bbox_coder_encode_xyxy2xywh,
    npu_bbox_coder_encode_yolo,
    npu_ciou,
    npu_diou,
    npu_fast_condition_index_put,
    npu_fused_attention,
    npu_fused_attention_with_layernorm,
    npu_giou,
    npu_iou,
    npu_multiclass_nms,
    npu_ptiou,
    npu_single_level_responsible_flags,
    roll,
)
from torch_npu.contrib.module import (  # noqa: F401
    BiLSTM,
    ChannelShuffle,
    DCNv2,
    FastBatchNorm1d,
    FastBatchNorm2d,
    FastBatchNorm3d,
    FastSyncBatchNorm,
    Focus,
    FusedColorJitter,
    LabelSmoothingCrossEntropy,
    LinearA8W8Quant,
    LinearQuant,
    LinearWeightQuant,
    Mish,
    ModulatedDeformConv,
    MultiheadAttention,
    NpuCachedDropout,
    NpuDropPath,
    NpuFairseqDropout,
    Prefetcher,
    PSROIPool,
    ROIAlign,
    SiLU,
    Swish,
)

__all__ = [
    "ChannelShuffle",
    "Focus",
    "LabelSmoothingCrossEntropy",
    "LinearA8W8Quant",
    "LinearQuant",
    "LinearWeightQuant",
    "ModulatedDeformConv",
    "MultiheadAttention",
    "NpuCachedDropout",
    "NpuDropPath",
    "NpuFairseqDropout",
    "PSROIPool",
    "Prefetcher",
    "ROIAlign",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "npu_batched_multiclass_nms",
    "npu_bbox_coder_decode_xywh2xyxy",
    "npu_bbox_coder_encode_xyxy2xywh",
    "npu_bbox_coder_encode_yolo",
    "npu_fast_condition_index_put",
    "npu_fused_attention",
    "npu_fused_attention_with_layernorm",
    "npu_multiclass_nms",
    "npu_single_level_responsible_flags",
    "roll",
]

_wanted = os.environ.get("TORCH_TRANSFER_TO_NPU", "0")
if _wanted == "1":
    from torch_npu.contrib import transfer_to_npu  # noqa: F401
elif _wanted != "0":
    raise ValueError(f"TORCH_TRANSFER_TO_NPU must be 0 or 1, but is {_wanted!r}.")
