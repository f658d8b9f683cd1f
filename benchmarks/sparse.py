"""Linear attention by the gated delta rule, attention over chosen keys, and the indexer that chooses them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_npu
from benchmarks import limits
from benchmarks.harness import Case, Goal, Versus

INDUCTOR, COPY = Goal(1.0), Goal(2.0)
GROUP = "linear and sparse attention"
KEY_HEADS, HEADS, SIZE = 8, 16, 128
SEQUENCES, PROMPT, CHUNK = 32, 512, 64
CHOSEN, CONTEXT, QUERY_HEADS, LATENT, ROPE = 512, 4096, 16, 512, 64
INDEX_HEADS, INDEXED, BEST = 32, 8192, 2048


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape), dim=-1).bfloat16()


@functools.cache
def decoding() -> dict[str, Any]:
    """One new token for each of 32 sequences."""
    return {
        "query": unit(SEQUENCES, KEY_HEADS, SIZE),
        "key": unit(SEQUENCES, KEY_HEADS, SIZE),
        "value": torch.randn(SEQUENCES, HEADS, SIZE).bfloat16(),
        "state": torch.randn(SEQUENCES, HEADS, SIZE, SIZE).bfloat16(),
        "beta": torch.rand(SEQUENCES, HEADS).bfloat16(),
        "g": -torch.rand(SEQUENCES, HEADS),
    }


def delta_step(query, key, value, state, beta, g):
    """One step of the rule for every sequence."""
    groups = value.shape[1] // query.shape[1]
    q, k = (t.float().repeat_interleave(groups, 1) for t in (query, key))
    old = state.float() * g.exp()[..., None, None]
    seen = (old * k[:, :, None]).sum(-1)
    update = (value.float() - seen) * beta.float()[..., None]
    new = old + update[..., None] * k[:, :, None]
    out = (new * q[:, :, None]).sum(-1) * SIZE**-0.5
    state.copy_(new)
    return out.to(value.dtype)


@functools.cache
def prompt() -> dict[str, Any]:
    return {
        "query": unit(PROMPT, KEY_HEADS, SIZE),
        "key": unit(PROMPT, KEY_HEADS, SIZE),
        "value": torch.randn(PROMPT, HEADS, SIZE).bfloat16(),
        "beta": torch.rand(PROMPT, HEADS).bfloat16(),
        "initial_state": torch.randn(1, HEADS, SIZE, SIZE),
        "g": -torch.rand(PROMPT, HEADS),
    }


def delta_chunks(query, key, value, beta, initial_state, g):
    """The rule for a prompt, 64 tokens at a time by a triangular system."""
    groups = value.shape[1] // query.shape[1]
    q, k = (t.float().repeat_interleave(groups, 1).transpose(0, 1) for t in (query, key))
    v, b, decay = value.float().transpose(0, 1), beta.float().t(), g.t()
    state, parts = initial_state[0], []
    below = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    for first in range(0, q.shape[1], CHUNK):
        own = slice(first, first + CHUNK)
        total = decay[:, own].cumsum(-1)
        fade = (total[:, :, None] - total[:, None]).masked_fill(~below, -torch.inf).exp()
        system = (k[:, own] @ k[:, own].mT) * fade * b[:, own, None]
        grown = total.exp()[..., None]
        target = b[:, own, None] * (v[:, own] - grown * (k[:, own] @ state.mT))
        u = torch.linalg.solve_triangular(system.tril(-1), target, upper=False, unitriangular=True)
        parts.append(grown * (q[:, own] @ state.mT) + ((q[:, own] @ k[:, own].mT) * fade) @ u)
        rest = (total[:, -1:] - total).exp()[..., None]
        state = state * total[:, -1].exp()[:, None, None] + u.mT @ (rest * k[:, own])
    out = torch.cat(parts, 1).transpose(0, 1) * SIZE**-0.5
    return out.to(value.dtype), state.unsqueeze(0)


@functools.cache
def choices() -> dict[str, Any]:
    """Decoding: four sequences, one token each, which chose 512 of 4096 keys."""
    batch = 4
    half = lambda *shape: torch.randn(*shape).bfloat16()  # noqa: E731
    return {
        "query": half(batch, 1, QUERY_HEADS, LATENT),
        "key": half(batch, CONTEXT, 1, LATENT),
        "value": half(batch, CONTEXT, 1, LATENT),
        "sparse_indices": torch.stack([torch.randperm(CONTEXT)[:CHOSEN] for _ in range(batch)])
        .int()
        .view(batch, 1, 1, CHOSEN),
        "query_rope": half(batch, 1, QUERY_HEADS, ROPE),
        "key_rope": half(batch, CONTEXT, 1, ROPE),
    }


def attend_chosen(query, key, value, sparse_indices, query_rope, key_rope):
    batch = torch.arange(query.shape[0])[:, None]
    at = sparse_indices[:, 0, 0].long()
    keys = torch.cat((key[batch, at, 0], key_rope[batch, at, 0]), -1).float()
    rows = torch.cat((query, query_rope), -1)[:, 0].float()
    weights = (rows @ keys.mT * 0.04).softmax(-1)
    return (weights @ value[batch, at, 0].float()).unsqueeze(1).to(query.dtype)


@functools.cache
def candidates() -> dict[str, Any]:
    """Decoding: four sequences, one token each, whose 32 indexer heads look at 8192 keys."""
    half = lambda *shape: torch.randn(*shape).bfloat16()  # noqa: E731
    return {
        "query": half(4, 1, INDEX_HEADS, SIZE),
        "key": half(4, INDEXED, 1, SIZE),
        "weights": half(4, 1, INDEX_HEADS),
    }


def best_keys(query, key, weights):
    scores = torch.relu(query[:, 0].float() @ key[:, :, 0].float().mT)
    return (scores * weights[:, 0, :, None].float()).sum(1).topk(BEST).indices


def on_device(inputs: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    return functools.cache(lambda: {k: t.npu() for k, t in inputs().items()})


def _case(name, inputs, call, formula, limit) -> Case:
    device = on_device(inputs)
    compiled = functools.cache(lambda: torch.compile(formula, dynamic=False))

    def check() -> None:
        right, found = formula(**{k: t.clone() for k, t in inputs().items()}), call(**device())
        for mine, want in zip(
            *(r if isinstance(r, tuple) else (r,) for r in (found, right)), strict=False
        ):
            torch.testing.assert_close(mine.cpu().float(), want.float(), rtol=2e-2, atol=2e-2)

    others = {"inductor": Versus(lambda: compiled()(**inputs()), INDUCTOR)}
    if limit is not None:
        others["limit"] = limit
    run = lambda: call(**device())  # noqa: E731
    return Case(GROUP, name, run, lambda: formula(**inputs()), None, check, others=others)


def cases() -> Iterator[Case]:
    lengths = torch.ones(SEQUENCES, dtype=torch.int32).npu()
    blocks = torch.arange(SEQUENCES, dtype=torch.int32).npu()
    yield _case(
        "npu_recurrent_gated_delta_rule, bfloat16",
        decoding,
        lambda **given: torch_npu.npu_recurrent_gated_delta_rule(
            **given, scale=SIZE**-0.5, actual_seq_lengths=lengths, ssm_state_indices=blocks
        ),
        delta_step,
        limits.copying(2 * SEQUENCES * HEADS * SIZE * SIZE * 2, COPY),
    )
    whole = torch.tensor([PROMPT], dtype=torch.int32).npu()
    yield _case(
        "npu_chunk_gated_delta_rule, bfloat16",
        prompt,
        lambda **given: torch_npu.npu_chunk_gated_delta_rule(
            **given, scale=SIZE**-0.5, actual_seq_lengths=whole
        ),
        delta_chunks,
        None,
    )
    yield _case(
        "npu_sparse_flash_attention, decoding, bfloat16",
        choices,
        lambda **given: torch_npu.npu_sparse_flash_attention(
            **given, scale_value=0.04, attention_mode=2, sparse_mode=0
        )[0],
        attend_chosen,
        None,  # 16 products for each byte of the keys: they bound it, not the memory
    )
    yield Case(
        GROUP,
        "npu_lightning_indexer, decoding, bfloat16",
        lambda: torch_npu.npu_lightning_indexer(**_candidates(), sparse_count=BEST),
        lambda: best_keys(**candidates()),
        None,
        _check_candidates,
        others={"inductor": Versus(lambda: _compiled_best()(**candidates()), INDUCTOR)},
    )


_candidates = on_device(candidates)
_compiled_best = functools.cache(lambda: torch.compile(best_keys, dynamic=False))


def _check_candidates() -> None:
    """The same keys but for a few at the end, whose scores lie close together."""
    found = torch_npu.npu_lightning_indexer(**_candidates(), sparse_count=BEST)[0].cpu()
    for mine, right in zip(found.view(-1, BEST), best_keys(**candidates()), strict=True):
        assert len(set(mine.tolist()) & set(right.tolist())) >= BEST - 4
