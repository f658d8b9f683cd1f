"""Names that tools expect of device kernels: type, name, core, data types and formats.

There are no kernels here, so their names derive from the operator: `aten::add` runs as kernel `aclnnAdd_AddAiCore_Add` of
type Add. Types of operators that tools look for (products, convolutions, attention) are those of CANN.
"""

from __future__ import annotations

import functools

from softnpu import chips

_TYPES = {
    "mm": "MatMulV2", "addmm": "MatMulV2", "matmul": "MatMulV2", "linear": "MatMulV2", "addmv": "MatMulV2", "mv": "MatMulV2",
    "dot": "Dot", "bmm": "BatchMatMulV2", "baddbmm": "BatchMatMulV2",
    "_int_mm": "MatMulV2", "convolution_overrideable": "Conv2D", "convolution": "Conv2D",
    "convolution_backward_overrideable": "Conv2DBackprop", "convolution_backward": "Conv2DBackprop",
    "_scaled_dot_product_fused_attention_overrideable": "FlashAttentionScore",
    "_scaled_dot_product_fused_attention_overrideable_backward": "FlashAttentionScoreGrad",
    "npu_fusion_attention": "FlashAttentionScore", "npu_fusion_attention_grad": "FlashAttentionScoreGrad",
    "npu_fusion_attention_v2": "FlashAttentionScore", "npu_fusion_attention_grad_v2": "FlashAttentionScoreGrad",
    "native_layer_norm": "LayerNormV4", "native_layer_norm_backward": "LayerNormGradV3",
    "_softmax": "SoftmaxV2", "_log_softmax": "LogSoftmaxV2", "embedding": "GatherV2", "index_select": "GatherV2",
    "embedding_dense_backward": "EmbeddingDenseGradV2", "_softmax_backward_data": "SoftmaxGrad",
    "_log_softmax_backward_data": "LogSoftmaxGrad", "copy_": "TensorMove", "_copy_from": "TensorMove",
    "zero_": "ZerosLike", "fill_": "Fill", "sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax",
}  # fmt: skip
_CUBE = ("MatMul", "Conv", "GroupedMatmul", "Dot")
_MIXED = ("FlashAttention", "FusedInferAttention", "PromptFlashAttention", "IncreFlashAttention")
COPY = ("aten::_copy_from", "aten::copy_", "aten::_copy_from_and_resize", "memcpy")

DTYPES = {
    "float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "DT_BF16", "float64": "DOUBLE", "int64": "INT64",
    "int32": "INT32", "int16": "INT16", "int8": "INT8", "uint8": "UINT8", "bool": "BOOL", "uint16": "UINT16",
    "uint32": "UINT32", "uint64": "UINT64", "complex64": "COMPLEX64", "complex128": "COMPLEX128",
}  # fmt: skip
FORMATS = {
    0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 12: "NC1HWC0_C04", 16: "HWCN", 27: "NDHWC",
    29: "FRACTAL_NZ", 30: "NCDHW", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D",
}  # fmt: skip
_AI_CPU_DTYPES = {"float64", "complex64", "complex128"}


def plain(name: str) -> str:
    """The operator's name without namespace and overload."""
    return name.rsplit("::", 1)[-1].split(".", 1)[0]


@functools.cache
def op_type(name: str) -> str:
    """The type of the kernel that an operator runs."""
    base = plain(name)
    known = _TYPES.get(base)
    if known is not None:
        return known
    words = [word for word in base.removeprefix("npu_").split("_") if word]
    if not words:
        return base
    inplace = "Inplace" if base.endswith("_") else ""
    return inplace + "".join(word[:1].upper() + word[1:] for word in words)


@functools.cache
def kernel_name(name: str) -> str:
    kind = op_type(name)
    return f"aclnn{kind}_{kind}AiCore_{kind}"


def core(name: str, dtypes: frozenset[str]) -> str:
    """The accelerator that the card would use: by the kernel's type, and AI CPU for what AI cores cannot hold."""
    if dtypes & _AI_CPU_DTYPES:
        return "AI_CPU"
    kind = op_type(name)
    if any(part in kind for part in _MIXED):
        return "MIX_AIC"
    if any(part in kind for part in _CUBE):
        return "AI_CORE"
    return "AI_CORE" if _family() in ("310P", "910A") else "AI_VECTOR_CORE"


@functools.cache
def _family() -> str:
    return chips.current().family


def dtype_name(dtype: str) -> str:
    short = dtype.removeprefix("torch.")
    return DTYPES.get(short, short.upper())


def format_name(number: int) -> str:
    return FORMATS.get(number, "ND" if number < 0 else str(number))
