"""The models that graph mode must run: an MLP, ResNet-18, a Llama-style decoder, a mixture of experts. Small ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import torch_npu


class Mlp(nn.Module):
    def __init__(self, width: int = 32, hidden: int = 64):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x))))


class _Block(nn.Module):
    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Identity()
        if stride != 1 or inside != out:
            self.short = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class ResNet18(nn.Module):
    """Four stages of two blocks; fewer `stages` make a shorter one."""

    def __init__(self, width: int = 64, classes: int = 1000, stages: int = 4):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        sizes = [width, *(width * 2**stage for stage in range(stages))]
        blocks = []
        for index, (inside, out) in enumerate(zip(sizes, sizes[1:], strict=False)):
            blocks += [_Block(inside, out, 1 if index == 0 else 2), _Block(out, out, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class _Layer(nn.Module):
    """Attention over a cache and a gated MLP, with this package's fused operators."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(width)) for _ in range(2))

    def forward(self, x, cos, sin, keys, values, start, mask):
        batch, length, width = x.shape
        qkv = self.qkv(torch_npu.npu_rms_norm(x, self.norm1)[0])
        q, k, v = qkv.view(batch, length, 3, self.heads, self.size).unbind(2)
        q, k = torch_npu.npu_rotary_mul(q, cos, sin), torch_npu.npu_rotary_mul(k, cos, sin)
        keys[:, start : start + length] = k
        values[:, start : start + length] = v
        seen = start + length
        attention, _ = torch_npu.npu_fused_infer_attention_score(
            q.contiguous(),
            keys[:, :seen].contiguous(),
            values[:, :seen].contiguous(),
            num_heads=self.heads,
            input_layout="BSND",
            scale=self.size**-0.5,
            atten_mask=mask,
        )
        x = x + self.out(attention.reshape(batch, length, width))
        y = torch_npu.npu_swiglu(self.up(torch_npu.npu_rms_norm(x, self.norm2)[0]))
        return x + self.down(y)


class Llama(nn.Module):
    def __init__(self, layers=2, width=64, heads=4, hidden=96, words=50, most=32):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(_Layer(width, heads, hidden) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        angle = torch.outer(torch.arange(most), 1e4 ** -(torch.arange(0, size, 2) / size))
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos()[None, :, None])
        self.register_buffer("sin", angle.sin()[None, :, None])

    def caches(self, batch, dtype=torch.float16):
        shape = (batch, self.cos.shape[1], self.layers[0].heads, self.layers[0].size)
        zeros = [torch.zeros(shape, device="npu", dtype=dtype) for _ in range(2 * len(self.layers))]
        return list(zip(zeros[::2], zeros[1::2], strict=True))

    def forward(self, tokens, caches, start):
        """The logits of all tokens given, the first of which stands at `start`; the caches are written."""
        x = self.embedding(tokens)
        length = tokens.shape[1]
        cos, sin = (t[:, start : start + length] for t in (self.cos, self.sin))
        mask = None
        if length > 1:
            mask = torch.ones(length, start + length, dtype=torch.bool, device=x.device)
            mask = mask.triu(start + 1)
        for layer, (keys, values) in zip(self.layers, caches, strict=True):
            x = layer(x, cos, sin, keys, values, start, mask)
        return self.head(torch_npu.npu_rms_norm(x, self.norm)[0])


class Moe(nn.Module):
    """Top-2 routing over experts, by this package's operators from gate to sum."""

    def __init__(self, width=32, hidden=48, experts=4, top=2):
        super().__init__()
        self.experts, self.top = experts, top
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * hidden) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * 0.1)

    def forward(self, x):
        scales, chosen, row = torch_npu.npu_moe_gating_top_k_softmax(self.gate(x), None, self.top)
        spread, order, expert = torch_npu.npu_moe_init_routing(x, row, chosen, 1024)  # at most
        ends = torch_npu.npu_moe_compute_expert_tokens(expert, self.experts).long()
        (up,) = torch_npu.npu_grouped_matmul(
            [spread], [self.up], group_list=ends, split_item=3, group_type=0
        )
        (down,) = torch_npu.npu_grouped_matmul(
            [torch_npu.npu_swiglu(up)], [self.down], group_list=ends, split_item=3, group_type=0
        )
        return torch_npu.npu_moe_finalize_routing(
            down, None, None, None, scales, order, chosen, k=self.top
        )
