"""The fusions that TorchAir has built in: patterns of operators, and the one operator that the card runs in their place.

Around npu_add_rms_norm: dynamic quantization behind it, the same of flattened rows, a cast to float32; in captured graphs static
quantization too, and batched products whose result is transposed. A fused operator rounds where its kernel does, not where
the parts do.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

_EPSILON = 2e-6  # in traces: any number that is not the default
_INT8_CODES = (1, 12)  # int8 and qint8
_HALVES = (torch.float16, torch.bfloat16)
_ALIGNED = 128  # of the last sizes of both operands of a transposed product
_LONGEST = 65536  # sums of such products are shorter


def _always(match: Any) -> bool:
    return True


class Fusion(NamedTuple):
    """What is looked for, what stands in its place, the inputs with which both are traced, and scalars among these."""

    search: Callable[..., Any]
    replace: Callable[..., Any]
    inputs: Sequence[torch.Tensor]
    check: Callable[[Any], bool] = _always
    scalars: dict[str, Any] | None = None


def everywhere() -> Iterator[Fusion]:
    """The fusions of both modes."""
    for fusion in (*_dynamic_quant(), _flat_dynamic_quant(), *_cast()):
        yield from _for_each_epsilon(fusion)


def captured() -> Iterator[Fusion]:
    """The fusions of captured graphs alone."""
    for fusion in _static_quant():
        yield from _for_each_epsilon(fusion)
    yield from _transposed_products()


def _for_each_epsilon(fusion: Fusion) -> Iterator[Fusion]:
    """With the default of the norm, and with another one: the last argument of both functions."""
    yield fusion._replace(search=_default(fusion.search), replace=_default(fusion.replace))
    yield fusion._replace(scalars={**(fusion.scalars or {}), "epsilon": _EPSILON})


def _default(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its last argument."""

    def call(*args: Any) -> Any:
        return function(*args, None)

    *names, _ = inspect.signature(function).parameters.values()
    call.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return call


def _norm(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
    return torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, *(() if epsilon is None else (epsilon,)))


def _named(epsilon: Any) -> dict[str, Any]:
    return {} if epsilon is None else {"epsilon": epsilon}


def _tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, device="npu", dtype=dtype)


def _addends() -> list[torch.Tensor]:
    return [_tensor(2, 3, 16), _tensor(2, 3, 16), _tensor(16)]


def _dynamic_quant() -> Iterator[Fusion]:
    def search(x1: Any, x2: Any, gamma: Any, smooth: Any, epsilon: Any) -> Any:
        y, _, x = _norm(x1, x2, gamma, epsilon)
        quantized, scale = torch.ops.npu.npu_dynamic_quant(y, smooth_scales=smooth)
        return quantized, scale, x

    def replace(x1: Any, x2: Any, gamma: Any, smooth: Any, epsilon: Any) -> Any:
        quantized, _, x, scale, _ = torch.ops.npu.npu_add_rms_norm_dynamic_quant(
            x1, x2, gamma, smooth_scale1=smooth, **_named(epsilon), output_mask=[True, False]
        )
        return quantized, scale, x

    def search_alone(x1: Any, x2: Any, gamma: Any, smooth: Any, epsilon: Any) -> Any:
        return search(x1, x2, gamma, smooth, epsilon)[:2]

    def replace_alone(x1: Any, x2: Any, gamma: Any, smooth: Any, epsilon: Any) -> Any:
        return replace(x1, x2, gamma, smooth, epsilon)[:2]

    inputs = [*_addends(), _tensor(16)]
    yield Fusion(search, replace, inputs)
    yield Fusion(search_alone, replace_alone, inputs)


