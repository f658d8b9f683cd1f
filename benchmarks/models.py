"""Models that benchmarks and tests share."""

from __future__ import annotations

import torch
from torch import nn

import torch_npu


def keep_angles(module: nn.Module, length: int, size: int) -> None:
    """Buffers `cos` and `sin` of a rotary embedding, [1, 1, length, size]."""
    angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, size, 2) / size))
    angles = torch.cat([angles, angles], -1)[None, None]
    module.register_buffer("cos", angles.cos())
    module.register_buffer("sin", angles.sin())


class DecoderLayer(nn.Module):
    """One layer of a Llama-style decoder with its own key and value cache, for one new token a call."""

    def __init__(self, hidden: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(2 * hidden, hidden, bias=False)
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(hidden)) for _ in range(2)])
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, self.size))

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        h = torch_npu.npu_rms_norm(x, self.norms[0])[0]
        q, k, v = (
            t.view(1, 1, self.heads, self.size).transpose(1, 2) for t in self.qkv(h).chunk(3, -1)
        )
        cos, sin = (table.index_select(2, position) for table in rope)
        q, k = torch_npu.npu_rotary_mul(q, cos, sin), torch_npu.npu_rotary_mul(k, cos, sin)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        reach = torch.arange(self.keys.shape[2], device=x.device) <= position
        attended = nn.functional.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=reach.view(1, 1, 1, -1)
        )
        x = x + self.out(attended.transpose(1, 2).reshape(1, 1, -1))
        h = torch_npu.npu_rms_norm(x, self.norms[1])[0]
        return x + self.down(torch_npu.npu_swiglu(self.up(h)))


class Decoder(nn.Module):
    """Layers, embedding and head; `forward` takes a token and its position and gives the next token's logits."""

    def __init__(
        self,
        layers: int = 12,
        hidden: int = 256,
        heads: int = 4,
        words: int = 512,
        length: int = 128,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, hidden)
        self.layers = nn.ModuleList(DecoderLayer(hidden, heads, length) for _ in range(layers))
        self.head = nn.Linear(hidden, words, bias=False)
        keep_angles(self, length, hidden // heads)

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embed(token)[None]
        for layer in self.layers:
            x = layer(x, position, (self.cos, self.sin))
        return self.head(x)[0, -1]

    def reset(self) -> None:
        """Empties the caches."""
        for layer in self.layers:
            layer.keys.zero_()
            layer.values.zero_()


def decoder(dtype: torch.dtype = torch.bfloat16, **shape: int) -> Decoder:
    """A decoder on the npu with fixed random weights."""
    torch.manual_seed(0)
    return Decoder(**shape).to("npu", dtype).eval().requires_grad_(False)
