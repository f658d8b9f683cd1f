"""A graph as a file to read: the format's own text (txt), a TensorFlow-like graph (pbtxt), or Python calls (py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchair.ge import attr

if TYPE_CHECKING:
    from torchair.ge.graph import Graph


def write(graph: Graph, path: str) -> None:
    """Writes the graph; the suffix of the path says how."""
    suffix = path.rpartition(".")[2]
    forms = {
        "txt": lambda: str(graph.proto),
        "pbtxt": lambda: pbtxt(graph.proto),
        "py": lambda: python(graph),
    }
    if suffix not in forms:
        raise ValueError(f"expected a file ending in txt, pbtxt or py, received {path}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(forms[suffix]())


def pbtxt(proto: Any) -> str:
    """One `node` an operator, attributes and descriptions of tensors as text: Netron and TensorBoard open it."""
    lines: list[str] = []
    for op in proto.op:
        lines += ["node {", f'  name: "{op.name}"', f'  op: "{op.type}"']
        for source in op.input:
            name, _, index = source.partition(":")
            lines.append(f'  input: "{"^" + name if index == "-1" else source}"')
        texts = [(key, str(value)) for key, value in sorted(op.attr.items())]
        texts += [(f"[i]{desc.name}", str(desc)) for desc in op.input_desc]
        texts += [(f"[o]{desc.name}", str(desc)) for desc in op.output_desc]
        for key, text in texts:
            lines += [
                "  attr {",
                f'    key: "{key}"',
                "    value {",
                f"      s: {_quoted(text)}",
                "    }",
                "  }",
            ]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def python(graph: Graph) -> str:
    """The calls that build the graph, each under the line of the program and the FX node that it came from.

    Run inside `with torchair.ge.GeGraph(name):` the file builds the graph again; branches of an If are left out.
    """
    lines = [
        "# -*- coding: utf-8 -*-",
        "from torch import tensor",
        "from torchair._ge_concrete_graph import ge_apis as ge",
        "from torchair.ge._ge_graph import get_default_ge_graph",
        "",
    ]
    seen: set[str] = set()
    for index, op in enumerate(graph.proto.op):
        comments = [c for c in graph.comments.get(index, ()) if c not in seen]
        seen.update(comments)
        if comments:
            lines += ["", *comments]
        lines.append(_call(op))
    return "\n".join(lines) + "\n"


def _variable(source: str) -> str:
    return re.sub(r"\W", "_", source) if source else "None"


def _call(op: Any) -> str:
    sources = [one for one in op.input if not one.endswith(":-1")]
    after = [one for one in op.input if one.endswith(":-1")]
    if op.type == "NetOutput":
        return f"\n_ = ge.NetOutput([{', '.join(map(_variable, sources))}], dependencies={after})"
    if op.type in ("Data", "RefData"):
        desc = op.output_desc[0]
        return (
            f"{_variable(op.name + ':0')} = ge.{op.type}(index={op.attr['index'].i}, dtype={_dtype(desc)}, "
            f'shape={list(desc.shape.dim)}, placement="{desc.device_type}", node_name="{op.name}")'
        )
    if op.type == "Const":
        desc = op.output_desc[0]
        parts = [_value(op), f"dtype={_dtype(desc)}"]
        parts += [f'placement="{desc.device_type}"'] if desc.device_type else []
    else:
        parts = [f"{name}={value}" for name, value in _inputs(op, sources).items()]
        for key, value in sorted(op.attr.items()):
            read = attr.read(value)
            if read is not None and (key.startswith(_KEPT) or not key.startswith("_")):
                parts.append(f"{key}={read.value!r}")
        names = [desc.name for desc in op.output_desc]
        if names != ["y"]:
            parts.append(f"outputs={names}")
    if after:
        parts.append(f"dependencies={after}")
    results = ", ".join(_variable(f"{op.name}:{i}") for i in range(len(op.output_desc))) or "_"
    return f'{results} = ge.{op.type}({", ".join([*parts, ""])}node_name="{op.name}")'


#: attributes without which a node cannot be run again
_KEPT = ("_torch_operator", "_given_")


def _inputs(op: Any, sources: Sequence[str]) -> dict[str, str]:
    """name -> text; the parts x0, x1, ... of a dynamic input are one list."""
    from torchair.ge.interpreter import dynamic_inputs

    lists = dynamic_inputs(op)
    found: dict[str, Any] = {}
    for desc, source in zip(op.input_desc, sources, strict=True):
        stem = desc.name.rstrip("0123456789")
        if stem in lists and stem != desc.name:
            found.setdefault(stem, []).append(_variable(source))
        else:
            found[desc.name] = _variable(source)
    return {k: f"[{', '.join(v)}]" if isinstance(v, list) else v for k, v in found.items()}


def _value(op: Any) -> str:
    if "_readable_value" in op.attr:
        return op.attr["_readable_value"].s.decode()
    from torchair.ge.interpreter import constant

    stored = op.attr["value"].t
    return f"tensor({constant(stored.data, stored.desc).tolist()!r})"


def _dtype(desc: Any) -> int:
    from torchair.ge._types import from_proto

    return from_proto(desc.dtype)