def _flat_dynamic_quant() -> Fusion:
    def search(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
        y, _, x = _norm(x1, x2, gamma, epsilon)
        quantized, scale = torch.ops.npu.npu_dynamic_quant(y.flatten(0, 1))
        return quantized, scale.view(-1, 1), x

    def replace(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
        quantized, _, x, scale, _ = torch.ops.npu.npu_add_rms_norm_dynamic_quant(
            x1, x2, gamma, **_named(epsilon), output_mask=[True, False]
        )
        return quantized.flatten(0, 1), scale.view(-1, 1), x

    return Fusion(search, replace, _addends())


def _cast() -> Iterator[Fusion]:
    def search(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
        y, _, x = _norm(x1, x2, gamma, epsilon)
        return y.to(torch.float32), y, x

    def replace(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
        wide, y, _, x = torch.ops.npu.npu_add_rms_norm_cast(x1, x2, gamma, **_named(epsilon))
        return wide, y, x

    def search_rows(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
        y, _, x = _norm(x1, x2, gamma, epsilon)
        return y.view(-1, y.shape[-1]).to(torch.float32), y, x

    def replace_rows(x1: Any, x2: Any, gamma: Any, epsilon: Any) -> Any:
        wide, y, x = replace(x1, x2, gamma, epsilon)
        return wide.view(-1, wide.shape[-1]), y, x

    yield Fusion(search_rows, replace_rows, _addends())
    yield Fusion(search, replace, _addends())


def _static_quant() -> Iterator[Fusion]:
    def search(
        x1: Any, x2: Any, gamma: Any, scales: Any, zero_points: Any, dtype: Any, epsilon: Any
    ) -> Any:
        y, _, x = _norm(x1, x2, gamma, epsilon)
        return torch.ops.npu.npu_quantize(y, scales, zero_points, dtype, -1), x

    def replace(
        x1: Any, x2: Any, gamma: Any, scales: Any, zero_points: Any, dtype: Any, epsilon: Any
    ) -> Any:
        y, _, x = torch.ops.npu.npu_add_rms_norm_quant(
            x1, x2, gamma, scales, zero_points, axis=-1, **_named(epsilon)
        )
        return y, x

    def search_alone(
        x1: Any, x2: Any, gamma: Any, scales: Any, zero_points: Any, dtype: Any, epsilon: Any
    ) -> Any:
        return search(x1, x2, gamma, scales, zero_points, dtype, epsilon)[0]

    def replace_alone(
        x1: Any, x2: Any, gamma: Any, scales: Any, zero_points: Any, dtype: Any, epsilon: Any
    ) -> Any:
        return replace(x1, x2, gamma, scales, zero_points, dtype, epsilon)[0]

    inputs = [*_addends(), _tensor(16, dtype=torch.float32), _tensor(16, dtype=torch.int32)]
    scalars = {"dtype": _INT8_CODES[0]}
    yield Fusion(search, replace, inputs, _quantizes, scalars)
    yield Fusion(search_alone, replace_alone, inputs, _quantizes, scalars)


def _quantizes(match: Any) -> bool:
    """Half precision in rows of whole blocks of 32 bytes, to int8, with a scale for each element of gamma."""
    x1, x2, gamma, scales, zero_points = (
        match.kwargs[name].meta["val"] for name in ("x1", "x2", "gamma", "scales", "zero_points")
    )
    row = x1.shape[-1] * x1.element_size() if x1.dim() else 0
    return (
        x1.dtype == x2.dtype
        and x1.dtype in _HALVES
        and isinstance(row, int)
        and row % 32 == 0
        and zero_points.dtype not in (torch.uint8, torch.int8)
        and match.kwargs["dtype"] in _INT8_CODES
        and gamma.shape == scales.shape
    )


def _transposed_products() -> Iterator[Fusion]:
    """The result of a batched product with batch and rows exchanged; before it, those of the first operand perhaps."""
    orders = ((0, 1), (1, 0))
    for dims, view in itertools.product(orders, (_nothing, _viewed)):
        yield _transposed_product(dims, view)
    for dims, first, view in itertools.product(orders, orders, (_nothing, _viewed)):
        yield _transposed_product(dims, view, first)


def _nothing(x: Any) -> Any:
    return x


def _viewed(x: Any) -> Any:
    return torch.ops.aten.view.default(x, list(x.shape))


def _transposed_product(
    dims: tuple[int, int],
    view: Callable[[Any], Any],
    before: tuple[int, int] | None = None,
) -> Fusion:
    def search(x1: Any, x2: Any) -> Any:
        if before is not None:
            x1 = x1.transpose(*before)
            x1 = view(x1.expand(x1.shape))
        return view(torch.ops.aten.bmm.default(x1, x2)).transpose(*dims)

    def replace(x1: Any, x2: Any) -> Any:
        order = [0, 1, 2] if before is None else [1, 0, 2]
        return torch.ops.npu.npu_transpose_batchmatmul(x1, x2, perm_x1=order)

    def check(match: Any) -> bool:
        x1, x2 = (match.kwargs[name].meta["val"] for name in ("x1", "x2"))
        batch = 1 if before is None else x1.shape[1]
        return (
            x1.dtype in (*_HALVES, torch.float32)
            and x1.shape[-1] % _ALIGNED == 0
            and x2.shape[-1] % _ALIGNED == 0
            and 0 < batch * x1.shape[-1] < _LONGEST
        )

    return Fusion(search, replace, [_tensor(2, 2, 128), _tensor(2, 128, 128)], check)
