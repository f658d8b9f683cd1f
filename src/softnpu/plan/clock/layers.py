"""Forward and backward passes of a Transformer's layer as tasks, on top of `models.Layers`."""

from __future__ import annotations

from dataclasses import dataclass

from softnpu.plan.clock.models import Layers
from softnpu.plan.tasks import TensorSpec


@dataclass(frozen=True, slots=True)
class Sequences:
    """What attention sees on one rank: `queries` rows of each of `batch` sequences against `keys`."""

    batch: int
    queries: int
    keys: int
    causal: bool = True
    fused: bool = True  # flash attention; else scores are written to memory


@dataclass(frozen=True, slots=True)
class Experts:
    """Expert parallel over `ranks`; `peers` are their global ranks."""

    ranks: int = 1
    peers: tuple[int, ...] = ()


def attention(at: Layers, see: Sequences, *, backward: bool = False) -> None:
    """Norm, projections, rotation, attention, projection, residual."""
    one, t = at.architecture, at.tokens
    latent = one.latent
    heads, kv = one.heads // at.tp, max(1, one.key_heads // at.tp)
    at.row("npu::npu_rms_norm", t // at.tp, one.hidden, 2 if backward else 1)
    start = len(at.tasks)
    if latent is None:
        size = value = one.head_size
        at.product(t, one.hidden, (heads + 2 * kv) * size, backward=backward)
        out = heads * size
    else:
        size, value = latent.plain + latent.rotary, latent.value
        kv = heads
        at.product(t, one.hidden, latent.query + latent.key + latent.rotary, backward=backward)
        at.row("npu::npu_rms_norm", t, latent.query)
        at.product(t, latent.query, heads * size, backward=backward)
        at.product(t, latent.key, heads * (latent.plain + value), backward=backward)
        out = heads * value
    _gathered(at, start, backward)
    at.row("npu::npu_rotary_mul", t, (heads + kv) * size)
    _scores(at, see, heads, kv, size, value, backward)
    start = len(at.tasks)
    at.product(t, out, one.hidden, backward=backward)
    _scattered(at, start, backward)
    at.row("aten::add", t // at.tp, one.hidden)


def _gathered(at: Layers, start: int, backward: bool) -> None:
    """Before a product split by columns: rows from all ranks; in the backward pass again, and gradients back."""
    at.beside("hccl::all_gather", at.tokens, at.architecture.hidden, at.tp, start=start)
    if backward:
        at.beside("hccl::reduce_scatter", at.tokens, at.architecture.hidden, at.tp, start=start)


def _scattered(at: Layers, start: int, backward: bool) -> None:
    """After a product split by rows: sums to all ranks; in the backward pass their gradients from all ranks."""
    name = "hccl::all_gather" if backward else "hccl::reduce_scatter"
    at.beside(name, at.tokens, at.architecture.hidden, at.tp, start=start)


def _scores(at: Layers, see: Sequences, heads: int, kv: int, size: int, value: int, backward: bool) -> None:  # fmt: skip
    q = at.spec(see.batch, heads, see.queries, size)
    k, v = at.spec(see.batch, kv, see.keys, size), at.spec(see.batch, kv, see.keys, value)
    o = at.spec(see.batch, heads, see.queries, value)
    window = at.architecture.window
    if see.fused:
        name = "npu::npu_fusion_attention" + ("_grad" if backward else "")
        if window and see.causal and window < see.keys:  # a band of keys before each query
            k, v = at.spec(see.batch, kv, window, size), at.spec(see.batch, kv, window, value)
            mode = 0
        else:
            mode = 3 if see.causal else 0
        at.add(name, [q, k, v], [o], ("input_layout", "BNSD"), ("sparse_mode", mode))
        return
    scores = at.spec(see.batch * heads, see.queries, see.keys)
    for _ in range(2 if backward else 1):
        at.add("aten::bmm", [_flat(q), _turned(k, heads, kv)], [scores])
        at.add("aten::bmm", [scores, _flat(v, heads // kv)], [_flat(o)])
    for name in ("aten::mul", "aten::masked_fill", "aten::_softmax", "aten::native_dropout"):
        at.add(name, [scores], [scores])


def _flat(spec: TensorSpec, times: int = 1) -> TensorSpec:
    a, b, c, d = spec.shape
    return TensorSpec((a * b * times, c, d), spec.dtype)


def _turned(spec: TensorSpec, heads: int, kv: int) -> TensorSpec:
    a, _, c, d = spec.shape
    return TensorSpec((a * heads, d, c), spec.dtype)


def mlp(at: Layers, *, backward: bool = False) -> None:
    """Norm, MLP, residual."""
    one, t = at.architecture, at.tokens
    at.row("npu::npu_rms_norm", t // at.tp, one.hidden, 2 if backward else 1)
    size = one.ffn // at.tp
    start = len(at.tasks)
    at.product(t, one.hidden, size * (2 if one.gated else 1), backward=backward)
    _gathered(at, start, backward)
    _activation(at, t, size, backward)
    start = len(at.tasks)
    at.product(t, size, one.hidden, backward=backward)
    _scattered(at, start, backward)
    at.row("aten::add", t // at.tp, one.hidden)


def feed(at: Layers, rows: int, size: int, *, backward: bool = False) -> None:
    """Both products of an MLP and its activation."""
    one = at.architecture
    wide = size * (2 if one.gated else 1)
    at.product(rows, one.hidden, wide, backward=backward)
    _activation(at, rows, size, backward)
    at.product(rows, size, one.hidden, backward=backward)


def _activation(at: Layers, rows: int, size: int, backward: bool) -> None:
    gated = at.architecture.gated
    x, y = at.spec(rows, size * (2 if gated else 1)), at.spec(rows, size)
    name = "npu::npu_swiglu" if gated else "aten::gelu"
    at.add(name + ("_backward" if backward else ""), [x, y] if backward else [x], [x if backward else y])  # fmt: skip


def moe(at: Layers, ep: Experts, *, backward: bool = False) -> None:
    """Norm, gate, tokens to their experts and back, shared experts, residual. Routing is balanced."""
    one = at.architecture
    t = at.tokens // at.tp  # with sequence parallel each rank routes its own tokens
    at.row("npu::npu_rms_norm", t, one.hidden, 2 if backward else 1)
    at.product(t, one.hidden, one.experts, backward=backward)
    at.row("npu::npu_moe_gating_top_k", t, one.experts)
    rows = t * one.top
    at.row("npu::npu_moe_token_permute", rows, one.hidden)
    at.collective("hccl::all_to_all", rows, one.hidden, ep.ranks, ep.peers)
    local = max(1, one.experts // ep.ranks)
    size = one.expert_ffn // (at.tp if ep.ranks == 1 else 1)
    if ep.ranks == 1 and at.tp > 1:
        at.collective("hccl::all_gather", rows * at.tp, one.hidden, at.tp)
        rows *= at.tp
    wide = size * (2 if one.gated else 1)
    at.experts(rows, local, one.hidden, wide, backward=backward)
    at.row("npu::npu_swiglu", rows, wide)
    at.experts(rows, local, size, one.hidden, backward=backward)
    if ep.ranks == 1 and at.tp > 1:
        at.collective("hccl::reduce_scatter", rows, one.hidden, at.tp)
        rows //= at.tp
    at.collective("hccl::all_to_all", rows, one.hidden, ep.ranks, ep.peers)
    at.row("npu::npu_moe_token_unpermute", rows, one.hidden)
    if one.shared:
        feed(at, t, one.shared * one.expert_ffn, backward=backward)
    at.row("aten::add", t, one.hidden)


def head(at: Layers, *, backward: bool = False) -> None:
    """Last norm, vocabulary, and the loss in fp32, one kernel for each step of it, as Megatron computes it."""
    one, t = at.architecture, at.tokens
    at.row("npu::npu_rms_norm", t // at.tp, one.hidden)
    part = -(-one.vocab // at.tp)
    start = len(at.tasks)
    at.product(t, one.hidden, part, backward=backward)
    _gathered(at, start, backward)
    half, logits, sums = at.spec(t, part), at.spec(t, part, dtype="float32"), at.spec(t)
    if backward:
        at.add("aten::mul", [logits], [logits])
        at.add("aten::to", [logits], [half])
        return
    at.add("aten::to", [half], [logits])
    at.add("aten::amax", [logits], [sums])
    at.add("aten::sub_", [logits, sums], [logits])
    at.add("aten::exp", [logits], [logits])
    at.add("aten::sum", [logits], [sums])
    at.add("aten::div_", [logits, sums], [logits])
