"""The words in which an operator's `check` states its documented constraints.

Each function raises `_errors.BadArgument` naming the argument, what was expected and what came; the registry
adds the operator's name. Import as `from torch_npu.ops import _check as must`.

`upstream` repeats the few words of upstream's own message that programs and its tests look for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard, TypeVar

import torch

from softnpu import _C
from torch_npu._errors import BadArgument, ErrCode

T = TypeVar("T")


def hold(
    condition: object,
    name: str,
    expected: str,
    received: Any,
    code: ErrCode = ErrCode.VALUE,
    upstream: str = "",
) -> None:
    """The general form: `must.hold(k > 0, "k", "positive", k)`."""
    if not condition:
        said = f"{received} (upstream: {upstream})" if upstream else received
        raise BadArgument(name, expected, said, code)


def countable(name: str, elements: int, received: Any) -> None:
    """What the argument asks for has so few elements that 64 bits count them."""
    hold(elements < 2**63, name, "small enough that 64 bits count the elements", received)


def dtype(
    name: str, tensor: torch.Tensor | None, *allowed: torch.dtype, upstream: str = ""
) -> None:
    """The tensor (if given) has one of the dtypes."""
    if tensor is not None and tensor.dtype not in allowed:
        hold(False, name, f"of dtype {one_of(allowed)}", tensor.dtype, ErrCode.TYPE, upstream)


def same_dtype(
    name: str, tensor: torch.Tensor | None, other_name: str, other: torch.Tensor
) -> None:
    """The tensor (if given) has the dtype of another one."""
    if tensor is not None and tensor.dtype != other.dtype:
        expected = f"of the dtype of '{other_name}' ({other.dtype})"
        raise BadArgument(name, expected, tensor.dtype, ErrCode.TYPE)


def ndim(name: str, tensor: torch.Tensor | None, low: int, high: int | None = None) -> None:
    """The tensor (if given) has from `low` to `high` dimensions (`high` defaults to `low`)."""
    high = low if high is None else high
    if tensor is not None and not low <= tensor.dim() <= high:
        count = f"{low}" if low == high else f"{low} to {high}"
        raise BadArgument(
            name, f"a tensor of {count} dimensions", f"{tuple(tensor.shape)}", ErrCode.PARAM
        )


def shape(name: str, tensor: torch.Tensor | None, expected: Sequence[int | None]) -> None:
    """The tensor (if given) has the shape; None in `expected` stands for any size."""
    if tensor is None:
        return
    fits = tensor.dim() == len(expected) and all(
        want is None or have == want for have, want in zip(tensor.shape, expected, strict=True)
    )
    if not fits:
        wanted = "(" + ", ".join("*" if e is None else str(e) for e in expected) + ")"
        raise BadArgument(name, f"of shape {wanted}", tuple(tensor.shape), ErrCode.PARAM)


def choice(name: str, value: Any, allowed: Iterable[Any], upstream: str = "") -> None:
    """The value is one of the documented ones."""
    allowed = tuple(allowed)
    if value not in allowed:
        hold(False, name, one_of(allowed, quoted=True), repr(value), ErrCode.VALUE, upstream)


def unset(name: str, value: Any, default: Any = None) -> None:
    """A parameter that upstream's page calls reserved: anything but its default raises."""
    same = value is default if default is None else value == default
    if not same:
        given = tuple(value.shape) if isinstance(value, torch.Tensor) else repr(value)
        raise BadArgument(
            name, f"left at {default!r} (upstream reserves it)", given, ErrCode.NOT_SUPPORT
        )


def anything(*values: Any) -> None:
    """Arguments that upstream takes and reads nowhere: whatever they are, they change nothing."""


def present(name: str, value: T | None, when: str) -> T:
    """An optional argument that is required in the given situation."""
    if value is None:
        raise BadArgument(name, f"given {when}", None, ErrCode.PARAM)
    return value


def one_of(values: Iterable[Any], quoted: bool = False) -> str:
    """`a, b or c`, for messages."""
    words = [repr(v) if quoted else str(v) for v in values]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def has_data(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a check may read the tensor's values: False for None, fake and meta tensors, and while
    a graph is captured or a stream is blocked, when there are no values yet."""
    from torch._subclasses.fake_tensor import FakeTensor

    return (
        tensor is not None
        and not isinstance(tensor, FakeTensor)
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and _C.values_exist()
    )
