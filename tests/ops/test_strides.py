"""Every operator on tensors that are not contiguous: the results of contiguous ones, and in place the same writes.

Each sample is called again with its tensors transposed in memory and cut out of larger ones, all at once and each
alone, and expanded from one row (stride 0) where it only reads. Nobody lists operators here: the registry does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.ops.support import assert_same
from tests.ops.test_all_operators import SAMPLES, inputs
from torch_npu.ops._registry import operators
from torch_npu.ops._signatures import mutable_arguments

#: operators for which the place in memory is the point
ABOUT_MEMORY = {
    "copy_memory_": "copies the bytes of storages",
    "get_storage_size": "counts the elements of a storage",
    "npu_stride_copy": "reads the storage by strides of its own",
}

#: int32 words that carry int4: they are packed along the rows of memory, so a transposed tensor holds other values
PACKED = ("npu_quant_matmul", "npu_weight_quant_batchmatmul")

#: their pages ask for sizes that take long: the first sample with all tensors transposed must do
LARGE = ("npu_mla_prolog", "npu_multi_head_attention", "npu_dropout_with_add_softmax")


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The same values with the first and last dimension swapped in memory."""
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else cut(t)


def cut(t: torch.Tensor) -> torch.Tensor:
    """The same values in the middle of larger memory: an offset, and a gap after every row."""
    if t.dim() == 0:
        return t.new_zeros(3)[1].copy_(t)
    if t.dim() == 1:
        return t.new_zeros(t.shape[0] + 1, 2)[1:, 1].copy_(t)
    return t.new_zeros(*t.shape[:-1], t.shape[-1] + 3)[..., 2:-1].copy_(t)


def expanded(t: torch.Tensor) -> torch.Tensor:
    """The first row all over, in the memory of one row."""
    return t[:1].expand(t.shape)


def copies(values: list[Any]) -> list[Any]:
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def outcome(name: str, given: list[Any], structure: Any) -> list[Any]:
    """Results, then the arguments as the call leaves them."""
    args, kwargs = tree_unflatten(given, structure)
    torch.npu.manual_seed(3)
    flat = tree_flatten((operators[name].overload(*args, **kwargs), given))[0]
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in flat]


def places(name: str, flat: list[Any]) -> list[int]:
    """Where the tensors are whose strides may change."""
    packed = (torch.int32,) if name in PACKED else ()
    return [
        i for i, v in enumerate(flat)
        if isinstance(v, torch.Tensor) and v.numel() and v.dtype not in packed
    ]  # fmt: skip


Change = Callable[[torch.Tensor], torch.Tensor]


def changes(name: str, where: list[int]) -> Iterator[tuple[Change, list[int]]]:
    yield transposed, where
    if not name.startswith(LARGE):
        yield cut, where
        if len(where) > 1:
            yield from ((change, [place]) for place in where for change in (transposed, cut))


STRIDED = [(n, i) for n, i in SAMPLES if n not in ABOUT_MEMORY]
READING = sorted({n for n, _ in STRIDED if not n.startswith(LARGE)})
#: their results have the strides of their arguments
KEEP_STRIDES = ("npu_format_cast", "_npu_format_cast", "npu_weight_quant_preprocess")


@pytest.mark.parametrize("name,index", [(n, i) for n, i in STRIDED if n in READING or i == 0])
def test_strided_equals_contiguous(name, index):
    flat, structure = tree_flatten(inputs(name, index))
    expected = outcome(name, copies(flat), structure)
    for change, chosen in changes(name, places(name, flat)):
        given = [change(v) if i in chosen else v for i, v in enumerate(copies(flat))]
        try:
            got = outcome(name, given, structure)
        except RuntimeError as refusal:  # a documented constraint, which says so
            said = (f"{part}: argument '" for part in (name, name.split(".")[0]))
            assert any(words in str(refusal) for words in said)
            assert "contiguous" in str(refusal) or "with gaps" in str(refusal)
        else:
            assert_same(got, expected)


@pytest.mark.parametrize("name", [n for n in READING if not n.startswith(KEEP_STRIDES)])
def test_results_are_contiguous(name):
    """The card lays out what it makes by size alone; what an operator returns of its arguments stays as it is."""
    flat, structure = tree_flatten(inputs(name, 0))
    chosen = places(name, flat)
    given = [transposed(v) if i in chosen else v for i, v in enumerate(flat)]
    args, kwargs = tree_unflatten(given, structure)
    memory = {v.untyped_storage().data_ptr() for v in given if isinstance(v, torch.Tensor)}
    try:
        results = tree_flatten(operators[name].overload(*args, **kwargs))[0]
    except RuntimeError as refusal:
        assert "contiguous" in str(refusal) or "with gaps" in str(refusal)
        return
    for result in results:
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in memory:
            assert result.is_contiguous()


@pytest.mark.parametrize("name", READING)
def test_expanded_equals_contiguous(name):
    """One tensor at a time; rows that are all alike are not what every operator takes."""
    flat, structure = tree_flatten(inputs(name, 0))
    for place in places(name, flat):
        value = flat[place]
        if value.dim() == 0 or value.shape[0] == 1:
            continue
        plain, given = copies(flat), copies(flat)
        plain[place], given[place] = expanded(value).contiguous(), expanded(value)
        try:
            expected = outcome(name, plain, structure)
        except RuntimeError:
            continue
        if not torch.equal(plain[place], given[place]):
            continue  # written: such a tensor must not overlap itself
        try:
            got = outcome(name, given, structure)
        except RuntimeError as refusal:
            assert "contiguous" in str(refusal) or "with gaps" in str(refusal)
        else:
            assert_same(got, expected)


def out_form(name: str) -> Any:
    """The overload that takes `out` arguments for the operator's results, if the registry made one."""
    operator = operators[name]
    packet = getattr(getattr(torch.ops, operator.namespace), operator.base)
    made = "." not in name and "out" in packet.overloads() and f"{name}.out" not in operators
    return packet.out if made else None


@pytest.mark.parametrize("name", sorted({n for n, _ in SAMPLES if out_form(n) is not None}))
def test_strided_out_arguments_are_written(name):
    args, kwargs = inputs(name, 0)
    expected = tree_flatten(operators[name].overload(*args, **kwargs))[0]
    form = out_form(name)
    targets = [transposed(torch.zeros_like(t)) for t in expected]
    memory = [t.data_ptr() for t in targets]
    names = mutable_arguments(form._schema)
    extra = {
        a.name: None for a in form._schema.arguments if a.kwarg_only and not a.has_default_value()
    }
    form(*args, **(extra | kwargs | dict(zip(names, targets, strict=True))))
    assert [t.data_ptr() for t in targets] == memory
    assert_same([t.cpu() for t in targets], [t.cpu() for t in expected])
