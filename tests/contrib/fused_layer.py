"""A layer of experts for dispatch_ffn_combine: its operands, the layer in float64, and what a rank of two does."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.contrib.ascend_ops import npu, ops

TOKENS, WIDTH, INNER, EXPERTS, SLOTS = 6, 64, 32, 2, 2


def rounded(x):
    """int8 by rows, and what it stands for."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (x / scale).round() * scale, x)


def packed(scale):
    """Scales as int64 whose low bits are the float32."""
    return scale.float().view(torch.int32).long()


def int4_words(weight):
    nibbles = (weight.view(*weight.shape[:-1], -1, 8).long() & 15) << (4 * torch.arange(8))
    total = nibbles.sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).int()


def layer(kind, seed=0):
    """A rank's operands, and its weights in float64."""
    torch.manual_seed(seed)
    shapes = (EXPERTS, WIDTH, 2 * INNER), (EXPERTS, INNER, WIDTH)
    if kind == "bfloat16":
        weights = [(torch.randn(s) * 0.2).bfloat16() for s in shapes]
        return weights, [torch.zeros(EXPERTS, 1)] * 2, [[], []], [w.double() for w in weights]
    level = 127 if kind == "int8" else 7
    values = [torch.randint(-level, level + 1, s) for s in shapes]
    steps = [torch.rand(EXPERTS, s[2]) * 0.4 / level for s in shapes]
    exact = [v.double() * s.double().unsqueeze(1) for v, s in zip(values, steps)]
    if kind == "int8":
        return [v.to(torch.int8) for v in values], [packed(s) for s in steps], [[], []], exact
    sums = [[8 * e.sum(1).float()] for e in exact]
    return [int4_words(v) for v in values], [packed(s) for s in steps], sums, exact


def reference(x, ids, probs, exact, quantized, kept=None, active=None):
    out = torch.zeros(x.shape).double()
    for token in range(x.shape[0]):
        for slot in range(ids.shape[1]):
            if active is not None and not active[token]:
                continue
            if kept is not None and (token, slot) not in kept:
                continue
            expert = int(ids[token, slot])
            row = x[token].double()
            row = rounded(row) if quantized else row
            gate, up = (row @ exact[0][expert]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            inner = rounded(inner) if quantized else inner
            out[token] += probs[token, slot].double() * (inner @ exact[1][expert])
    return out


def given(seed=0, experts=EXPERTS):
    torch.manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH).bfloat16()
    ids = torch.stack([torch.randperm(experts)[:SLOTS] for _ in range(TOKENS)]).int()
    return x, ids, torch.rand(TOKENS, SLOTS)


def call(x, ids, probs, weights, scales, sums, group, most=512, **options):
    out = torch.full_like(x, 7).npu()
    counts = torch.zeros(1, EXPERTS, dtype=torch.int32).npu()
    first, second = npu(*weights)
    steps = npu(*scales)
    lists = [[t.npu() for t in one] for one in sums]
    ops.dispatch_ffn_combine(
        x.npu(), [first], [second], ids.npu(), [steps[0]], [steps[1]], *lists, probs.npu(), group, most,
        out, counts, **options,
    )  # fmt: skip
    return out.cpu(), counts.cpu()


def one_of_two(rank):
    world = dist.group.WORLD
    name = world._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    layers = [layer("int8", seed=r) for r in range(2)]
    exact = [torch.cat([one[3][i] for one in layers]) for i in range(2)]
    x, ids, probs = given(10 + rank, 2 * EXPERTS)
    weights, scales, sums, _ = layers[rank]
    out, counts = call(x, ids, probs, weights, scales, sums, name)
    torch.testing.assert_close(
        out.double(), reference(x, ids, probs, exact, True), atol=0.03, rtol=0.03
    )
    both = torch.cat([given(10 + r, 2 * EXPERTS)[1] for r in range(2)]).flatten().long()
    own = torch.bincount(both, minlength=2 * EXPERTS)[rank * EXPERTS : (rank + 1) * EXPERTS]
    assert counts.tolist() == [own.tolist()]
