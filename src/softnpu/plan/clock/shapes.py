"""From the tensors of a task to the numbers that its cost depends on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from softnpu.plan.clock.attention import Attention
from softnpu.plan.clock.classes import is_backward
from softnpu.plan.clock.cube import Product
from softnpu.plan.clock.figures import ClockError
from softnpu.plan.tasks import Task, TensorSpec, bits

_CAUSAL = (2, 3, 4)  # sparse_mode of torch_npu's attention: left-up, right-down, band


def nbytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.nbytes for spec in specs)


def product(task: Task) -> Product:
    """The product of `mm`, `addmm`, `bmm`, `linear` and their kin: K follows from the sizes of both operands and result."""
    if not task.outputs or len(task.inputs) < 2:
        raise ClockError(f"{task.name}: a product needs two operands and a result")
    result = task.outputs[0]
    left, right = _operands(task, result)
    if task.ranks > 1 and len(right.shape) == 2:
        return _product_over_ranks(task, left, right)
    columns = result.shape[-1] if result.shape else 1
    batched = len(left.shape) > 2 and len(right.shape) > 2
    batch = math.prod(result.shape[:-2]) if batched else 1
    if not result.numel:
        return Product(0, 0, 0, left.dtype)
    k = math.isqrt(max(1, left.numel * right.numel // (result.numel * batch)))
    rows = result.numel // (batch * columns)
    stores = nbytes(task.outputs)
    return Product(rows, columns, k, left.dtype, batch, nbytes(task.inputs), stores)


def _product_over_ranks(task: Task, left: TensorSpec, right: TensorSpec) -> Product:
    """A product with a collective before or after it, whose result is not that of these operands: x2 is K x N."""
    k, n = right.shape
    gathered = task.ranks if "gather" in task.name else 1
    rows = gathered * left.numel // max(1, k)
    size = bits(left.dtype) / 8
    return Product(rows, n, k, left.dtype, 1, rows * k * size + right.nbytes, 0.0)


def _operands(task: Task, result: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """The two factors: of `addmm` and `baddbmm` the last ones, else the first ones with two dimensions or more."""
    wide = [spec for spec in task.inputs if len(spec.shape) >= 2]
    if len(wide) < 2:
        plain = sorted(task.inputs, key=lambda spec: -spec.numel)[:2]
        return plain[0], plain[1]
    plain_name = task.name.rsplit("::", 1)[-1]
    adds = plain_name.startswith(("addmm", "baddbmm", "addbmm")) and len(wide) > 2
    return (wide[-2], wide[-1]) if adds else (wide[0], wide[1])


def grouped(task: Task) -> Product:
    """Rows of experts against their weights: every row meets one weight."""
    rows = task.inputs[0]
    weights = [spec for spec in task.inputs[1:] if len(spec.shape) >= 2]
    if not weights or not task.outputs:
        raise ClockError(f"{task.name}: a grouped product needs rows, weights and a result")
    result = task.outputs[0]
    experts = sum(spec.shape[0] if len(spec.shape) == 3 else 1 for spec in weights)
    k, n = rows.shape[-1], result.shape[-1]
    each = -(-math.prod(rows.shape[:-1]) // max(1, experts))
    loads, stores = nbytes(task.inputs), nbytes(task.outputs)
    return Product(each, n, k, rows.dtype, max(1, experts), loads, stores)


def convolution(task: Task) -> Product:
    """As a product: pixels of the result by channels by the elements of a filter. The backward pass has two of them."""
    weight = next((s for s in task.inputs[1:] if len(s.shape) == len(task.inputs[0].shape)), None)
    if weight is None or not task.outputs:
        raise ClockError(f"{task.name}: a convolution needs an input and a filter")
    backward = is_backward(task.name)
    result = task.inputs[0] if backward else task.outputs[0]
    channels = weight.shape[0]
    taps = math.prod(weight.shape[1:])
    pixels = result.numel // max(1, channels)
    loads, stores = nbytes(task.inputs), nbytes(task.outputs)
    times = sum(len(s.shape) >= 3 for s in task.outputs) if backward else 1
    return Product(pixels, channels, taps, result.dtype, max(1, times), loads, stores)


def attention(task: Task) -> Attention:
    """Of torch_npu's and ATen's fused attentions: the layout is an attribute, or batch, heads, rows, size."""
    if len(task.inputs) < 3:
        raise ClockError(f"{task.name}: attention needs query, key and value")
    query, key, value = task.inputs[:3]
    backward = is_backward(task.name)
    if backward and len(task.inputs) > 3 and _first_is_gradient(task):
        query, key, value = task.inputs[1:4]
    layout = str(task.attribute("input_layout") or task.attribute("layout") or "")
    heads = _number(task, "head_num", "num_heads", "num_query_heads")
    shape = _sizes(query, layout, heads)
    keys = _sizes(key, layout, _number(task, "num_key_value_heads", "num_kv_heads"), shape[3])
    causal = task.attribute("sparse_mode") in _CAUSAL or bool(task.attribute("is_causal"))
    size = value.shape[-1] if len(value.shape) >= 3 and keys[3] == key.shape[-1] else keys[3]
    batch, queries, rows = _lengths(task, layout, shape, keys)
    kv_heads = keys[1]
    if task.attribute("block_size"):  # a paged cache: blocks of rows, of all requests
        kv_heads = _number(task, "num_key_value_heads", "num_kv_heads") or shape[1]
        rows = rows or key.numel // max(1, kv_heads * shape[3] * batch)
    return Attention(
        batch=batch,
        heads=shape[1],
        kv_heads=kv_heads,
        queries=queries,
        keys=rows or keys[2],
        key_size=shape[3],
        value_size=size,
        dtype=query.dtype,
        fraction=0.5 if causal and queries > 1 else 1.0,
        backward=backward,
    )


def _lengths(
    task: Task, layout: str, shape: tuple[int, ...], keys: tuple[int, ...]
) -> tuple[int, int, int]:
    """Sequences, queries of each, and keys of each on average (0: as the tensors say), from the lists of lengths."""
    mine = _list(task, "actual_seq_qlen", "actual_seq_lengths")
    theirs = _list(task, "actual_seq_kvlen", "actual_seq_lengths_kv")
    if not layout.startswith(("TND", "NTD")):
        return shape[0], shape[2], sum(theirs) // len(theirs) if theirs else 0
    if not mine:
        return shape[0], shape[2], 0  # one sequence, as far as anyone says
    queries = [b - a for a, b in zip([0, *mine], mine)]
    found = theirs or mine
    summed = not task.attribute("block_size")  # lengths of a paged cache are not summed up
    rows = [b - a for a, b in zip([0, *found], found)] if summed else found
    scores = sum(q * k for q, k in zip(queries, rows))
    total = max(1, sum(queries))
    return len(mine), -(-total // len(mine)), max(1, scores // total)


def _list(task: Task, *names: str) -> list[int]:
    for name in names:
        value = task.attribute(name)
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, int) for v in value):
            return list(value)
    return []


def _first_is_gradient(task: Task) -> bool:
    """ATen's backward takes the result's gradient first, torch_npu's takes query, key, value."""
    return task.name.startswith("aten::")


def _number(task: Task, *names: str) -> int:
    for name in names:
        value = task.attribute(name)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _sizes(
    spec: TensorSpec, layout: str, heads: int, head_size: int = 0
) -> tuple[int, int, int, int]:
    """Batch, heads, rows, size of a head."""
    shape = spec.shape
    first = layout.split("_", 1)[0]
    if first in ("BSH", "SBH") or (not first and len(shape) == 3):
        batch, rows = (shape[1], shape[0]) if first == "SBH" else (shape[0], shape[1])
        count = heads or (shape[2] // head_size if head_size else 1)
        return batch, count, rows, shape[2] // count
    if first in ("TND", "NTD"):
        rows, count = (shape[1], shape[0]) if first == "NTD" else (shape[0], shape[1])
        return 1, count, rows, shape[2]
    if len(shape) == 2:
        return 1, 1, shape[0], shape[1]
    if len(shape) != 4:
        raise ClockError(f"attention: a tensor of shape {list(shape)} in layout {layout or '?'}")
    if first == "BSND":
        return shape[0], shape[2], shape[1], shape[3]
    return shape[0], shape[1], shape[2], shape[3]
