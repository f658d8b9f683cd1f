"""torch.cond: a node If with a graph for each branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair.ge import attr
from torchair.ge.graph import Tensor, as_tensor, current, node
from torchair.ge.registry import register_fx_node_ge_converter


@register_fx_node_ge_converter(torch.ops.higher_order.cond)
def _cond(pred: Any, then: Any, other: Any, operands: Sequence[Any] = (), *, raw_meta: Any) -> Any:
    from torchair.ge.convert import convert

    given = [as_tensor(one) for one in operands]
    metas = [one.meta for one in given]
    inputs = {"cond": as_tensor(pred), "input": given}
    results = node("If", inputs, [("output", len(raw_meta))], {"N": attr.Int(len(given))})
    op = current().proto.op[-1]
    for name, branch in (("then_branch", then), ("else_branch", other)):
        made = convert(branch, metas, config=None, name=f"{op.name}_{name}")
        if not all(isinstance(one, Tensor) for one in made.results):
            raise NotImplementedError(f"cond: {name} returns something that is no tensor")
        op.attr[name].g.CopyFrom(made.proto)
    return results
