"""Values as the Python text that makes them again (or makes their like, for large tensors)."""

from __future__ import annotations

import ast
import json
from typing import Any

import torch

_SMALL = 16  # elements up to which integers are written out
_LINE = 100


def literal(value: Any) -> str:
    """An expression: exact for numbers and small integer tensors, of the same shape and range for others."""
    if isinstance(value, torch.Tensor):
        return _tensor(value.detach())
    if isinstance(value, (list, tuple)):
        inner = ", ".join(literal(v) for v in value)
        return (
            f"[{inner}]"
            if isinstance(value, list)
            else f"({inner}{',' if len(value) == 1 else ''})"
        )
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return json.dumps(value) if isinstance(value, str) else repr(value)


def statement(name: str, head: str, items: list[str], tail: str) -> str:
    """`name = head items tail`, broken into lines as ruff does where it is longer than a line."""
    line = f"{name} = {head}{', '.join(items)}{tail}"
    if len(line) <= _LINE:
        return line
    inner = ", ".join(items)
    if len(inner) + 4 <= _LINE:
        return f"{name} = {head}\n    {inner}\n{tail}"
    lines = "".join(f"    {item},\n" for item in items)
    return f"{name} = {head}\n{lines}{tail}"


def call(name: str, expression: str) -> str:
    """`name = f(...)` as a statement; the arguments are those of the outermost call."""
    node = ast.parse(expression, mode="eval").body
    if not isinstance(node, ast.Call):
        return f"{name} = {expression}"
    head = ast.get_source_segment(expression, node.func)
    items = [ast.get_source_segment(expression, a) or "" for a in node.args]
    items += [f"{k.arg}={ast.get_source_segment(expression, k.value)}" for k in node.keywords]
    return statement(name, f"{head}(", items, ")")


def _tensor(tensor: torch.Tensor) -> str:
    place = "" if tensor.device.type == "cpu" else ', device="npu"'
    shape, dtype = ", ".join(map(str, tensor.shape)) or "()", tensor.dtype
    values = tensor.cpu()
    if dtype == torch.bool:
        return _mask(values, shape, place)
    if dtype.is_floating_point:
        return _floating(values, shape, place)
    return _integer(values, shape, place)


def _mask(values: torch.Tensor, shape: str, place: str) -> str:
    if values.dim() == 2 and torch.equal(values, torch.ones_like(values).triu(1)):
        return f"torch.ones({shape}, dtype=torch.bool{place}).triu(1)"
    if not values.any():
        return f"torch.zeros({shape}, dtype=torch.bool{place})"
    return f"torch.rand({shape}{place}) < 0.5"


def _floating(values: torch.Tensor, shape: str, place: str) -> str:
    exotic = values.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    dtype = "" if values.dtype == torch.float32 or exotic else f", dtype={values.dtype}"
    cast = f".to({values.dtype})" if exotic else ""
    if values.dtype == torch.float4_e2m1fn_x2:
        return f"torch.zeros({shape}, dtype=torch.uint8{place}).view({values.dtype})"
    plain = values.double()
    if plain.numel() and plain.min() == plain.max():
        return (
            f"torch.full({tuple(values.shape)}, {plain.flatten()[0].item():g}{dtype}{place}){cast}"
        )
    maker = "rand" if plain.numel() and plain.min() >= 0 else "randn"
    return f"torch.{maker}({shape}{dtype}{place}){cast}"


def _integer(values: torch.Tensor, shape: str, place: str) -> str:
    dtype = "" if values.dtype == torch.int64 else f", dtype={values.dtype}"
    if values.numel() <= _SMALL:
        return f"torch.tensor({values.tolist()}{dtype}{place})"
    if values.dim() == 1 and torch.equal(values, torch.arange(len(values), dtype=values.dtype)):
        return f"torch.arange({len(values)}{dtype}{place})"
    low, high = int(values.min()), int(values.max()) + 1
    if high - low == 1:
        return f"torch.full({tuple(values.shape)}, {low}{dtype}{place})"
    return f"torch.randint({low}, {high}, {tuple(values.shape)}{dtype}{place})"
