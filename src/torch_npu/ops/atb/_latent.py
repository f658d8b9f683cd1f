"""Multi-head latent attention over pages of a latent and a rope cache: the modes, the caches, int8 arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_npu.ops.atb._attend import FAR, Engine, Paged, Rows, attend, integers, starts

LATENT, ROPE = 512, 64
MASK_TYPES = ("undefined", "mask_type_spec", "mask_type_free")
CALC_TYPES = ("calc_type_undefined", "calc_type_spec", "calc_type_ring")
CACHE_MODES = ("krope_ctkv", "int8_nzcache", "nzcache")


@dataclass
class LatentArguments:
    """The arguments that all forms of npu_multi_head_latent_attention share."""

    q_nope: torch.Tensor
    q_rope: torch.Tensor
    ctkv: torch.Tensor
    k_rope: torch.Tensor
    block_tables: torch.Tensor
    context_lens: list[int]
    q_headnum: int
    qk_scale: float
    kv_headnum: int
    mask: torch.Tensor | None = None
    qseqlen: list[int] | None = None
    qk_descale: torch.Tensor | None = None
    pv_descale: torch.Tensor | None = None
    mask_type: str | None = None
    calc_type: str | None = None
    cache_mode: str | None = None

    @property
    def mode(self) -> str:
        return self.cache_mode or "krope_ctkv"

    @property
    def ring(self) -> bool:
        return self.calc_type == "calc_type_ring"

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention like q_nope in the dtype of q_rope, and the logsumexp (tokens, heads, 1) of the ring form."""
        out = self.q_rope.new_empty(self.q_nope.shape)
        shape = (*self.q_nope.shape[:2], 1) if self.ring else (0,)
        return out, self.q_rope.new_empty(shape)

    def sequences(self) -> list[Rows]:
        """Each sequence has one new token, or in 'calc_type_spec' as many as `qseqlen` says."""
        contexts = integers(self.context_lens)
        spec = self.calc_type == "calc_type_spec" and self.qseqlen is not None
        lengths = integers(self.qseqlen) if spec else [1] * len(contexts)
        found, causal = [], self.mask_type == "mask_type_free"
        for start, n, length in zip(starts(lengths), lengths, contexts, strict=True):
            bias = None
            if self.mask_type == "mask_type_spec" and self.mask is not None:
                bias = self.mask[start : start + n, :length].unsqueeze(0)
            found.append(Rows(start, n, length, bias=bias, edge=length - n if causal else FAR))
        return found

    def pages(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both caches as (blocks, block, heads, size), without a copy where they are plain."""
        if self.mode == "krope_ctkv":
            return self.ctkv, self.k_rope
        return tuple(
            c.transpose(1, 2).unflatten(2, (self.kv_headnum, -1)).flatten(3)
            for c in (self.ctkv, self.k_rope)
        )

    def run(self, engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = self.outputs()
        out.zero_()
        if self.mode == "int8_nzcache":
            _int8(self, out, lse)
            return out, lse
        ctkv, k_rope = self.pages()
        query = torch.cat((self.q_nope, self.q_rope), -1)
        sums = query.new_full(query.shape[1::-1], torch.inf, dtype=torch.float32)
        source = _Latent(Paged(ctkv, k_rope, self.block_tables))
        attend(
            engine, query, source, out, self.sequences(), self.qk_scale, sums if self.ring else None
        )
        if self.ring:
            lse.copy_(sums.t().unsqueeze(-1))
        return out, lse


@dataclass(frozen=True)
class _Latent:
    """Keys are the latent and the rope part of a token, values its latent part."""

    both: Paged

    def of(self, index: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        latent, rope = self.both.of(index, rows)
        return torch.cat((latent, rope), -1), latent


def _int8(call: LatentArguments, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Scores of int8 latents and half-precision ropes; weights in steps of 1/127 of a row's largest."""
    ctkv, k_rope = call.pages()
    source = Paged(ctkv, k_rope, call.block_tables)
    heads, group = call.q_headnum, call.q_headnum // call.kv_headnum
    assert call.qk_descale is not None and call.pv_descale is not None  # int8 has both
    if call.ring:
        lse.fill_(torch.inf)
    for index, rows in enumerate(call.sequences()):
        if rows.length == 0 or rows.kv_length == 0:
            continue
        span = slice(rows.start, rows.start + rows.length)
        latent, rope = (t[0] for t in source.of(index, rows))
        nope = _grouped(call.q_nope[span].double(), latent.double().mT, group).float()
        scores = nope * call.qk_descale.view(-1, 1, 1)
        scores += _grouped(call.q_rope[span].float(), rope.float().mT, group)
        scores *= call.qk_scale
        if rows.bias is not None:
            scores += rows.bias
        if rows.edge < FAR:
            later = torch.ones(rows.length, rows.kv_length, dtype=torch.bool)
            scores.masked_fill_(later.triu(1 + rows.edge), -torch.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        total = weights.sum(-1, keepdim=True)
        whole = (weights * 127).half().round().double()
        found = _grouped(whole.transpose(0, 1), latent.double(), group).float()
        found = found * (call.pv_descale.view(heads, 1, 1) / 127) / total
        if call.ring:
            lse[span] = scores.logsumexp(-1).t().unsqueeze(-1).to(lse.dtype)
        out[span] = found.transpose(0, 1).to(out.dtype)


def _grouped(left: torch.Tensor, right: torch.Tensor, group: int) -> torch.Tensor:
    """(tokens, N, k) times (Nkv, k, c), as (N, tokens, c)."""
    return left.transpose(0, 1) @ right.repeat_interleave(group, 0)
