"""torch_npu.HiFloat8Tensor: a tensor whose bytes are HiFloat8 numbers; mirrors upstream's torch_npu.utils.hif8_tensor.

HiFloat8 (arXiv 2409.16626) has a sign, a prefix code that says how many exponent bits follow (4, 3, 2, 1, 0), a
sign-magnitude exponent with a hidden leading one, and the remaining bits as mantissa: 3 bits of it near 1, 1 bit at
the ends. Below are seven powers of two from 2^-22; 0x80 is NaN, and the largest code of either sign is infinity.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map

__all__ = ["HiFloat8Tensor"]

aten = torch.ops.aten
_WIDE = (torch.float32, torch.bfloat16, torch.float16)


def _value(code: int) -> float:
    """The number of a code without sign (0 to 127)."""
    if code == 0b11_0111_1:  # exponent 15, mantissa 1
        return float("inf")
    for prefix, width, bits in (
        (0b11, 2, 4),
        (0b10, 2, 3),
        (0b01, 2, 2),
        (0b001, 3, 1),
        (0b0001, 4, 0),
    ):
        rest = 7 - width
        if code >> rest != prefix:
            continue
        mantissa_bits = rest - bits
        field = (code >> mantissa_bits) & ((1 << bits) - 1)
        magnitude = (1 << (bits - 1)) | (field & ((1 << (bits - 1)) - 1)) if bits else 0
        exponent = -magnitude if bits and field >> (bits - 1) else magnitude
        mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        return (1 + mantissa) * 2.0**exponent
    return 0.0 if code == 0 else 2.0 ** (code - 23)


@functools.cache
def _tables() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The value of each code, the codes in the order of their values, and the middles between neighbors."""
    values = torch.tensor([_value(code) for code in range(128)])
    signed = torch.cat([values, -values])
    signed[128] = float("nan")
    order = values.argsort()
    ranked = values[order].clone()
    ranked[-1] = 1.5 * 2.0**15  # where the code of infinity would stand
    return signed, order.to(torch.uint8), (ranked[1:] + ranked[:-1]) / 2


