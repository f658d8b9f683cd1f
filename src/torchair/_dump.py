"""Data of a graph's operators as files: debug.data_dump, dump_config, and the dump of captured graphs."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from torch_npu.npu import _dump as device_dump
from torchair._eager import Eager
from torchair.configs._sections import _DataDump, _DumpConfig, rank_and_world, timestamp
from torchair.core.utils import logger
from torchair.scope import _attributes


class DataDump(Eager):
    """Saves inputs and outputs of each operator as .npy files while it runs.

    <path>/worldsize<n>_global_rank<r>/<graph>/<step>/<node>-<operator>.<INPUT|OUTPUT>.<index>.<time>.npy
    """

    counts = True

    def __init__(self, gm: GraphModule, config: _DataDump, name: str):
        super().__init__(gm)
        self.config, self.name, self.step = config, name, 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        result = super().run(*args, **kwargs)
        self.step += 1
        return result

    def run_node(self, n: Node) -> Any:
        chosen = self.config.filter.raw is None or self.config.filter.raw(n) is not None
        if not chosen or not isinstance(n.target, OpOverload):
            return super().run_node(n)
        args, _ = self.fetch_args_kwargs_from_env(n)
        prefix, moment = f"{n.name}-{n.target}", timestamp()
        for index, value in enumerate(args):
            if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
                for inner, one in enumerate(value):
                    self._save(f"{prefix}.INPUT.{index}.{inner}.{moment}", one)
            else:
                self._save(f"{prefix}.INPUT.{index}.{moment}", value)
        result = super().run_node(n)
        results = result if isinstance(result, (list, tuple)) else (result,)
        for index, value in enumerate(results):
            self._save(f"{prefix}.OUTPUT.{index}.{moment}", value)
        return result

    def _save(self, name: str, value: Any) -> None:
        rank, world = rank_and_world()
        folder = os.path.join(
            self.config.path.raw or ".",
            f"worldsize{world}_global_rank{rank}",
            self.name,
            str(self.step),
        )
        os.makedirs(folder, exist_ok=True)
        np.save(os.path.join(folder, f"{name}.npy"), as_numpy(value))
        logger.debug("dumped %s to %s", name, folder)


def as_numpy(value: Any) -> np.ndarray:
    """A value as an array; bfloat16 as float32, what has no array form as text."""
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu()
        return (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    if isinstance(value, (bool, int, float)):
        return np.array(value)
    return np.array(str(value))


class EngineDump(Eager):
    """dump_config in mode max-autotune: chosen operators, steps and sides, as tensors or as statistics.

    <dump_path>/worldsize<n>_global_rank<r>/<time>/<device>/<graph>/<model>/<step>/
        <operator>.<node>.<microseconds>.<input|output>.<index>.npy, or statistics.csv

    A model is a graph that the engine was given; they are counted from 1 in each process.

    Differs from upstream: arrays are .npy files; operators are named as in the FX graph (letter case aside).
    """

    counts = True

    def __init__(self, gm: GraphModule, config: _DumpConfig, name: str, model: int):
        super().__init__(gm)
        self.name, self.model, self.step = name, model, 0
        self.stages: tuple[str, ...] = {"all": ("input", "output")}.get(
            config.dump_mode.raw, (config.dump_mode.raw,)
        )
        self.layers = {layer.lower() for layer in config.dump_layer.raw.split()}
        self.steps = device_dump._steps(config.dump_step.raw)
        self.statistics = config.dump_data.raw == "stats"
        folder = config.full_path()
        if config.dump_config_path.raw is not None:
            folder = self._from_file(config.dump_config_path.raw)
        self.folder = os.path.join(folder, timestamp()[:14])
        self.rows: list[dict[str, Any]] = []

    def _from_file(self, path: str) -> str:
        """CANN's `dump` section, as torch_npu.npu.set_dump takes it."""
        section = device_dump._checked(device_dump._read(path))
        self.stages = device_dump._MODES[section["dump_mode"]]
        self.layers = {layer.lower() for layer in section["layers"]}
        self.steps, self.statistics = section["steps"], section["dump_data"] == "stats"
        return section["dump_path"]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        result = super().run(*args, **kwargs)
        if self.rows:
            self._write_statistics()
        self.step += 1
        return result

    def run_node(self, n: Node) -> Any:
        if not self._chosen(n):
            return super().run_node(n)
        args, _ = self.fetch_args_kwargs_from_env(n)
        if "input" in self.stages:
            self._save(n, "input", [v for v in args if isinstance(v, torch.Tensor)])
        result = super().run_node(n)
        if "output" in self.stages:
            results = result if isinstance(result, (list, tuple)) else (result,)
            self._save(n, "output", [v for v in results if isinstance(v, torch.Tensor)])
        return result

    def _chosen(self, n: Node) -> bool:
        if not isinstance(n.target, OpOverload):
            return False
        if self.steps and not any(first <= self.step <= last for first, last in self.steps):
            return False
        marked = self.attributes.get(n, {}).get(_attributes.DUMP) == "True"
        return marked or not self.layers or n.name.lower() in self.layers

    def _where(self) -> str:
        device = str(torch.npu.current_device())
        parts = device, self.name, str(self.model), str(self.step)
        folder = os.path.join(self.folder, *parts)
        os.makedirs(folder, exist_ok=True)
        return folder

    def _save(self, n: Node, stage: str, values: Sequence[torch.Tensor]) -> None:
        kind = str(n.target).split(".")[1]
        for index, value in enumerate(values):
            if self.statistics:
                row = {"operator": n.name, "stage": stage, "index": index}
                row |= {"dtype": str(value.dtype), "shape": list(value.shape)}
                self.rows.append(row | device_dump._statistics(value.detach().cpu()))
            else:
                name = f"{kind}.{n.name}.{timestamp()}.{stage}.{index}.npy"
                np.save(os.path.join(self._where(), name), as_numpy(value))

    def _write_statistics(self) -> None:
        path = os.path.join(self._where(), "statistics.csv")
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, device_dump._STATISTICS)
            table.writeheader()
            table.writerows(self.rows)
        self.rows.clear()


class CaptureDump(Eager):
    """dump_config in captured modes: each input and each result, <node>_device_<device>_<count>.pt.

    What the program saves itself (`torch_npu.save_npugraph_tensor`) is not written a second time.
    """

    counts = True

    def __init__(self, gm: GraphModule, config: _DumpConfig):
        super().__init__(gm)
        self.folder, self.step = config.full_path(), 0
        saves = (n for n in gm.graph.nodes if str(n.target).startswith("npu.save_npugraph_tensor."))
        self.saved = {source for save in saves for source in save.all_input_nodes}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        result = super().run(*args, **kwargs)
        self.step += 1
        return result

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and n.op != "output" and n not in self.saved:
            os.makedirs(self.folder, exist_ok=True)
            index = result.device.index or 0
            name = f"{n.name}_device_{index}_{self.step}.pt"
            torch.save(result.detach().cpu(), os.path.join(self.folder, name))
        return result
