"""A compiled graph as an object with code: what programs call, and what they keep on disk to skip a compilation.

The code is Python text with a function `kernel` that runs the optimized ATen graph operator by operator. Graphs that
text cannot hold (branches, in-place constants of other kinds than tensors) have none.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from torchair._eager import needs_streams
from torchair.core.utils import logger


@dataclasses.dataclass
class CompiledFxArtifacts:
    """What is kept of a compiled graph."""

    version: str = "0.1"
    py_code: str | None = None


class CompiledFxGraph:
    """A compiled graph: call it with the graph's inputs.

    `run` takes the list of inputs, as AOTAutograd calls it; `gm` is the graph that its code describes.
    """

    def __init__(
        self, runner: Callable[..., Any], config: Any = None, gm: GraphModule | None = None
    ):
        self.runner, self.config, self.gm = runner, config, gm
        self.run: Callable[[list[Any]], Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.runner(*args, **kwargs)

    def get_code(self, extend_config: Any = None) -> str:
        """Python text whose `kernel(*inputs)` runs the graph operator by operator; "" if text cannot hold it."""
        if extend_config:
            raise NotImplementedError(f"get_code: extend_config {extend_config!r} is not supported")
        if self.gm is None:
            return ""
        return text_of(self.gm)

    def dump_artifacts(self) -> CompiledFxArtifacts:
        """The code as an artifact, for `load_artifacts`."""
        code = self.get_code()
        if not code:
            raise RuntimeError("dump_artifacts: this compiled graph has no code that could be kept")
        return CompiledFxArtifacts(py_code=code)

    @classmethod
    def load_artifacts(cls, artifacts: CompiledFxArtifacts) -> CompiledFxGraph:
        """The graph that the code of an artifact runs."""
        if artifacts.version != CompiledFxArtifacts.version:
            raise RuntimeError(
                f"load_artifacts: expected artifacts of version {CompiledFxArtifacts.version}, "
                f"received {artifacts.version}"
            )
        if not isinstance(artifacts.py_code, str):
            raise RuntimeError(
                f"load_artifacts: expected py_code as text, received {type(artifacts.py_code).__name__}"
            )
        return cls(module_of(artifacts.py_code).kernel)


def text_of(gm: GraphModule) -> str:
    """The graph as Python text, "" if text cannot hold it."""
    held = {
        str(node.target): getattr_path(gm, str(node.target))
        for node in gm.graph.find_nodes(op="get_attr")
    }
    others = [name for name, value in held.items() if type(value) is not torch.Tensor]
    if others or needs_streams(gm):
        logger.warning("no code is written: the graph holds %s", others or "streams")
        return ""
    code = gm.graph.python_code("self")
    lines = [_format_import_block(code.globals, sys_importer), "import types", "import torch_npu"]
    lines += ["from torchair._code import constants as _constants", "", "", code.src.lstrip()]
    lines += ["", "", f"_self = _constants({_packed(held)!r})", "", "", "def kernel(*inputs):"]
    lines += ["    return forward(_self, *inputs)", ""]
    return "\n".join(lines)


def module_of(py_code: str) -> Any:
    """Runs the text as a module."""
    module = types.ModuleType("torchair_compiled_graph")
    exec(compile(py_code, "<torchair graph>", "exec"), module.__dict__)
    return module


def getattr_path(gm: GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _packed(held: dict[str, torch.Tensor]) -> str:
    if not held:
        return ""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach() for name, tensor in held.items()}, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def constants(packed: str) -> Any:
    """The constants that the text of a graph holds, under their attribute paths."""
    root = types.SimpleNamespace()
    loaded = torch.load(io.BytesIO(base64.b64decode(packed)), weights_only=True) if packed else {}
    for path, tensor in loaded.items():
        *owners, name = path.split(".")
        owner = root
        for part in owners:
            owner = vars(owner).setdefault(part, types.SimpleNamespace())
        setattr(owner, name, tensor)
    return root
