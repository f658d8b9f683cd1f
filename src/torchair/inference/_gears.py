"""torchair.inference.set_dim_gears: a dynamic graph that takes a few sizes and no others.

A gear is one combination of the listed sizes. Sizes outside them raise when the graph is compiled or run; every other
dimension of the inputs is fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MAX_GEARS = 100
_ATTRIBUTE = "dim_gears"


def set_dim_gears(t: torch.Tensor, dim_gears: dict[int, list[int] | tuple[int, ...]]) -> None:
    """Lists the sizes that dimensions of an input may have, before the model is compiled.

    Args:
        t: an input of the compiled model.
        dim_gears: dimension -> its sizes, 2 to 100 of them, none 0 or 1.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"set_dim_gears: t must be a Tensor, received {type(t).__name__}")
    if not isinstance(dim_gears, dict) or not dim_gears:
        raise TypeError(f"set_dim_gears: dim_gears must be a filled dict, received {dim_gears!r}")
    for dim, sizes in dim_gears.items():
        _check(t, dim, sizes)
    before = getattr(t, _ATTRIBUTE, None)
    if before is not None and before != dim_gears:
        raise ValueError(
            f"set_dim_gears: the tensor already has the gears {before}; it cannot take {dim_gears}"
        )
    for dim in dim_gears:
        torch._dynamo.mark_dynamic(t, dim)
    setattr(t, _ATTRIBUTE, dict(dim_gears))


def _check(t: torch.Tensor, dim: Any, sizes: Any) -> None:
    where = f"set_dim_gears: dim_gears[{dim!r}]"
    if not isinstance(dim, int) or not 0 <= dim < t.dim():
        raise ValueError(f"{where}: the dimension must be an int in [0, {t.dim() - 1}]")
    if not isinstance(sizes, (list, tuple)):
        raise ValueError(f"{where}: expected a list or tuple, received {type(sizes).__name__}")
    if not 2 <= len(sizes) <= MAX_GEARS:
        raise ValueError(f"{where}: expected 2 to {MAX_GEARS} sizes, received {len(sizes)}")
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 2:
            raise ValueError(f"{where}: sizes must be integers above 1, received {size!r}")


@dataclass
class Gears:
    """The gears of one model: which dimensions of which inputs (counted from the end) they are about."""

    dimensions: list[tuple[int, int]]  # (input, dimension), inputs from the end: -1 is the last
    allowed: set[tuple[int, ...]]  # the sizes of those dimensions, together

    def options(self, proto: Any) -> dict[str, str]:
        """The gears in the graph engine's words, for the converted graph."""
        inputs = [op for op in proto.op if op.type == "Data"]
        dynamic = {(index + len(inputs), dim) for index, dim in self.dimensions}
        shapes = []
        for position, op in enumerate(inputs):
            sizes = [
                -1 if (position, dim) in dynamic else size
                for dim, size in enumerate(op.output_desc[0].shape.dim)
            ]
            shapes.append(f"{op.name}:{','.join(map(str, sizes))}")
        return {
            "ge.inputShape": ";".join(shapes),
            "ge.dynamicDims": ";".join(",".join(map(str, gear)) for gear in sorted(self.allowed)),
            "ge.dynamicNodeType": "1",
        }

    def guarded(self, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """The function, for inputs in a gear alone."""

        def call(values: list[Any]) -> Any:
            self.check([tuple(v.shape) if isinstance(v, torch.Tensor) else () for v in values])
            return run(values)

        call._boxed_call = True  # type: ignore[attr-defined]
        call.program = run  # type: ignore[attr-defined]
        return call

    def check(self, shapes: Sequence[tuple[int, ...]]) -> None:
        given = tuple(int(shapes[i][d]) for i, d in self.dimensions)
        if given not in self.allowed:
            raise RuntimeError(
                f"set_dim_gears: the inputs' sizes {given} are in no gear, the gears are {sorted(self.allowed)}"
            )


def of_inputs(example_inputs: Sequence[Any], config: Any) -> Gears | None:
    """The gears that the inputs of a model carry, or None. Sizes without gears become fixed."""
    count = len(example_inputs)
    marked = {
        index: value.__dict__[_ATTRIBUTE]
        for index, value in enumerate(example_inputs)
        if isinstance(value, torch.Tensor) and _ATTRIBUTE in getattr(value, "__dict__", {})
    }
    if not marked:
        return None
    if config.captures:
        raise NotImplementedError(
            f"set_dim_gears works in mode max-autotune, not in {config.mode.raw}"
        )
    dimensions, lists = [], []
    for index, gears in marked.items():
        for dim in sorted(gears):
            dimensions.append((index - count, dim))
            lists.append(tuple(gears[dim]))
    policy = config.inference_config.dynamic_gears_merge_policy.raw
    if policy == "zip":
        if len({len(one) for one in lists}) != 1:
            raise ValueError(
                "set_dim_gears: with dynamic_gears_merge_policy zip all dimensions need the same number of "
                f"sizes, received {[len(one) for one in lists]}"
            )
        allowed = set(zip(*lists, strict=True))
    else:
        allowed = set(itertools.product(*lists))
    if len(allowed) > MAX_GEARS:
        raise ValueError(
            f"set_dim_gears: at most {MAX_GEARS} gears are allowed, {policy} gives {len(allowed)}"
        )
    gears_of_model = Gears(dimensions, allowed)
    gears_of_model.check([tuple(map(_hint, getattr(v, "shape", ()))) for v in example_inputs])
    _fix_other_sizes(example_inputs, marked)
    return gears_of_model


def _hint(size: Any) -> int:
    """The size in the call that is being compiled, without a promise that it stays so."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _fix_other_sizes(example_inputs: Sequence[Any], marked: dict[int, Any]) -> None:
    for index, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if dim not in marked.get(index, {}):
                    int(size)  # guards: another size is another graph
