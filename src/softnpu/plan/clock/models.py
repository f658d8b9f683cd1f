"""The tasks of a Transformer's layers by shapes alone: what a program would launch on one rank.

`Layers` writes the same kind of tasks as a run, so that whole models go through the same costs and the same timeline as
programs do. Tensor parallel collectives run on stream 1, at once with the product beside them, where the two are fused
(MC2), and between the products where not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from softnpu.plan.clock.architectures import Architecture
from softnpu.plan.tasks import Task, TensorSpec

COMPUTE, COMMUNICATE = 0, 1


@dataclass
class Layers:
    """Tasks of one rank for `tokens` tokens; `tp` ranks share each layer."""

    architecture: Architecture
    tokens: int
    dtype: str = "bfloat16"
    tp: int = 1
    fused: bool = False
    weight: str = ""  # dtype of weights and of what meets them, where products are quantized
    tasks: list[Task] = field(default_factory=list)
    _join: int = -1  # a task of the other stream that the next one here waits for

    @property
    def work(self) -> str:
        return self.weight or self.dtype

    # --- single tasks ---

    def add(self, name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], *attributes: tuple[str, object], **more) -> None:  # fmt: skip
        kind = more.pop("kind", "kernel")
        more.setdefault("stream", COMPUTE)
        if self._join >= 0 and more["stream"] == COMPUTE:
            more["waits"] = (*more.get("waits", ()), self._join)
            self._join = -1
        self.tasks.append(Task(name, kind, 0, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes, **more))  # fmt: skip

    def spec(self, *shape: int, dtype: str = "") -> TensorSpec:
        return TensorSpec(shape, dtype or self.dtype)

    def product(self, rows: int, k: int, n: int, *, backward: bool = False) -> None:
        """x W, or of its backward pass the gradients of x and, in fp32 on top of what is there, of W."""
        if not backward:
            x, w = self.spec(rows, k, dtype=self.work), self.spec(k, n, dtype=self.work)
            self.add("aten::mm", [x, w], [self.spec(rows, n)])
            return
        self.add("aten::mm", [self.spec(rows, n), self.spec(n, k)], [self.spec(rows, k)])
        gradient = self.spec(k, n, dtype="float32")
        self.add(
            "npu::npu_matmul_add_fp32",
            [self.spec(k, rows), self.spec(rows, n), gradient],
            [gradient],
        )

    def experts(self, rows: int, experts: int, k: int, n: int, *, backward: bool = False) -> None:
        """Rows that are already at their experts against the experts' weights."""
        weights = self.spec(experts, k, n, dtype=self.work)
        if not backward:
            self.add("npu::npu_grouped_matmul", [self.spec(rows, k, dtype=self.work), weights], [self.spec(rows, n)])  # fmt: skip
            return
        self.add("npu::npu_grouped_matmul", [self.spec(rows, n), self.spec(experts, n, k)], [self.spec(rows, k)])  # fmt: skip
        each = -(-rows // experts)
        gradient = self.spec(experts, k, n, dtype="float32")
        self.add("aten::bmm", [self.spec(experts, k, each), self.spec(experts, each, n)], [gradient])  # fmt: skip

    def row(self, name: str, rows: int, size: int, outputs: int = 1) -> None:
        x = self.spec(rows, size)
        self.add(name, [x], [x] * outputs)

    def collective(self, name: str, rows: int, size: int, ranks: int, peers: tuple[int, ...] = ()) -> None:  # fmt: skip
        """A message of rows x size, between the tasks before and after it."""
        if ranks > 1:
            inputs, outputs = self._message(name, rows, size, ranks)
            self.add(name, inputs, outputs, kind="collective", ranks=ranks, peers=peers)

    def beside(self, name: str, rows: int, size: int, ranks: int, *, start: int) -> None:
        """A message beside the products since task `start`, where it is fused with them; what comes next waits for both."""
        if ranks <= 1:
            return
        if not self.fused:
            self.collective(name, rows, size, ranks)
            return
        inputs, outputs = self._message(name, rows, size, ranks)
        before = (start - 1,) if start else ()
        self.add(name, inputs, outputs, kind="collective", stream=COMMUNICATE, ranks=ranks, waits=before)  # fmt: skip
        self._join = len(self.tasks) - 1

    def _message(
        self, name: str, rows: int, size: int, ranks: int
    ) -> tuple[list[TensorSpec], list[TensorSpec]]:
        whole, part = self.spec(rows, size), self.spec(-(-rows // ranks), size)
        if name.endswith("all_gather"):
            return [part], [whole]
        return [whole], [whole if name.endswith(("all_reduce", "all_to_all")) else part]
