"""A training step of a Transformer over many ranks: passes of a stage, the pipeline around them, gradients, optimizer.

Ranks are laid out as Megatron does it: tensor parallel neighbors first, then context, data and pipeline parallel ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softnpu.chips import Chip
from softnpu.plan.clock import collectives, layers
from softnpu.plan.clock.architectures import Architecture
from softnpu.plan.clock.constants import DEFAULT, Constants
from softnpu.plan.clock.figures import ClockError, peak
from softnpu.plan.clock.layers import Experts, Sequences
from softnpu.plan.clock.models import Layers
from softnpu.plan.clock.prediction import predict
from softnpu.plan.clock.topology import Topology
from softnpu.plan.tasks import Task

_ADAM_BYTES = 30  # of a parameter: gradient, master, two moments read (16), three of them written (12), bf16 copy (2)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a step is spread over ranks. `chunk`: layers of an interleaved stage (0: not interleaved)."""

    seq: int
    micro_batch: int
    batch: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    chunk: int = 0
    recompute: bool = False
    fused_communication: bool = False
    sharded_optimizer: bool = False
    sharded_parameters: bool = False  # ZeRO-3, FSDP
    overlap: bool = False
    fused_attention: bool = True

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    def check(self, one: Architecture) -> None:
        """Raises where the layout does not divide what it spreads."""
        if self.pp > one.layers:
            raise ClockError(f"{one.name} has {one.layers} layers, too few for pp {self.pp}")
        each = self.micro_batch * self.dp
        for what, whole, part in (
            (f"{one.name}: {one.heads} heads over tp", one.heads, self.tp),
            (f"a batch of {self.batch} over micro-batches and dp", self.batch, each),
            (f"a sequence of {self.seq} over cp", self.seq, self.cp),
            (f"{one.name}: {one.experts} experts over ep", one.experts, self.ep),
            (f"dp {self.dp} x tp {self.tp} over ep", self.dp * self.tp * self.cp, self.ep),
        ):
            if part <= 0 or whole % part:
                raise ClockError(f"the layout does not divide: {what} ({whole} by {part})")


@dataclass(frozen=True, slots=True)
class Step:
    """A predicted step; times in seconds."""

    seconds: float
    mfu: float
    tokens_per_second: float  # of one rank
    forward: float  # of one micro-batch on the slowest stage
    backward: float
    bubble: float
    exposed_communication: float
    optimizer: float


def step(
    one: Architecture, layout: Layout, chip: Chip, dtype: str = "bfloat16", constants: Constants = DEFAULT
) -> Step:  # fmt: skip
    """The time of one optimizer step."""
    layout.check(one)
    topology = Topology.of(chip, layout.ranks)
    forward, seen_forward = _stage(one, layout, chip, topology, dtype, constants, backward=False)
    backward, seen_backward = _stage(one, layout, chip, topology, dtype, constants, backward=True)
    if layout.recompute:
        backward += forward
    count = layout.batch // (layout.micro_batch * layout.dp)
    passes = count * (forward + backward)
    virtual = one.layers // layout.pp // layout.chunk if layout.chunk else 1
    bubble = (layout.pp - 1) * (forward + backward) / max(1, virtual)
    reduce = _gradients(one, layout, topology, constants)
    exposed = max(0.0, reduce - backward) if layout.overlap else reduce
    optimizer = _optimizer(one, layout, chip, constants)
    seconds = passes + bubble + exposed + optimizer
    tokens = layout.batch * layout.seq
    flops = tokens * flops_of_token(one, layout.seq)
    return Step(
        seconds=seconds,
        mfu=flops / layout.ranks / seconds / peak(chip, dtype),
        tokens_per_second=tokens / layout.ranks / seconds,
        forward=forward,
        backward=backward,
        bubble=bubble,
        exposed_communication=count * (seen_forward + seen_backward) + exposed,
        optimizer=optimizer,
    )


def flops_of_token(one: Architecture, seq: int) -> float:
    """Operations of a model for one token, forward and backward, with causal attention; recomputing does not count."""
    active = one.parameters(one.top) if one.experts else one.parameters()
    active -= one.vocab * one.hidden * (0 if one.tied else 1)  # looking a row up is no product
    latent = one.latent
    size = one.head_size * 2 if latent is None else latent.plain + latent.rotary + latent.value
    keys = min(seq / 2, one.window) if one.window else seq / 2
    return 6.0 * active + 3.0 * one.layers * one.heads * 2 * size * keys


