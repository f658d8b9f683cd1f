"""Writes tensors as a dump of msprobe, which `msprobe compare -tp target/dump.json -gp golden/dump.json` reads."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from softnpu.golden import _values
from softnpu.golden._load import Run
from softnpu.golden._store import Recording

_KINDS = {"npu": "NPU", "aten": "Aten"}


class DumpWriter:
    """One dump: dump.json, stack.json, construct.json and dump_tensor_data/."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data: dict[str, Any] = {}
        self.stacks: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        (directory / "dump_tensor_data").mkdir(parents=True, exist_ok=True)

    def add(self, run: Run, call: dict[str, Any], outputs: dict[str, torch.Tensor]) -> None:
        """A call with its inputs as recorded and the given outputs."""
        name = call.get("name") or self._name(call)
        backward = call["phase"] == "backward" and not isinstance(run, Recording)
        inputs = "input" if backward else "input_args"
        results = call["outputs"]
        results = results["tuple"] if isinstance(results, dict) and "tuple" in results else results
        results = results if isinstance(results, list) else [results]
        entry: dict[str, Any] = {inputs: self._part(run, call["args"], f"{name}.input")}
        if not backward:
            kwargs = {"dict": call["kwargs"]}
            entry["input_kwargs"] = self._part(run, kwargs, f"{name}.input")
        one = isinstance(call["outputs"], dict) and "tensor" in call["outputs"]
        given = {("output 0" if one and k == "output" else k): v for k, v in outputs.items()}
        entry["output"] = self._part(run, results, f"{name}.output", given)
        written = [given[name] for name in sorted(given) if name.startswith("written")]
        for number, tensor in enumerate(written, len(results)):
            entry["output"].append(self._tensor(tensor, f"{name}.output.{number}"))
        if call.get("parameters"):
            parameters = {"dict": call["parameters"]}
            entry["parameters"] = self._part(run, parameters, f"{name}.parameters")
        self.data[name] = entry
        source = call["source"]
        if source:
            line = f"File {source['file']}, line {source['line']}, in {source['function']}, \n {source['text']}"
            self.stacks.setdefault(line, []).append(name)

    def _name(self, call: dict[str, Any]) -> str:
        space, _, short = call["op"].partition("::")
        if space == "module":
            name = f"Module.{short}.Module.forward"
            self.counts[name] += 1
            return f"{name}.{self.counts[name] - 1}"
        name = f"{_KINDS.get(space, space.capitalize())}.{short}"
        self.counts[name] += 1
        return f"{name}.{self.counts[name] - 1}.forward"

    def _part(
        self, run: Run, value: Any, label: str, given: dict[str, torch.Tensor] | None = None, at: str = ""
    ) -> Any:  # fmt: skip
        if _values.is_tensor(value):
            if given is None:
                return self._tensor(run.tensor(value), label, value.get("requires_grad", False))
            here = given.get(f"output {at}".strip())
            return None if here is None else self._tensor(here, label)
        if isinstance(value, list):
            return [
                self._part(run, item, f"{label}.{i}", given, f"{at}.{i}".lstrip("."))
                for i, item in enumerate(value)
            ]
        if not isinstance(value, dict):
            return None if value is None else {"type": type(value).__name__, "value": value}
        kind, content = next(iter(value.items()))
        if kind == "tuple":
            return self._part(run, content, label, given, at)
        if kind == "dict":
            return {
                k: self._part(run, v, f"{label}.{k}", given, f"{at}.{k}".lstrip("."))
                for k, v in content.items()
            }
        if kind == "dtype":
            return {"type": "torch.dtype", "value": f"torch.{content}"}
        if kind == "device":
            return {"type": "torch.device", "value": content}
        if kind == "float":
            return {"type": "float", "value": float(content)}
        if kind == "ellipsis":
            return {"type": "ellipsis", "value": "..."}
        return {"type": kind, "value": content}

    def _tensor(
        self, tensor: torch.Tensor, label: str, requires_grad: bool = False
    ) -> dict[str, Any]:
        tensor = tensor.detach().cpu().contiguous().clone()
        file = f"{label}.pt"
        torch.save(tensor, self.directory / "dump_tensor_data" / file)
        entry: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            **dict.fromkeys(("Max", "Min", "Mean", "Norm")),
        }
        if tensor.numel() and not tensor.is_complex():
            wide = tensor.double()
            entry.update(Max=wide.max().item(), Min=wide.min().item())
            if tensor.is_floating_point():
                entry.update(Mean=wide.mean().item(), Norm=wide.norm().item())
        return {**entry, "requires_grad": requires_grad, "data_name": file}

    def close(self, level: str) -> None:
        whole = {
            "task": "tensor",
            "level": level,
            "framework": "pytorch",
            "dump_data_dir": str((self.directory / "dump_tensor_data").resolve()),
            "data": self.data,
        }
        stacks = {str(i): [names, [line]] for i, (line, names) in enumerate(self.stacks.items())}
        for name, content in (("dump", whole), ("stack", stacks), ("construct", {})):
            (self.directory / f"{name}.json").write_text(json.dumps(content, indent=1), "utf-8")


class Export:
    """The results of a replay as dumps: `softnpu/` what was computed here, `recorded/` what was recorded."""

    def __init__(self, directory: Path, runs: dict[str, Run]) -> None:
        self.directory, self.runs = directory, runs
        self.writers: dict[tuple[str, str], DumpWriter] = {}

    def add(self, result: Any) -> None:
        run, call = self.runs[result.process], result.call
        if result.computed:
            self._writer("softnpu", result.process).add(run, call, result.computed)
            golden = {name: run.tensor(entry) for name, entry in run.outputs(call)}
            self._writer("recorded", result.process).add(run, call, golden)

    def _writer(self, side: str, process: str) -> DumpWriter:
        key = (side, process)
        if key not in self.writers:
            self.writers[key] = DumpWriter(self.directory / side / process)
        return self.writers[key]

    def close(self) -> None:
        for (_, process), writer in self.writers.items():
            run = self.runs[process]
            writer.close("L1" if isinstance(run, Recording) else str(run.about.get("level", "L1")))
