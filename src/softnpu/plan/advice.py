"""What would make a program smaller, and by how much: its own blocks are replayed with each change.

The peak is looked for again after the change, within the step that had it, since another moment may then be the fullest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from softnpu.plan.memory import Block, Memory, Span, peak_of
from softnpu.plan.recording import (
    ACTIVATIONS,
    BACKWARD,
    FRAGMENTATION,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    STATE,
    TEMPORARIES,
    Origin,
    Recording,
)

_WORTH = 0.01  # of the peak: less is not worth a word


@dataclass(frozen=True, slots=True)
class Advice:
    """`saves` bytes of the peak of allocated memory, which then is `peak`."""

    name: str
    text: str
    saves: int
    peak: int


def advise(found: Recording, memory: Memory, node_devices: int = 8) -> list[Advice]:
    """What to try, what saves most first."""
    tried = _Tried(found, memory)
    advice = [tried.halved_batch(), tried.recomputed(), tried.fused_optimizer(), tried.defragmented()]  # fmt: skip
    advice += tried.sharded(node_devices)
    worth = [one for one in advice if one is not None and one.saves > _WORTH * memory.peak_allocated]  # fmt: skip
    return sorted(worth, key=lambda one: -one.saves)


class _Tried:
    def __init__(self, found: Recording, memory: Memory) -> None:
        self.found, self.memory = found, memory

    def _after(
        self, name: str, text: str, change: Callable[[Block], Iterable[Span] | None]
    ) -> Advice:
        spans: list[Span] = []
        for block in self.memory.blocks:
            other = change(block)
            spans += [(block.born, block.died, block.size)] if other is None else other
        peak = round(peak_of(spans, self.memory.window))
        return Advice(name, text, self.memory.peak_allocated - peak, peak)

    def _scaled(self, name: str, text: str, share: float, kinds: Sequence[str]) -> Advice:
        return self._after(
            name, text, lambda b: [(b.born, b.died, b.size * share)] if b.kind in kinds else None
        )

    def _origin(self, block: Block) -> Origin | None:
        return self.found.origins[block.origin] if block.origin >= 0 else None

    def halved_batch(self) -> Advice:
        text = "half the batch (or micro-batch): all activations get half as large"
        return self._scaled("batch", text, 0.5, (ACTIVATIONS,))

    def fused_optimizer(self) -> Advice:
        def gone(block: Block) -> Iterable[Span] | None:
            origin = self._origin(block)
            inside = block.kind == TEMPORARIES and origin is not None and origin.phase == OPTIMIZER
            return () if inside else None

        return self._after("fused optimizer", "a fused optimizer, or foreach=False: no temporaries in its step", gone)  # fmt: skip

    def defragmented(self) -> Advice | None:
        lost = self.memory.by_kind[FRAGMENTATION]
        if lost < 0.05 * self.memory.peak_reserved:
            return None
        text = "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True: at most what is reserved beyond the peak"
        return Advice("expandable segments", text, lost, self.memory.peak_allocated)

    def sharded(self, node_devices: int) -> list[Advice]:
        """Each stage of sharding over the ranks that have the same parameters."""
        count = replicas(self.found, self.memory)
        where = f"the {count} ranks that reduce gradients"
        if self.found.ranks == 1:
            count, where = node_devices, f"{node_devices} ranks (a server), instead of one"
        if count < 2:
            return []
        stages = (
            ("shard optimizer", "optimizer state", "", (STATE,)),
            ("shard gradients", "optimizer state and gradients", "", (STATE, GRADIENTS)),
            ("shard parameters", "optimizer state, gradients and parameters (FSDP)",
             "; layers that are gathered while they run are not counted", (STATE, GRADIENTS, PARAMETERS)),
        )  # fmt: skip
        found: list[Advice] = []
        for name, what, more, kinds in stages:
            one = self._scaled(name, f"shard {what} over {where}{more}", 1 / count, kinds)
            if not found or one.saves > found[-1].saves:
                found.append(one)
        return found

    def recomputed(self) -> Advice | None:
        """Each numbered layer keeps its output alone; the rest exists while it runs forward, and again in its own
        backward pass, which begins when that of the next layer has ended."""
        layers = self._layers()
        if len(layers) < 2:
            return None
        again: dict[int, tuple[int, int]] = {}  # a block's address and birth -> until, from
        begin = self._first_backward()
        for blocks, leave in reversed(layers):
            kept = max(block.born for block in blocks)
            for block in blocks:
                if block.born != kept:
                    again[block.born] = (leave, max(begin, leave))
            begin = max([begin, *(block.died for block in blocks if block.died <= self.memory.window[1])])  # fmt: skip

        def spans(block: Block) -> Iterable[Span] | None:
            if block.born not in again:
                return None
            leave, back = again[block.born]
            return [(block.born, leave + 1, block.size), (min(back, block.died), block.died, block.size)]  # fmt: skip

        text = f"recompute the {len(layers)} layers in the backward pass (torch.utils.checkpoint around each)"
        return self._after("recompute", text, spans)

    def _first_backward(self) -> int:
        """The event at which the backward pass of the step begins to allocate."""
        first, last = self.memory.window
        for block in self.memory.blocks:
            origin = self._origin(block)
            if first <= block.born <= last and origin is not None and origin.phase == BACKWARD:
                return block.born
        return last

    def _layers(self) -> list[tuple[list[Block], int]]:
        """Activations of each layer of the step, in the order of the layers, and when the layer's forward ended."""
        first, last = self.memory.window
        activations: dict[str, list[Block]] = {}
        leave: dict[str, int] = {}
        for block in self.memory.blocks:
            origin = self._origin(block)
            if (
                origin is None
                or origin.phase in (BACKWARD, OPTIMIZER)
                or not first <= block.born <= last
            ):
                continue  # fmt: skip
            name = layer_of(origin)
            if name:
                leave[name] = max(block.born, leave.get(name, 0))
                if block.kind == ACTIVATIONS:
                    activations.setdefault(name, []).append(block)
        ordered = sorted(activations, key=lambda name: activations[name][0].born)
        return [(activations[name], leave[name]) for name in ordered]


def layer_of(origin: Origin) -> str:
    """The outermost module around a line that is one of several: `model.layers.3`."""
    return next((name for name in origin.modules if name.rpartition(".")[2].isdecimal()), "")


def replicas(found: Recording, memory: Memory) -> int:
    """How many ranks reduce whole gradients with this one, and so hold the same parameters; 1 if none does."""
    reduced: dict[int, int] = {}
    for task in found.tasks:
        if task.kind == "collective" and "all_reduce" in task.name and task.phase == BACKWARD:
            reduced[task.ranks] = reduced.get(task.ranks, 0) + sum(s.nbytes for s in task.inputs)
    count = max(reduced, key=lambda size: reduced[size], default=1)
    gradients = sum(
        block.size
        for block in memory.blocks
        if block.kind == GRADIENTS and block.born <= memory.window[1] < block.died
    )
    return count if reduced.get(count, 0) * 2 >= max(gradients, 1) else 1