def _stage(
    one: Architecture, layout: Layout, chip: Chip, topology: Topology, dtype: str, constants: Constants, *, backward: bool
) -> tuple[float, float]:  # fmt: skip
    """Seconds of one pass of a micro-batch over the slowest stage, and of the communication that shows."""

    def run(tasks: Sequence[Task]) -> tuple[float, float]:
        found = predict(tasks, chip, topology, constants=constants)
        busy = max((t.start + t.seconds for t in found.tasks), default=0.0)
        return busy, found.exposed_communication_seconds

    def layer(moe: bool) -> tuple[float, float]:
        at = _new(one, layout, dtype)
        _layer(at, layout, moe, backward)
        if layout.sharded_parameters:
            _sharded(at, one, layout, backward)
        return run(at.tasks)

    per_stage = -(-one.layers // layout.pp)  # of the longest stage
    dense = min(per_stage, one.layers - one.moe_layers)
    plain, shown = layer(False) if dense else (0.0, 0.0)
    expert, shown_expert = layer(True) if per_stage > dense else (0.0, 0.0)
    seconds = dense * plain + (per_stage - dense) * expert
    exposed = dense * shown + (per_stage - dense) * shown_expert
    at = _new(one, layout, dtype)
    layers.head(at, backward=backward)
    ends, shown_ends = run(at.tasks)
    sent = _sent(one, layout, topology, constants)
    return seconds + ends + sent, exposed + shown_ends + sent


def _new(one: Architecture, layout: Layout, dtype: str) -> Layers:
    tokens = layout.seq * layout.micro_batch // layout.cp
    return Layers(one, tokens, dtype, layout.tp, layout.fused_communication)


def _layer(at: Layers, layout: Layout, moe: bool, backward: bool) -> None:
    see = Sequences(
        layout.micro_batch, layout.seq // layout.cp, layout.seq, fused=layout.fused_attention
    )
    layers.attention(at, see, backward=backward)
    if layout.cp > 1:  # keys and values of the other ranks, or heads against rows
        kv = 2 * at.architecture.key_heads // min(layout.tp, at.architecture.key_heads)
        at.collective("hccl::all_to_all", at.tokens, kv * at.architecture.head_size, layout.cp, _cp_peers(layout))  # fmt: skip
    if moe:
        stride = 1 if layout.ep > 1 else layout.tp
        peers = tuple(range(0, layout.ep * stride, stride))
        layers.moe(at, Experts(layout.ep, peers if layout.ep > 1 else ()), backward=backward)
    else:
        layers.mlp(at, backward=backward)


def _cp_peers(layout: Layout) -> tuple[int, ...]:
    return tuple(range(0, layout.cp * layout.tp, layout.tp))


def _sharded(at: Layers, one: Architecture, layout: Layout, backward: bool) -> None:
    """The parameters of the next layer are gathered, and gradients scattered, while this one computes."""
    count = one.attention_parameters + one.mlp_parameters(False, 0)
    fused, at.fused = at.fused, True
    at.beside("hccl::all_gather", count // one.hidden, one.hidden, layout.dp, start=0)
    if backward:
        at.beside("hccl::reduce_scatter", count // one.hidden, one.hidden, layout.dp, start=0)
    at.fused = fused


def _sent(one: Architecture, layout: Layout, topology: Topology, constants: Constants) -> float:
    """A stage's result to the next stage."""
    if layout.pp == 1:
        return 0.0
    size = 2 * layout.seq * layout.micro_batch // layout.cp // layout.tp * one.hidden
    group = topology.group((0, layout.tp * layout.cp * layout.dp))
    return collectives.cost("send", size, group, topology, constants).seconds


def stage_parameters(one: Architecture, layout: Layout) -> tuple[float, float]:
    """Parameters of one rank: those that data parallel ranks share, and those of its experts."""
    experts = one.moe_layers / layout.pp * one.experts * one.expert_parameters
    whole = one.parameters() / layout.pp - experts
    split = layout.ep if layout.ep > 1 else layout.tp
    return whole / layout.tp, experts / split


def _gradients(one: Architecture, layout: Layout, topology: Topology, constants: Constants) -> float:  # fmt: skip
    """Sums of gradients over data parallel ranks, in fp32; parameters come back where the optimizer is sharded."""
    ranks = layout.dp * layout.cp
    if ranks == 1 or layout.sharded_parameters:
        return 0.0
    shared, experts = stage_parameters(one, layout)
    seconds = _reduce(4 * shared, ranks, layout, topology, constants)
    rest = ranks * layout.tp // layout.ep if layout.ep > 1 else ranks
    if experts and rest > 1:
        seconds += _reduce(4 * experts, rest, layout, topology, constants)
    return seconds


def _reduce(size: float, ranks: int, layout: Layout, topology: Topology, constants: Constants) -> float:  # fmt: skip
    peers = range(0, ranks * layout.tp, layout.tp)
    group = topology.group([peer for peer in peers if peer < topology.ranks])
    if not layout.sharded_optimizer:
        return collectives.cost("all_reduce", size, group, topology, constants).seconds
    scatter = collectives.cost("reduce_scatter", size, group, topology, constants).seconds
    return scatter + collectives.cost("all_gather", size / 2, group, topology, constants).seconds


def _optimizer(one: Architecture, layout: Layout, chip: Chip, constants: Constants) -> float:
    shared, experts = stage_parameters(one, layout)
    if layout.sharded_optimizer or layout.sharded_parameters:
        shared /= layout.dp * layout.cp
        experts /= max(1, layout.dp * layout.cp * layout.tp // layout.ep) if layout.ep > 1 else layout.dp  # fmt: skip
    moved = (shared + experts) * _ADAM_BYTES
    return moved / (chip.memory_bandwidth * constants.memory_efficiency)
