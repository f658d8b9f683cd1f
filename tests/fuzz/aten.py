"""PyTorch's operators called directly, below its functions: overloads, out and in-place forms, gradients.

Their arguments are those with which the operator database's samples reach the dispatcher on the CPU device, forwards and
backwards; overloads that no sample reaches borrow them by name, as forms.py does. A kernel that is called so gets what the
functions above it would have refused or corrected.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.writes import mapped, tensors
from tests.opinfo import database

_MAX_SAMPLES = 3
_MAX_ELEMENTS = 1 << 15
#: they show, end or wait for what belongs to the process
_LEFT = {"_debug_has_internal_overlap", "_print", "_assert_async", "_async_error", "is_pinned"}

Arguments = tuple[list[Any], dict[str, Any]]


class _Record(TorchDispatchMode):
    """Keeps the arguments of every operator that runs below it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, list[Arguments]] = collections.defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = self.found[func]
        if len(known) < _MAX_SAMPLES and _plain_tensors((args, kwargs)):
            copies: dict[int, torch.Tensor] = {}
            kept = mapped((args, kwargs), functools.partial(_copy, copies))
            known.append((list(kept[0]), kept[1]))
        return func(*args, **kwargs)


def _plain_tensors(value: Any) -> bool:
    found = tensors(value)
    return (
        all(t.layout == torch.strided and not t.is_quantized for t in found)
        and sum(t.numel() for t in found) <= _MAX_ELEMENTS
    )


def _copy(copies: dict[int, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """With its strides; the same tensor twice stays the same."""
    if id(x) not in copies:
        copies[id(x)] = x.detach().clone()
    return copies[id(x)]


@functools.cache
def recorded() -> dict[str, tuple[Any, list[Arguments]]]:
    """By the name of the overload: it, and its arguments."""
    from torch.testing._internal.common_methods_invocations import op_db

    record = _Record()
    for info in op_db:
        for sample in _samples(info):
            # What a sample cannot do without CUDA, or by design, it need not do here.
            with contextlib.suppress(RuntimeError, TypeError, ValueError, AssertionError):
                _run(record, info, sample)
    found = {
        _name(overload): (overload, samples)
        for overload, samples in record.found.items()
        if overload.namespace == "aten" and overload._schema.name[6:] not in _LEFT and samples
    }
    return dict(sorted((found | _borrowed(found)).items()))


def _samples(info: Any) -> list[Any]:
    dtype = torch.float32 if info.supports_dtype(torch.float32, "cpu") else torch.int64
    if not info.supports_dtype(dtype, "cpu"):
        return []
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradient = info.supports_autograd and dtype == torch.float32
        for sample in database.samples(info, dtype, gradient):
            found.append(sample)
            if len(found) == _MAX_SAMPLES:
                break
    return found


def _run(record: _Record, info: Any, sample: Any) -> None:
    with warnings.catch_warnings(), record:
        warnings.simplefilter("ignore")
        made = info.op(sample.input, *sample.args, **sample.kwargs)
        outputs = [t for t in tensors(made) if t.requires_grad]
        if outputs:
            sum(t.abs().sum() for t in outputs).backward()


def _name(overload: Any) -> str:
    return f"aten.{overload._schema.name.removeprefix('aten::')}.{overload._overloadname}"


def _borrowed(found: dict[str, Any]) -> dict[str, tuple[Any, list[Arguments]]]:
    """Out and in-place forms of what was recorded, with the arguments of the recorded form of the same name."""
    lent = {}
    for overload, samples in found.values():
        base = overload._schema.name.removeprefix("aten::")
        for other in {base, f"{base}_", base.removesuffix("_")}:
            packet = getattr(torch.ops.aten, other, None)
            for each in packet.overloads() if packet is not None else ():
                form = getattr(packet, each)
                if _name(form) not in found and "Tensor" in str(form._schema):
                    lent.setdefault(
                        _name(form), (form, [_fitted(form, overload, one) for one in samples])
                    )
    return lent


def _fitted(form: Any, lender: Any, sample: Arguments) -> Arguments:
    """Arguments by name; an argument to be written that the lender lacks becomes a tensor of the sample."""
    args, kwargs = sample
    given = dict(zip((a.name for a in lender._schema.arguments), args, strict=False)) | kwargs
    some = next(iter(tensors(list(given.values()))), None)
    made = {}
    for argument in form._schema.arguments:
        if argument.name in given:
            made[argument.name] = given[argument.name]
        elif argument.alias_info is not None and argument.alias_info.is_write:
            listed = "List" in str(argument.type)
            made[argument.name] = [some.clone()] if listed and some is not None else _like(some)
        elif not argument.has_default_value():
            made[argument.name] = some if "Tensor" in str(argument.type) else 2
    return [], made


def _like(some: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros(3) if some is None else some.clone()
