"""npu_mla_preprocess: from hidden states to the queries and caches of multi-head latent attention, in int8."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._pages import write
from torch_npu.ops.atb._mla_preprocess_rules import DOWN, HIDDEN, LATENT, NOPE, ROPE, check

EPSILON = 1e-5
_ARGUMENTS = (
    "Tensor input, Tensor gamma0, Tensor beta0, Tensor wdqkv, Tensor descale0, Tensor gamma1, "
    "Tensor beta1, Tensor wuq, Tensor descale1, Tensor gamma2, Tensor cos, Tensor sin, Tensor wuk, "
    "Tensor kv_cache, Tensor kv_cache_rope, Tensor slotmapping, *, Tensor? quant_scale0=None, "
    "Tensor? quant_offset0=None, Tensor? bias0=None, Tensor? quant_scale1=None, "
    "Tensor? quant_offset1=None, Tensor? bias1=None, Tensor? ctkv_scale=None, "
    "Tensor? q_nope_scale=None, str? cache_mode=None, str? quant_mode=None"
)


@dataclass
class PreprocessArguments:
    """The arguments of both forms."""

    input: torch.Tensor
    gamma0: torch.Tensor
    beta0: torch.Tensor
    wdqkv: torch.Tensor
    descale0: torch.Tensor
    gamma1: torch.Tensor
    beta1: torch.Tensor
    wuq: torch.Tensor
    descale1: torch.Tensor
    gamma2: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    wuk: torch.Tensor
    kv_cache: torch.Tensor
    kv_cache_rope: torch.Tensor
    slotmapping: torch.Tensor
    quant_scale0: torch.Tensor | None = None
    quant_offset0: torch.Tensor | None = None
    bias0: torch.Tensor | None = None
    quant_scale1: torch.Tensor | None = None
    quant_offset1: torch.Tensor | None = None
    bias1: torch.Tensor | None = None
    ctkv_scale: torch.Tensor | None = None
    q_nope_scale: torch.Tensor | None = None
    cache_mode: str | None = None
    quant_mode: str | None = None

    @property
    def nz(self) -> bool:
        return self.cache_mode in ("int8_nzcache", "nzcache")

    @property
    def per_token(self) -> bool:
        return self.quant_mode != "per_tensor_quant_asymm"

    def shapes(self) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, heads = self.input.shape[0], self.wuk.shape[0]
        q_nope = self.input.new_empty((tokens, heads, LATENT), dtype=self.kv_cache.dtype)
        return q_nope, self.input.new_empty((tokens, heads, ROPE))

    def run(self, kv_cache: torch.Tensor, kv_cache_rope: torch.Tensor):
        """Writes the tokens' slots of the two caches and returns the queries."""
        dtype, heads = self.input.dtype, self.wuk.shape[0]
        down = self._product(
            self.input, self.gamma0, self.beta0, self.quant_scale0, self.quant_offset0,
            _plain(self.wdqkv), self.descale0, self.bias0,
        ).to(dtype)  # fmt: skip
        latent, rope, rest = down.split((LATENT, ROPE, down.shape[1] - LATENT - ROPE), 1)
        key = _norm(latent, self.gamma2).to(dtype)
        if self.cache_mode == "int8_nzcache":
            assert self.ctkv_scale is not None
            key = _int8(wide(key) / wide(self.ctkv_scale))
        write(self._pages(kv_cache, LATENT), self.slotmapping, key, self.nz)
        turned = _rotate(wide(rope), wide(self.cos), wide(self.sin)).to(dtype)
        write(self._pages(kv_cache_rope, ROPE), self.slotmapping, turned, self.nz)
        up = self._product(
            rest, self.gamma1, self.beta1, self.quant_scale1, self.quant_offset1,
            _plain(self.wuq), self.descale1, self.bias1,
        ).to(dtype)  # fmt: skip
        up = up.view(-1, heads, NOPE + ROPE)
        nope = (wide(up[..., :NOPE]).transpose(0, 1) @ wide(_matrices(self.wuk))).transpose(0, 1)
        nope = nope.to(dtype)
        if self.cache_mode == "int8_nzcache":
            assert self.q_nope_scale is not None
            nope = _int8(wide(nope) / wide(self.q_nope_scale).view(-1, 1))
        cos, sin = wide(self.cos).unsqueeze(1), wide(self.sin).unsqueeze(1)
        return nope.contiguous(), _rotate(wide(up[..., NOPE:]), cos, sin).to(dtype)

    def _pages(self, cache: torch.Tensor, size: int) -> torch.Tensor:
        """Pages of one head: the card knows no other, whatever the second size of an NZ cache says."""
        if not self.nz or cache.shape[1] * cache.shape[3] == size:
            return cache
        return cache.view(-1, size // cache.shape[3], *cache.shape[2:])

    def _product(self, x, gamma, beta, scale, offset, weight, descale, bias):
        """Normalized rows in int8 times an int8 weight, scaled back."""
        value = _norm(x, gamma) + wide(beta)
        if self.per_token:
            step = value.abs().amax(1, keepdim=True) / 127
            rows = _int8(value / step.masked_fill(step == 0, 1))
            found = (rows.double() @ weight.double().t()).float()
            return found * _factors(descale) * step
        rows = _int8(value / wide(scale) + offset)
        found = rows.double() @ weight.double().t()
        if bias is not None:
            found = found + bias.view(-1)
        return found.float() * _factors(descale)


def _norm(x, gamma):
    x = wide(x)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * wide(gamma)


def _int8(value):
    return value.round().clamp(-128, 127).to(torch.int8)


def _rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _plain(weight):
    """An int8 weight (rows, columns), or NZ (1, columns / 32, rows, 32) of it."""
    return weight if weight.dim() == 2 else weight[0].transpose(0, 1).flatten(1)


def _matrices(wuk):
    """(heads, 128, 512), or NZ (heads, 32, 128, 16) of it."""
    return wuk if wuk.dim() == 3 else wuk.transpose(1, 2).flatten(2)


def _factors(descale):
    """Scales in float32, or as int64 that hold the bits of one in their low half."""
    return descale if descale.dtype != torch.int64 else descale.int().view(torch.float32)


@npu_op(
    f"atb::npu_mla_preprocess({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    ge="MlaPreprocess",
    core="MIX_AIC",
    product=True,
)
def npu_mla_preprocess(**arguments):
    r"""The queries and cache entries of multi-head latent attention from hidden states, with int8 weights.

    $$ [c, r, d] = \mathrm{dequant}(\mathrm{quant}(\mathrm{norm}(x)) W_{dqkv}^T), \quad
       [q_n, q_r] = \mathrm{dequant}(\mathrm{quant}(\mathrm{norm}(d)) W_{uq}^T) $$

    The caches receive norm(c) and rope(r) in the slots of the tokens; the queries are $q_n W_{uk}$ and
    rope($q_r$). The epsilon of all norms is 1e-5; norms of x and d have a bias (`beta0`, `beta1`).

    Args:
        input: x, (tokens, 7168), float16 or bfloat16, 1 to 1024 tokens; 2048 to 8192 columns in
            'per_tensor_quant_asymm'.
        gamma0: (7168,).
        beta0: (7168,).
        wdqkv: (2112, 7168), int8, or NZ (1, 224, 2112, 32).
        descale0: (2112,), float32; int64 with the bits of a float32 beside float16 in 'per_tensor_quant_asymm'.
        gamma1: (1536,).
        beta1: (1536,).
        wuq: (heads * 192, 1536), int8, or NZ (1, 48, heads * 192, 32).
        descale1: (heads * 192,), like `descale0`.
        gamma2: (512,).
        cos: (tokens, 64).
        sin: (tokens, 64).
        wuk: (heads, 128, 512), or NZ (heads, 32, 128, 16).
        kv_cache: (blocks, block, 1, 512); NZ (blocks, 32, 128, 16), int8 (blocks, 16, 128, 32),
            or so many times as much in the second dimension, which counts as further blocks.
        kv_cache_rope: (blocks, block, 1, 64); NZ (blocks, 4, 128, 16).
        slotmapping: (tokens,), int32.
        quant_scale0: (1,), with 'per_tensor_quant_asymm': x is divided by it.
        quant_offset0: (1,), int8, with 'per_tensor_quant_asymm'.
        bias0: (2112,), int32, added to the int8 product in 'per_tensor_quant_asymm'.
        quant_scale1: like `quant_scale0`, for d.
        quant_offset1: like `quant_offset0`, for d.
        bias1: (heads * 192,), int32.
        ctkv_scale: (1,), with 'int8_nzcache': the cached latents are divided by it.
        q_nope_scale: (heads,), with 'int8_nzcache': the queries are divided by it.
        cache_mode: 'krope_ctkv' (the default), 'int8_nzcache' or 'nzcache'.
        quant_mode: 'per_token_quant_symm' (the default, scales as they come) or 'per_tensor_quant_asymm'.

    Returns:
        q_out0 (tokens, heads, 512), an updated copy of `kv_cache`, q_out1 (tokens, heads, 64) and an updated copy of
        `kv_cache_rope`.

    Differs from upstream: what the returned caches hold outside the slots is what the given ones hold; upstream
    leaves it uninitialized.
    """
    call = PreprocessArguments(**arguments)
    caches = call.kv_cache.clone(), call.kv_cache_rope.clone()
    q_nope, q_rope = call.run(*caches)
    return q_nope, caches[0], q_rope, caches[1]


@npu_mla_preprocess.check
def _(**arguments):
    check(PreprocessArguments(**arguments))


@npu_mla_preprocess.meta
def _(**arguments):
    call = PreprocessArguments(**arguments)
    q_nope, q_rope = call.shapes()
    return q_nope, torch.empty_like(call.kv_cache), q_rope, torch.empty_like(call.kv_cache_rope)


@npu_op(
    f"atb::npu_mla_preprocess.out({_ARGUMENTS}, Tensor(a!) q_out0, Tensor(b!) kv_cache_out0, "
    "Tensor(c!) q_out1, Tensor(d!) kv_cache_out1) -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!))",
    ge="MlaPreprocess",
    core="MIX_AIC",
    product=True,
)
def npu_mla_preprocess_out(q_out0, kv_cache_out0, q_out1, kv_cache_out1, **arguments):
    """`npu_mla_preprocess` into given tensors; of `kv_cache_out0` and `kv_cache_out1` the tokens' slots are written.

    Args:
        q_out0: (tokens, heads, 512), the dtype of `kv_cache`, written.
        kv_cache_out0: like `kv_cache`, usually `kv_cache` itself.
        q_out1: (tokens, heads, 64), the dtype of `input`, written.
        kv_cache_out1: like `kv_cache_rope`, usually `kv_cache_rope` itself.

    Returns:
        The four tensors.
    """
    q_nope, q_rope = PreprocessArguments(**arguments).run(kv_cache_out0, kv_cache_out1)
    q_out0.copy_(q_nope)
    q_out1.copy_(q_rope)
    return q_out0, kv_cache_out0, q_out1, kv_cache_out1


@npu_mla_preprocess_out.check
def _(q_out0, kv_cache_out0, q_out1, kv_cache_out1, **arguments):
    call = PreprocessArguments(**arguments)
    check(call)
    q_nope, q_rope = call.shapes()
    for name, given, like in (
        ("q_out0", q_out0, q_nope),
        ("kv_cache_out0", kv_cache_out0, call.kv_cache),
        ("q_out1", q_out1, q_rope),
        ("kv_cache_out1", kv_cache_out1, call.kv_cache_rope),
    ):
        must.dtype(name, given, like.dtype)
        must.shape(name, given, tuple(like.shape))


@npu_mla_preprocess_out.meta
def _(q_out0, kv_cache_out0, q_out1, kv_cache_out1, **arguments):
    return q_out0, kv_cache_out0, q_out1, kv_cache_out1


def _inputs(make):
    half = torch.bfloat16
    return (
        make(2, HIDDEN, dtype=half),
        make(HIDDEN, dtype=half),
        make(HIDDEN, dtype=half),
        make(2112, HIDDEN, dtype=torch.int8, low=-9, high=9),
        make(2112, low=0, high=1e-3),
        make(DOWN, dtype=half),
        make(DOWN, dtype=half),
        make(384, DOWN, dtype=torch.int8, low=-9, high=9),
        make(384, low=0, high=1e-3),
        make(LATENT, dtype=half),
        make(2, ROPE, dtype=half),
        make(2, ROPE, dtype=half),
        make(2, NOPE, LATENT, dtype=half),
        make(2, 4, 1, LATENT, dtype=half),
        make(2, 4, 1, ROPE, dtype=half),
        make(8).argsort()[:2].int(),
    )


npu_mla_preprocess.samples = [Sample(_inputs)]
npu_mla_preprocess_out.samples = [
    Sample(
        _inputs,
        lambda make: {
            "q_out0": make(2, 2, LATENT, dtype=torch.bfloat16),
            "kv_cache_out0": make(2, 4, 1, LATENT, dtype=torch.bfloat16),
            "q_out1": make(2, 2, ROPE, dtype=torch.bfloat16),
            "kv_cache_out1": make(2, 4, 1, ROPE, dtype=torch.bfloat16),
        },
    )
]
