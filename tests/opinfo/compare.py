"""PyTorch's operator database on the npu against the cpu: the same inputs, the same results, the same gradients.

A pair is (operator, dtype). `check(pair)` raises on the first difference; `pairs()` lists them all, for every
dtype that the CPU supports. Random operators are compared by shape, dtype and reproducibility.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_npu  # noqa: F401
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
MOST_SAMPLES = 40  # of one pair; the database has up to several hundred
GRADIENT_SAMPLES = 12


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


def to_npu(value: Any) -> Any:
    """The same value on the device: tensors move (with their strides), cpu devices become npu."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.detach().to("npu").requires_grad_(item.requires_grad)
        if isinstance(item, torch.device) and item.type == "cpu":
            return torch.device("npu", 0)
        if isinstance(item, str) and item == "cpu":
            return "npu"
        return item

    return tree_map(move, value)


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def check(pair: Pair) -> int:
    """Compares one pair and returns the number of samples; raises at a difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = 0
        for index, sample in enumerate(_samples(pair, requires_grad=False)):
            if index >= MOST_SAMPLES:
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
    return iter(pair.op.sample_inputs("cpu", pair.dtype, requires_grad=requires_grad))


def _call(pair: Pair, args: Any) -> Any:
    first, rest, kwargs = args
    return pair.op(first, *rest, **kwargs)


def _check_forward(pair: Pair, sample: Any, index: int) -> None:
    arguments = (sample.input, sample.args, sample.kwargs)
    # Both sides get their own copy: in-place operators would change the other's input.
    mine = to_npu(arguments)
    theirs = tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, arguments)
    torch.manual_seed(17)
    try:
        want = _call(pair, theirs)
    except (RuntimeError, NotImplementedError) as error:
        if index == 0:
            raise Unsupported(str(error)) from error
        return
    again = tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, arguments)
    torch.manual_seed(18)
    random = not _equal(want, _call(pair, again))
    torch.manual_seed(17)
    got = _call(pair, mine)
    if random:
        torch.manual_seed(17)
        repeat = _call(pair, to_npu(arguments))
        _same_form(got, want, index)
        if not _equal(got, repeat):
            raise AssertionError(f"sample {index}: the same seed gives other numbers")
        return
    _close(got, want, f"sample {index}")


def _check_gradient(pair: Pair, sample: Any, index: int) -> None:
    theirs = (sample.input, sample.args, sample.kwargs)
    mine = to_npu(theirs)
    torch.manual_seed(17)
    try:
        want = _gradients(pair, theirs)
    except (RuntimeError, NotImplementedError):
        return
    if want is None:
        return
    torch.manual_seed(18)
    if not _equal(want, _gradients(pair, theirs)):
        return  # random: its forward is checked by form
    torch.manual_seed(17)
    _close(_gradients(pair, mine), want, f"gradient of sample {index}")


def _gradients(pair: Pair, arguments: Any) -> list[torch.Tensor | None] | None:
    out = _call(pair, arguments)
    if pair.op.output_process_fn_grad is not None:
        out = pair.op.output_process_fn_grad(out)
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


def _equal(a: Any, b: Any) -> bool:
    first, second = tensors(a), tensors(b)
    if len(first) != len(second):
        return False
    for x, y in zip(first, second, strict=True):
        x, y = x.detach().cpu(), y.detach().cpu()
        if x.shape != y.shape:
            return False
        if x.layout != torch.strided:
            x, y = x.to_dense(), y.to_dense()
        if not torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)):
            return False
    return True


def _same_form(got: Any, want: Any, index: int) -> None:
    for x, y in zip(tensors(got), tensors(want), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, (
            f"sample {index}: {tuple(x.shape)} {x.dtype}, cpu has {tuple(y.shape)} {y.dtype}"
        )


def _close(got: Any, want: Any, where: str) -> None:
    mine, theirs = tree_flatten(got)[0], tree_flatten(want)[0]
    assert len(mine) == len(theirs), f"{where}: {len(mine)} results, cpu has {len(theirs)}"
    for x, y in zip(mine, theirs, strict=True):
        if not isinstance(y, torch.Tensor):
            same = x == y or (isinstance(y, torch.device) and y.type == "cpu") or x != x
            assert same or isinstance(y, float), f"{where}: {x!r}, cpu has {y!r}"
            if isinstance(y, float):
                torch.testing.assert_close(x, y, equal_nan=True)
            continue
        assert x.device.type == "npu" or y.device.type != "cpu" or x.dim() == 0, (
            f"{where}: the result is on {x.device}"
        )
        torch.testing.assert_close(
            x.detach().cpu(), y.detach(), equal_nan=True, check_stride=False, msg=lambda m: f"{where}: {m}"
        )
