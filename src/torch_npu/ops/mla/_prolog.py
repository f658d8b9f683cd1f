"""What the MLA prolog operators share: projections, RmsNorm, rotation and quantization.

The names follow upstream's pages: He hidden size, Hcq and Hckv the low-rank sizes of query and
key-value, N heads, D and Dr the head sizes without and with position encoding, T tokens.
"""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared import _dynamic, _formats

HIDDEN = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192)
MAX_SEQUENCES = 65536


def product(a: torch.Tensor, b: torch.Tensor, name: str = "int8") -> torch.Tensor:
    """a @ b in fp32 of tensors in bf16 or a format; exact for int8, whose sums fit a double."""
    if a.dtype == torch.int8:
        return (a.double() @ b.double()).float()
    if name == "hifloat8":
        return _formats.decode(a, name) @ _formats.decode(b, name)
    return wide(a) @ wide(b)


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    """gamma * x / rms(x) over the last dimension, in fp32."""
    x = wide(x)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * wide(gamma)


def rotate(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    """Interleaved rotary embedding: even elements first, then odd ones, rotated by halves."""
    even, odd = wide(x)[..., ::2], wide(x)[..., 1::2]
    return torch.cat([even, odd], -1) * wide(cos) + torch.cat([-odd, even], -1) * wide(sin)


def quantize(x: torch.Tensor, scale: torch.Tensor, name: str = "int8") -> torch.Tensor:
    """round(x * scale) in a format: the static form, whose scale multiplies."""
    return _formats.encode(x * scale, name)


def quantize_rows(x: torch.Tensor, name: str = "int8") -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in a format and their scales (.., 1), max|row| / the format's largest value."""
    rows, scale = _dynamic.symmetric(x, name, order=_dynamic.RATIO)
    return rows, scale.unsqueeze(-1)


def down_project(x, weight, x_scale, weight_scale, name="int8"):
    """x @ weight in fp32, de-quantized by scales for each token and each channel if there are."""
    found = product(x, weight, name)
    return found if x_scale is None else found * x_scale * weight_scale


def up_project(normed, weight, weight_scale, smooth, dtype, name="int8"):
    """c^Q @ [W^UQ | W^QR] in fp32, and c^Q as the product takes it with its scales (or None).

    For a quantized weight c^Q is smoothed and quantized token by token.
    """
    if weight_scale is None:
        rows = normed.to(dtype)
        return wide(product(rows, weight).to(dtype)), rows, None
    rows, scale = quantize_rows(normed if smooth is None else normed * smooth, name)
    return product(rows, weight, name) * scale * weight_scale, rows, scale


def check_tokens(token_x: torch.Tensor) -> int:
    """The tokens' hidden size, which is one of the known ones."""
    he = token_x.shape[-1]
    must.hold(he in HIDDEN, "token_x", f"of hidden size {must.one_of(HIDDEN)}", he)
    if token_x.dim() == 3:
        batch = token_x.shape[0]
        must.hold(batch <= MAX_SEQUENCES, "token_x", f"of at most {MAX_SEQUENCES} sequences", batch)
    return he


def check_block(size: int) -> None:
    """The tokens of a block of a paged cache."""
    fits = 16 <= size <= 1024 and size % 16 == 0
    must.hold(fits, "kv_cache", "of 16 to 1024 tokens a block, a multiple of 16", size)


def check_order(mode: str, **caches: torch.Tensor) -> None:
    """The NZ modes order the bytes of a block, so the blocks must be contiguous."""
    if mode.endswith("NZ"):
        for name, cache in caches.items():
            must.hold(cache.is_contiguous(), name, f"contiguous in mode {mode}", cache.stride())


def scatter(cache: torch.Tensor, rows: torch.Tensor, index: torch.Tensor, mode: str) -> None:
    """Writes row t (T, width) into slot index[t] of a cache (blocks, size, heads, width), in place.

    A negative index writes nothing. In a PA_NZ cache a block holds (width / c, size, c) in its
    bytes, c elements filling 32 bytes.
    """
    if rows.shape[0] == 0 or cache.numel() == 0:
        return
    blocks, size, heads, width = cache.shape
    rows = rows.to(cache.dtype)
    if cache.element_size() == 1:  # 8-bit floats cannot be indexed; their bytes can
        cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
    # No data-dependent shapes: skipped tokens repeat the last valid write (or slot 0's own value).
    valid = index >= 0
    last = index.shape[0] - 1 - valid.flip(0).long().argmax(0, keepdim=True)
    slot = torch.where(valid, index, index[last].clamp(min=0))
    block, offset = slot // size, slot % size
    values = rows.unsqueeze(1).expand(-1, heads, -1)
    if mode == "PA_NZ":
        c = 32 // cache.element_size()
        cache = cache.view(blocks, heads * width // c, size, c).transpose(1, 2)
        values = values.reshape(-1, heads * width // c, c)
    spare = torch.where(valid.any(), values[last], cache[block[last], offset[last]])
    cache.index_put_((block, offset), torch.where(valid.view(-1, 1, 1), values, spare))
