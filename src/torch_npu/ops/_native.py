"""Which tensors the C++ kernels (`csrc/kernels`, `torch.ops.softnpu`) take, an operator's `kernel` serves the others;
and what this CPU has instructions for."""

from __future__ import annotations

import functools

import torch

from softnpu import torch_versions

_FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16))


def fits(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """All tensors (None aside) are of one type: float32, bfloat16 or float16."""
    dtype = first.dtype
    return dtype in _FLOATS and all(t is None or t.dtype == dtype for t in others)


def floats(*tensors: torch.Tensor | None) -> bool:
    """Each tensor (None aside) is float32, bfloat16 or float16."""
    return all(t is None or t.dtype in _FLOATS for t in tensors)


@functools.cache
def native_half(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies matrices of the dtype itself."""
    capabilities = torch_versions.cpu_capabilities(torch)
    names = {
        torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
        torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
    }
    return any(capabilities.get(name, False) for name in names.get(dtype, ()))
