"""Inference of a Transformer: a prefill pass, a decoding step, and a server that mixes both.

Decoding runs as a captured graph: the host's launches cost nothing. With attention data parallel (`tp` 1) the vocabulary is
split over the devices of a server. Routing is balanced.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from softnpu.chips import Chip
from softnpu.plan.clock import attention, collectives, cube, layers, vector
from softnpu.plan.clock.architectures import Architecture, Latent
from softnpu.plan.clock.classes import ROW
from softnpu.plan.clock.constants import DEFAULT, Constants
from softnpu.plan.clock.layers import Sequences
from softnpu.plan.clock.models import Layers
from softnpu.plan.clock.prediction import predict
from softnpu.plan.clock.topology import Topology
from softnpu.plan.tasks import bits


@dataclass(frozen=True, slots=True)
class Serving:
    """One rank of an instance. `batch`: requests of this rank; `drafts`: tokens guessed beside each new one."""

    batch: int
    keys: int
    ranks: int = 1
    tp: int = 1
    ep: int = 1
    drafts: int = 0
    weights: str = "bfloat16"
    cache_bits: int = 16

    @property
    def tokens(self) -> int:
        return self.batch * (1 + self.drafts)


def decode(one: Architecture, how: Serving, chip: Chip, constants: Constants = DEFAULT) -> float:
    """Seconds of one step: all layers, the vocabulary, and one layer more for each draft."""
    graph = dataclasses.replace(constants, host_launch=0.0)
    topology = Topology.of(chip, how.ranks)
    dense = one.layers - one.moe_layers
    plain = _layer(one, how, chip, topology, graph, moe=False) if dense else 0.0
    expert = _layer(one, how, chip, topology, graph, moe=True) if one.moe_layers else 0.0
    split = how.tp if how.tp > 1 else topology.node_devices
    head = _product(how.tokens, one.hidden, -(-one.vocab // split), "bfloat16", chip, graph)
    draft = dataclasses.replace(how, drafts=0)
    extra = _layer(one, draft, chip, topology, graph, moe=bool(one.experts)) if how.drafts else 0.0
    return dense * plain + one.moe_layers * expert + head + how.drafts * (extra + head)


def _product(m: int, k: int, n: int, dtype: str, chip: Chip, constants: Constants, batch: int = 1) -> float:  # fmt: skip
    return cube.cost(cube.Product(m, n, k, dtype, batch), chip, constants).seconds


def _row(rows: int, size: int, chip: Chip, constants: Constants) -> float:
    return vector.cost(ROW, 4.0 * rows * size, rows * size, chip, constants).seconds


def _layer(one: Architecture, how: Serving, chip: Chip, topology: Topology, constants: Constants, *, moe: bool) -> float:  # fmt: skip
    t, hidden = how.tokens, one.hidden
    norms = 2 * _row(t, hidden, chip, constants)
    seconds = norms + (_latent(one, one.latent, how, chip, constants) if one.latent else _heads(one, how, chip, constants))  # fmt: skip
    if not moe:
        seconds += _mlp(t, hidden, one.ffn // how.tp, how, chip, constants)
        return seconds + 2 * _joined(t, hidden, how, topology, constants)
    seconds += _product(t, hidden, one.experts, "bfloat16", chip, constants)  # gate
    seconds += _row(t, one.experts, chip, constants)
    if one.shared:
        seconds += _mlp(t, hidden, one.shared * one.expert_ffn, how, chip, constants)
    return seconds + _experts(one, how, chip, topology, constants)


def _heads(one: Architecture, how: Serving, chip: Chip, constants: Constants) -> float:
    t, size = how.tokens, one.head_size
    heads, kv = one.heads // how.tp, max(1, one.key_heads // how.tp)
    shape = attention.Attention(
        how.batch, heads, kv, 1 + how.drafts, how.keys, size, size, "bfloat16", cache_bits=how.cache_bits
    )  # fmt: skip
    return (
        _product(t, one.hidden, (heads + 2 * kv) * size, how.weights, chip, constants)
        + _row(t, (heads + kv) * size, chip, constants)
        + attention.cost(shape, chip, constants).seconds
        + _product(t, heads * size, one.hidden, how.weights, chip, constants)
        + (2 * _row(t, one.hidden, chip, constants) if how.weights == "int8" else 0.0)
    )


def _latent(one: Architecture, sizes: Latent, how: Serving, chip: Chip, constants: Constants) -> float:  # fmt: skip
    """Absorbed latent attention: all heads read the same compressed keys."""
    t, heads = how.tokens, one.heads // how.tp
    keys, scan = how.keys, 0.0
    if one.index and how.keys > one.index.keep:
        keys, scan = one.index.keep, _scan(one, how, chip, constants)
    shape = attention.Attention(
        how.batch, heads, 1, 1 + how.drafts, keys, sizes.key + sizes.rotary, sizes.key, "bfloat16",
        latent=True, cache_bits=how.cache_bits,
    )  # fmt: skip
    down = sizes.query + sizes.key + sizes.rotary
    head = sizes.plain + sizes.rotary
    return (
        _product(t, one.hidden, down, how.weights, chip, constants)
        + _product(t, sizes.query, heads * head, how.weights, chip, constants)
        + _product(t, sizes.plain, sizes.key, "bfloat16", chip, constants, heads)
        + _row(t, heads * sizes.rotary, chip, constants)
        + scan
        + attention.cost(shape, chip, constants).seconds
        + _product(t, sizes.key, sizes.value, "bfloat16", chip, constants, heads)
        + _product(t, heads * sizes.value, one.hidden, how.weights, chip, constants)
        + 2 * _row(t, one.hidden, chip, constants)  # quantize what meets the weights
    )


def _scan(one: Architecture, how: Serving, chip: Chip, constants: Constants) -> float:
    """The indexer: every query against all keys, then the choice of some."""
    assert one.index is not None
    shape = attention.Attention(
        how.batch, one.index.heads, 1, 1 + how.drafts, how.keys, one.index.size, 0, "bfloat16",
        latent=True, cache_bits=how.cache_bits,
    )  # fmt: skip
    scores = how.tokens * how.keys
    chosen = vector.cost("sort", 4.0 * scores, 0, chip, constants)
    queries = _product(how.tokens, 1536, one.index.heads * one.index.size, how.weights, chip, constants)  # fmt: skip
    return queries + attention.cost(shape, chip, constants).seconds + chosen.seconds


def _mlp(rows: int, hidden: int, size: int, how: Serving, chip: Chip, constants: Constants) -> float:  # fmt: skip
    return (
        _product(rows, hidden, 2 * size, how.weights, chip, constants)
        + _row(rows, 2 * size, chip, constants)
        + _product(rows, size, hidden, how.weights, chip, constants)
    )


def _joined(rows: int, hidden: int, how: Serving, topology: Topology, constants: Constants) -> float:  # fmt: skip
    """The sum over tensor parallel ranks."""
    if how.tp == 1:
        return 0.0
    group = topology.group((), how.tp)
    return collectives.cost("all_reduce", 2.0 * rows * hidden, group, topology, constants).seconds


def _experts(one: Architecture, how: Serving, chip: Chip, topology: Topology, constants: Constants) -> float:  # fmt: skip
    """Tokens to their experts, both products, and back."""
    rows = how.tokens * one.top
    local = max(1, one.experts // how.ep)
    each = max(1, -(-rows // local))
    width = bits(how.weights) / 8
    gate = cube.Product(each, 2 * one.expert_ffn, one.hidden, how.weights, local)
    down = cube.Product(each, one.hidden, one.expert_ffn, how.weights, local)
    seconds = sum(cube.cost(product, chip, constants).seconds for product in (gate, down))
    seconds += _row(rows, 2 * one.expert_ffn, chip, constants)
    if how.ep > 1:
        for size in (width, 2.0):  # there in the weights' type, back in bf16
            seconds += collectives.exchange(rows * one.hidden * size, how.ep, topology, constants, normal=False).seconds  # fmt: skip
    return seconds


def prefill(one: Architecture, sequences: int, seq: int, how: Serving, chip: Chip, constants: Constants = DEFAULT) -> float:  # fmt: skip
    """Seconds of a pass over `sequences` prompts on each rank."""
    topology = Topology.of(chip, how.ranks)
    quantized = "" if how.weights == "bfloat16" else how.weights

    def run(moe: bool) -> float:
        at = Layers(one, sequences * seq, "bfloat16", how.tp, weight=quantized)
        layers.attention(at, Sequences(sequences, seq, seq))
        if not moe:
            layers.mlp(at)
            return predict(at.tasks, chip, topology, constants=constants).seconds
        rows = at.tokens * one.top
        local = max(1, one.experts // how.ep)
        at.experts(rows, local, one.hidden, 2 * one.expert_ffn)
        at.row("npu::npu_swiglu", rows, 2 * one.expert_ffn)
        at.experts(rows, local, one.expert_ffn, one.hidden)
        if one.shared:
            layers.feed(at, at.tokens, one.shared * one.expert_ffn)
        seconds = predict(at.tasks, chip, topology, constants=constants).seconds
        for size in (bits(how.weights) / 8, 2.0):
            seconds += collectives.exchange(rows * one.hidden * size, how.ep, topology, constants, normal=True).seconds  # fmt: skip
        return seconds

    dense = one.layers - one.moe_layers
    return (dense * run(False) if dense else 0.0) + (one.moe_layers * run(True) if one.moe_layers else 0.0)  # fmt: skip


def serve(one: Architecture, prompt: int, output: int, concurrency: int, how: Serving, chip: Chip, constants: Constants = DEFAULT) -> float:  # fmt: skip
    """Tokens a second of an instance that `concurrency` requests keep busy: prompts one at a time, decoding together."""
    middle = dataclasses.replace(how, batch=concurrency, keys=prompt + output // 2)
    spent = output * decode(one, middle, chip, constants)
    spent += concurrency * prefill(one, 1, prompt, how, chip, constants)
    return concurrency * output / spent