def encode(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest codes as uint8; a tie goes away from zero, and -0 has the code of 0."""
    _, order, middles = (table.to(tensor.device) for table in _tables())
    wide = tensor.to(torch.float32)
    codes = order[torch.bucketize(wide.abs(), middles, right=True)]
    codes = torch.where((wide < 0) & (codes != 0), codes | 0x80, codes)
    return torch.where(wide.isnan(), torch.full_like(codes, 0x80), codes)


def decode(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of the codes; all of them are exact in float16, bfloat16 and float32."""
    return _tables()[0].to(codes.device)[codes.view(torch.uint8).long()].to(dtype)


class _From(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: HiFloat8Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        return decode(tensor._data, tensor.dtype if dtype is None else dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad, None


class _To(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> HiFloat8Tensor:
        tensor = tensor.detach().contiguous().npu()
        if tensor.dtype not in _WIDE:
            tensor = tensor.float()
        return HiFloat8Tensor(data=encode(tensor), dtype=tensor.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad


class _Changed(torch.autograd.Function):
    """The same numbers in another shape or memory; `back` gives the gradient's."""

    @staticmethod
    def forward(ctx: Any, tensor: HiFloat8Tensor, change: Any, back: Any) -> HiFloat8Tensor:
        ctx.back = back
        return HiFloat8Tensor.make_like(tensor, data=change(tensor._data.detach()))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.back(grad), None, None


class HiFloat8Tensor(torch.Tensor):
    """Shows as a tensor of `dtype`, holds HiFloat8. Operators work on the numbers in `dtype`.

    Args:
        data: the codes, of a type with one byte; moved to npu.
        dtype: what the tensor shows as.
    """

    _data: torch.Tensor

    def __new__(cls, *, data: torch.Tensor, dtype: torch.dtype = torch.float32) -> HiFloat8Tensor:
        if data.element_size() != 1:
            raise ValueError(
                f"HiFloat8Tensor: data must have an 8-bit dtype, received {data.dtype}"
            )
        if data.requires_grad:
            raise ValueError("HiFloat8Tensor: data must not require gradients")
        data = data if data.device.type == "npu" else data.npu()
        made = torch.Tensor._make_wrapper_subclass(
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(),
            dtype=dtype, layout=data.layout, requires_grad=False, device=data.device,
        )  # fmt: skip
        made._data = data
        return made

    @classmethod
    def make_like(
        cls, tensor: HiFloat8Tensor, *, data: torch.Tensor, **kwargs: Any
    ) -> HiFloat8Tensor:
        """Another one with these codes, and the other's dtype unless `kwargs` names one."""
        return HiFloat8Tensor(data=data, **{"dtype": tensor.dtype, **kwargs})

    @classmethod
    def to_hifloat8(cls, tensor: torch.Tensor) -> HiFloat8Tensor:
        """The nearest HiFloat8 numbers, on npu; types other than float16, bfloat16 and float32 become float32 first."""
        return _To.apply(tensor)

    def from_hifloat8(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers in `dtype`, by default the one that the tensor shows as."""
        return _From.apply(self, dtype)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"HiFloat8Tensor(data={self.from_hifloat8()})"

    def float(self) -> torch.Tensor:  # type: ignore[override]
        return self.from_hifloat8(torch.float32)

    def bfloat16(self) -> torch.Tensor:  # type: ignore[override]
        return self.from_hifloat8(torch.bfloat16)

    def half(self) -> torch.Tensor:  # type: ignore[override]
        return self.from_hifloat8(torch.float16)

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.from_hifloat8().cpu()

    def clone(self) -> HiFloat8Tensor:  # type: ignore[override]
        return _Changed.apply(self, torch.clone, lambda grad: grad)

    def view(self, *shape: int) -> HiFloat8Tensor:  # type: ignore[override]
        before = self.shape
        return _Changed.apply(self, lambda d: d.view(*shape), lambda grad: grad.reshape(before))

    def reshape(self, *shape: int) -> HiFloat8Tensor:  # type: ignore[override]
        before = self.shape
        return _Changed.apply(self, lambda d: d.reshape(*shape), lambda grad: grad.reshape(before))

    def transpose(self, dim0: int, dim1: int) -> HiFloat8Tensor:  # type: ignore[override]
        return _Changed.apply(
            self, lambda d: d.transpose(dim0, dim1), lambda grad: grad.transpose(dim0, dim1)
        )

    def contiguous(  # type: ignore[override]
        self, *, memory_format: torch.memory_format = torch.contiguous_format
    ) -> HiFloat8Tensor:
        if self._data.is_contiguous(memory_format=memory_format):
            return self
        return _Changed.apply(
            self, lambda d: d.contiguous(memory_format=memory_format), lambda grad: grad
        )

    def to_dtype(self, dtype: torch.dtype) -> HiFloat8Tensor:
        """The same codes, shown as another dtype."""
        return HiFloat8Tensor.make_like(self, data=self._data, dtype=dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is aten.detach.default:
            return HiFloat8Tensor.make_like(args[0], data=args[0]._data)
        if func is aten.slice.Tensor:
            return HiFloat8Tensor.make_like(
                args[0], data=func(args[0]._data, *args[1:], **(kwargs or {}))
            )
        if func is aten.copy_.default and isinstance(args[0], HiFloat8Tensor):
            to, source = args[:2]
            codes = (
                source._data if isinstance(source, HiFloat8Tensor) else encode(source.to(to.device))
            )
            to._data.copy_(codes)
            return to
        if any(
            isinstance(value, HiFloat8Tensor)
            and argument.alias_info
            and argument.alias_info.is_write
            for value, argument in zip(args, func._schema.arguments, strict=False)
        ):
            raise NotImplementedError(
                f"HiFloat8Tensor: {func} would write it in place; only copy_ can"
            )

        def plain(value: Any) -> Any:
            return decode(value._data, value.dtype) if isinstance(value, HiFloat8Tensor) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
