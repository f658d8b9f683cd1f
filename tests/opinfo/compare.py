"""PyTorch's operator database on the npu against the cpu: the same inputs, the same results, the same gradients.

A pair is (operator, dtype). `check(pair)` raises on the first difference; `pairs()` lists them all, for every
dtype that the CPU supports. Random operators are compared by shape, dtype and reproducibility.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import torch_npu  # noqa: F401
from softnpu.python_versions import tomllib
from tests.opinfo import database

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
MAX_SAMPLES = 40  # of one pair; the database has up to several hundred
GRADIENT_SAMPLES = 12
HOST_ARGUMENTS = {"tensor_split"}  # whose tensor arguments stay on the CPU on any accelerator


@dataclass(frozen=True)
class Pair:
    """One operator in one dtype."""

    op: OpInfo
    dtype: torch.dtype

    @property
    def name(self) -> str:
        variant = f".{self.op.variant_test_name}" if self.op.variant_test_name else ""
        return f"{self.op.name}{variant}"

    @property
    def key(self) -> str:
        return f"{self.name}/{str(self.dtype).removeprefix('torch.')}"


class Unsupported(Exception):
    """The CPU itself cannot run the pair, so there is nothing to compare with."""


def pairs() -> Iterator[Pair]:
    for op in op_db:
        for dtype in sorted(op.supported_dtypes("cpu"), key=str):
            yield Pair(op, dtype)


def exceptions() -> dict[str, str]:
    """Pair key (or operator name) -> why it may differ."""
    table = tomllib.loads(EXCEPTIONS.read_text("utf-8"))
    return {key: reason for section in table.values() for key, reason in section.items()}


def excused(pair: Pair, table: dict[str, str]) -> str | None:
    return table.get(pair.key) or table.get(pair.name)


class SeesRandom(TorchDispatchMode):
    """Notices operators that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def to_npu(value: Any) -> Any:
    """The same value on the device: tensors move with their storage, cpu devices become npu."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return _move(item.detach(), "npu").requires_grad_(item.requires_grad)
        if isinstance(item, torch.device) and item.type == "cpu":
            return torch.device("npu", 0)
        if isinstance(item, str) and item == "cpu":
            return "npu"
        return item

    return tree_map(move, value)


def _move(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy elsewhere: offset, strides and the bytes around a view survive."""
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.to(device, copy=True)
    moved = torch.empty(0, dtype=tensor.dtype, device=device)
    storage = tensor.untyped_storage().clone().to(device=device)
    return moved.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _on_npu(value: Any) -> bool:
    return any(
        (isinstance(v, torch.Tensor) and v.device.type == "npu")
        or (isinstance(v, (torch.device, str)) and str(v).startswith("npu"))
        for v in tree_flatten(value)[0]
    )


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def check(pair: Pair) -> int:
    """Compares one pair and returns the number of samples; raises at a difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = 0
        for index, sample in enumerate(_samples(pair, requires_grad=False)):
            if index >= MAX_SAMPLES:
                break
            _check_forward(pair, sample, index)
            count += 1
        if pair.dtype == torch.float32 and pair.op.supports_autograd:
            for index, sample in enumerate(_samples(pair, requires_grad=True)):
                if index >= GRADIENT_SAMPLES:
                    break
                _check_gradient(pair, sample, index)
        return count


def _samples(pair: Pair, requires_grad: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    return database.samples(pair.op, pair.dtype, requires_grad)


def _call(pair: Pair, args: Any) -> Any:
    first, rest, kwargs = args
    return pair.op(first, *rest, **kwargs)


def _copy(arguments: Any) -> Any:
    return tree_map(lambda t: _move(t, "cpu") if isinstance(t, torch.Tensor) else t, arguments)


def _mine(pair: Pair, arguments: Any) -> Any:
    first, rest, kwargs = arguments
    if pair.op.name in HOST_ARGUMENTS:
        return to_npu(first), rest, kwargs
    return to_npu(arguments)


def _check_forward(pair: Pair, sample: Any, index: int) -> None:
    arguments = (sample.input, sample.args, sample.kwargs)
    # Each side gets its own copy: in-place operators would change the other's input.
    mine = _mine(pair, arguments)
    try:
        with SeesRandom() as mode:
            want = _call(pair, _copy(arguments))
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        if index == 0:
            raise Unsupported(str(error)) from error
        return
    torch.manual_seed(17)
    got = _call(pair, mine)
    where = f"sample {index}"
    if mode.found:
        torch.manual_seed(17)
        _same_form(got, want, where)
        if not _equal(got, _call(pair, _mine(pair, arguments))):
            raise AssertionError(f"{where}: the same seed gives other numbers")
    elif "empty" in pair.op.name or not _equal(want, _call(pair, _copy(arguments))):
        _same_form(got, want, where)  # uninitialized: the CPU does not repeat itself either
    else:
        _close(got, want, where, _on_npu(mine))


def _check_gradient(pair: Pair, sample: Any, index: int) -> None:
    theirs = (sample.input, sample.args, sample.kwargs)
    mine = _mine(pair, theirs)
    try:
        with SeesRandom() as mode:
            want = _gradients(pair, sample, theirs)
    except (RuntimeError, NotImplementedError, AssertionError):
        return
    got = _gradients(pair, sample, mine)
    if want is not None and not mode.found:
        _close(got, want, f"gradient of sample {index}", _on_npu(mine))


def _gradients(pair: Pair, sample: Any, arguments: Any) -> list[torch.Tensor | None] | None:
    out = sample.output_process_fn_grad(_call(pair, arguments))
    total = None
    for tensor in tensors(out):
        if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
            dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
            part = (dense.abs() if dense.is_complex() else dense).sum()
            total = part if total is None else total + part
    leaves = [t for t in tensors(arguments) if t.requires_grad]
    if total is None or not leaves:
        return None
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor


def _equal(a: Any, b: Any) -> bool:
    first, second = tensors(a), tensors(b)
    if len(first) != len(second):
        return False
    for x, y in zip(map(_dense, first), map(_dense, second), strict=True):
        if x.shape != y.shape or not bool(((x == y) | ((x != x) & (y != y))).all()):
            return False
    return True


def _same_form(got: Any, want: Any, where: str) -> None:
    for x, y in zip(tensors(got), tensors(want), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, (
            f"{where}: {tuple(x.shape)} {x.dtype}, cpu has {tuple(y.shape)} {y.dtype}"
        )


def _close(got: Any, want: Any, where: str, on_npu: bool) -> None:
    mine, theirs = tree_flatten(got)[0], tree_flatten(want)[0]
    assert len(mine) == len(theirs), f"{where}: {len(mine)} results, cpu has {len(theirs)}"
    for x, y in zip(mine, theirs, strict=True):
        if not isinstance(y, torch.Tensor):
            if isinstance(y, (float, complex)):
                torch.testing.assert_close(x, y, equal_nan=True)
            elif not isinstance(y, torch.device):
                assert x == y, f"{where}: {x!r}, cpu has {y!r}"
            continue
        assert x.device.type == ("npu" if on_npu else "cpu"), (
            f"{where}: the result is on {x.device}"
        )
        torch.testing.assert_close(
            x.detach().cpu(),
            y.detach(),
            equal_nan=True,
            check_stride=False,
            msg=lambda text: f"{where}: {text}",
        )
