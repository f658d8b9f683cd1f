"""debug.fx_summary: a table of a graph's operators, with upstream's headings: operator, library, whether it has a
converter (已支持 yes, 未实现 no), calls, inputs, outputs."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter


class _Summary(Interpreter):
    def __init__(self, gm: GraphModule):
        super().__init__(gm)
        self.inputs: dict[Any, Counter[str]] = defaultdict(Counter)
        self.outputs: dict[Any, Counter[str]] = defaultdict(Counter)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        given = _text(args) + (f", {_text(kwargs)}" if kwargs else "")
        self.inputs[target][given] += 1
        self.outputs[target][_text(result)] += 1
        return result


def summarize(
    gm: GraphModule, example_inputs: Sequence[Any], fake_mode: FakeTensorMode, path: str
) -> None:
    """A table of the graph's operators, with their shapes and how often each occurs."""
    summary = _Summary(gm)
    with fake_mode:
        summary.run(*example_inputs)
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["目标函数", "函数类型", "支持状态", "调用次数", "输入统计", "输出统计"])
        for target, inputs in summary.inputs.items():
            kind = target.namespace if isinstance(target, OpOverload) else "builtin"
            writer.writerow(
                [
                    str(target),
                    kind,
                    _converter_state(target),
                    sum(inputs.values()),
                    _counted(inputs),
                    _counted(summary.outputs[target]),
                ]
            )


def _converter_state(target: Any) -> str:
    from torchair import ge

    builtin = not isinstance(target, OpOverload)
    return "已支持" if builtin or ge.has_converter(target) else "未实现"


def _counted(seen: Counter[str]) -> str:
    return "\n".join(f"{count}次：{text}" for text, count in seen.most_common())


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).split('.')[-1]}{tuple(value.size())}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_text(v)}' for k, v in value.items())}}}"
    return str(value)
