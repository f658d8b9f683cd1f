"""dynamo_export: a model as .air file, with its weights; mirrors upstream's torchair.dynamo_export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from torchair.configs._sections import rank_and_world
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger
from torchair.ge import dump
from torchair.ge._deployment import write_templates
from torchair.ge._types import ge_type
from torchair.ge.graph import Const, Graph
from torchair.ge.ir import GraphDef

#: a model is at most 2 GiB in the file's format; past this, weights are files of their own
LARGEST_MODEL = (2048 - 200) * 1024 * 1024


class _ExportSuccess(Exception):
    """Ends the run of the compiled model: its graph is written."""


def dynamo_export(
    *args: Any,
    model: torch.nn.Module,
    export_path: str = "export_file",
    export_name: str = "export",
    dynamic: bool = False,
    config: CompilerConfig | None = None,
    **kwargs: Any,
) -> None:
    """Writes <export_path>/<export_name>.air, dynamo.pbtxt, and weights as files if they are too large for the model.

    In torch.distributed each rank writes <export_name><rank>.air, the rest into rank_<rank>.

    Args:
        args, kwargs: example inputs of the model.
        model: what is exported; it must be one graph.
        export_path: a folder, made if it does not exist.
        export_name: name of the file.
        dynamic: whether sizes of inputs stay open.
        config: options; export.experimental.enable_record_nn_module_stack keeps the modules' names on the nodes,
            auto_atc_config_generated writes templates of ATC's configuration for exports of several ranks.
    """
    from torchair.compiler import aot_compile, check_support

    config = CompilerConfig() if config is None else config
    check_support(config)
    export_name = os.path.basename(export_name)
    for path in (export_path, os.path.join(export_path, f"{export_name}.air")):
        if os.path.islink(path):
            raise ValueError(f"dynamo_export: expected no symbolic link, received {path}")
    names = {id(p): name for name, p in [*model.named_buffers(), *model.named_parameters()]}

    def compile_one(gm: Any, examples: Sequence[Any], *rest: Any, **flags: Any) -> Any:
        from torchair import ge

        graph = ge.convert(gm, examples, config=config, name=export_name)

        def run(inputs: list[Any]) -> Any:
            _write(graph.proto, inputs, names, export_path, export_name)
            if config.export.experimental.auto_atc_config_generated:
                write_templates(graph.proto, export_path, export_name)
            raise _ExportSuccess

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: Any, examples: Sequence[Any]) -> Any:
        return aot_compile(gm, examples, config, {}, compile_one)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    try:
        with torch.no_grad():
            compiled(*args, **kwargs)
    except _ExportSuccess:
        logger.info("exported %s to %s", export_name, export_path)
    else:
        raise RuntimeError("dynamo_export: the model has no graph to export")
    finally:
        torch._dynamo.reset()


def _write(
    source: Any, inputs: Sequence[Any], names: dict[int, str], folder: str, name: str
) -> None:
    inner = folder
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, _ = rank_and_world()
        name, inner = f"{name}{rank}", os.path.join(folder, f"rank_{rank}")
    os.makedirs(inner, exist_ok=True)
    proto = GraphDef()
    proto.CopyFrom(source)
    weights = [v for v in inputs if id(v) in names]
    size = proto.ByteSize() + sum(w.numel() * w.element_size() for w in weights)
    external = size > LARGEST_MODEL
    assigned = {op.input[0].partition(":")[0] for op in proto.op if op.type == "Assign"}
    index = 0
    for op in proto.op:
        if op.type != "Data":
            continue
        value = inputs[op.attr["index"].i]
        if id(value) in names and op.name not in assigned:
            _embed(op, value, os.path.join(inner, names[id(value)].replace(".", "_")), external)
            continue
        op.attr["index"].i = index
        op.type = "RefData" if op.name in assigned else "Data"
        index += 1
    with open(os.path.join(inner, "dynamo.pbtxt"), "w", encoding="utf-8") as file:
        file.write(dump.pbtxt(proto))
    model = Graph(name)
    model.proto.CopyFrom(proto)
    with open(os.path.join(folder, f"{name}.air"), "wb") as binary:
        binary.write(model.model.SerializeToString())


def _embed(op: Any, value: torch.Tensor, path: str, external: bool) -> None:
    """Turns the input into a constant, or into the name of the file that holds it."""
    name, device = op.name, op.output_desc[0].device_type
    with Graph():
        made = Const(value, node_name=name, readable=False).node
    op.Clear()
    op.CopyFrom(made)
    op.output_desc[0].device_type = device
    if external:
        with open(path, "wb") as file:
            file.write(op.attr["value"].t.data)
        op.type = "FileConstant"
        del op.attr["value"]
        op.attr["file_path"].s = path.encode()
        op.attr["dtype"].dt = ge_type(value.dtype)
        op.attr["shape"].list.val_type = 2
        op.attr["shape"].list.i.extend(value.shape)
