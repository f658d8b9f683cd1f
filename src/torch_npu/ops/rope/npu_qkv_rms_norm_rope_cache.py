"""npu_qkv_rms_norm_rope_cache: query, key and value of one matrix, normalized, rotated and stored."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops.rope import _rotate

_HALF = (torch.float16, torch.bfloat16)
_WIDTH = 128
_BLOCK = 32
_OPTIONS = (
    "int[4] qkv_size, int[3] head_nums, *, Tensor? k_scale=None, Tensor? v_scale=None, "
    "Tensor? k_offset=None, Tensor? v_offset=None, float epsilon=1e-6, str cache_mode='PA_NZ', "
    "bool is_output_qkv=False)"
)
_TENSORS = "Tensor qkv, Tensor q_gamma, Tensor k_gamma, Tensor cos, Tensor sin, Tensor index, "


def _normed(x, gamma, epsilon):
    rms = (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return x / rms * gamma.float()


def _scatter(x, cache, index, scale, offset):
    """Rows (tokens, heads, D) into pages (blocks, heads D / c, block, c); -1 skips a token."""
    if scale is not None:
        x = x / scale
        x = x if offset is None else x + offset
        x = saturate(x, torch.int8)
    blocks, _, size, inner = cache.shape
    used = (index >= 0) & (index < blocks * size)
    place = index[used].long()
    rows = x[used].to(cache.dtype).flatten(1).unflatten(1, (-1, inner))
    cache.transpose(1, 2)[place // size, place % size] = rows


@npu_op(
    f"npu_qkv_rms_norm_rope_cache({_TENSORS}Tensor(a!) q_out, Tensor(b!) k_cache, "
    f"Tensor(c!) v_cache, {_OPTIONS} -> (Tensor, Tensor, Tensor)",
    functional=f"npu_qkv_rms_norm_rope_cache_functional({_TENSORS}Tensor q_out, Tensor k_cache, "
    f"Tensor v_cache, {_OPTIONS} -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    chips=("A2", "A3"),
)
def npu_qkv_rms_norm_rope_cache(
    qkv,
    q_gamma,
    k_gamma,
    cos,
    sin,
    index,
    q_out,
    k_cache,
    v_cache,
    head_nums,
    k_scale,
    v_scale,
    k_offset,
    v_offset,
    epsilon,
    is_output_qkv,
):
    r"""Splits query, key and value, normalizes and rotates the first two, and writes key and value into pages.

    $$ x' = \mathrm{rope}(\frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma), \qquad
       cache = x' \quad \text{or} \quad \mathrm{round}(x' / scale + offset) $$

    Args:
        qkv: (B S, N D), the heads of query, then key, then value; float16 or bfloat16; D = 128.
        q_gamma: (D,), of the dtype of `qkv`.
        k_gamma: the same for keys.
        cos: (B S, D), or (B, D) for all tokens of a sequence, of the dtype of `qkv`; each element turns with the one
            D/2 away.
        sin: as `cos`.
        index: int64 (B S,): the position of each token in all pages, -1 for none.
        q_out: (B S, Nq D), of the dtype of `qkv`; receives the queries.
        k_cache: pages (blocks, Nk D / c, block, c) in the layout NZ: c = 16 of the dtype of `qkv`, or 32 int8; blocks
            of a multiple of 32 tokens, at least ceil(S / block) for each sequence; written.
        v_cache: the same for values.
        qkv_size: [B, S, N, D].
        head_nums: [Nq, Nk, Nv], Nk = Nv, a divisor of Nq.
        k_scale: float32 (Nk, D): what keys are divided by, for an int8 cache.
        v_scale: the same for values.
        k_offset: float32 (Nk, D), added before rounding.
        v_offset: the same for values.
        epsilon: added to the mean square.
        cache_mode: "PA_NZ".
        is_output_qkv: whether the rotated query and key and the value are returned.

    Returns:
        Query, key and value before quantization, (B S, heads D) each, or empty tensors.
    """
    parts = qkv.float().unflatten(1, (-1, cos.shape[1])).split(list(head_nums), 1)
    each = qkv.shape[0] // cos.shape[0]  # a sequence may have one row of angles for all its tokens
    c, s = (t.float().repeat_interleave(each, 0).unsqueeze(1) for t in (cos, sin))
    q, k = (
        _rotate.rotate(_normed(x, gamma, epsilon), c, s, "half")
        for x, gamma in zip(parts[:2], (q_gamma, k_gamma), strict=True)
    )
    v = parts[2]
    q_out.copy_(q.flatten(1))
    _scatter(k, k_cache, index, k_scale, k_offset)
    _scatter(v, v_cache, index, v_scale, v_offset)
    if not is_output_qkv:
        return tuple(qkv.new_empty(0) for _ in range(3))
    return tuple(t.flatten(1).to(qkv.dtype) for t in (q, k, v))


@npu_qkv_rms_norm_rope_cache.check
def _(
    qkv,
    q_gamma,
    k_gamma,
    cos,
    sin,
    index,
    q_out,
    k_cache,
    v_cache,
    qkv_size,
    head_nums,
    k_scale,
    v_scale,
    k_offset,
    v_offset,
    cache_mode,
):
    must.dtype("qkv", qkv, *_HALF)
    must.ndim("qkv", qkv, 2)
    batch, length, heads, width = qkv_size
    must.hold(min(qkv_size) > 0, "qkv_size", "four positive numbers", list(qkv_size))
    must.hold(width == _WIDTH, "qkv_size", f"of head size {_WIDTH}", width)
    queries, keys, values = head_nums
    ok = sum(head_nums) == heads and keys == values and min(head_nums) > 0
    must.hold(ok, "head_nums", f"[Nq, Nk, Nk], {heads} together", list(head_nums))
    must.hold(queries % keys == 0, "head_nums", "of Nq divisible by Nk", list(head_nums))
    rows = batch * length
    angles = (batch if cos.shape[:1] == (batch,) else rows, width)
    must.shape("qkv", qkv, (rows, heads * width))
    for name, tensor, shape in (
        ("q_gamma", q_gamma, (width,)),
        ("k_gamma", k_gamma, (width,)),
        ("cos", cos, angles),
        ("sin", sin, angles),
        ("q_out", q_out, (rows, queries * width)),
    ):
        must.same_dtype(name, tensor, "qkv", qkv)
        must.shape(name, tensor, shape)
    must.dtype("index", index, torch.int64)
    must.shape("index", index, (rows,))
    must.choice("cache_mode", cache_mode, ("PA_NZ",))
    _check_cache(qkv, {"k_cache": k_cache, "k_scale": k_scale, "k_offset": k_offset}, keys, width)
    _check_cache(qkv, {"v_cache": v_cache, "v_scale": v_scale, "v_offset": v_offset}, values, width)
    blocks, block = k_cache.shape[0], k_cache.shape[2]
    needed = -(-length // block) * batch
    must.hold(blocks >= needed, "k_cache", f"of at least {needed} blocks", tuple(k_cache.shape))
    must.shape("v_cache", v_cache, (blocks, None, block, None))
    if must.has_data(index):
        most = blocks * block
        low, high = int(index.min()), int(index.max())
        must.hold(low >= -1 and high < most, "index", f"in [-1, {most})", f"{low} to {high}")


def _check_cache(qkv, given, heads, width):
    """A cache, its scale and its offset, by name."""
    (name, cache), (scale_name, scale), (offset_name, offset) = given.items()
    must.dtype(name, cache, qkv.dtype, torch.int8)
    whole = cache.dtype == torch.int8
    inner = 32 if whole else 16
    must.shape(name, cache, (None, heads * width // inner, None, inner))
    ok = cache.shape[2] > 0 and cache.shape[2] % _BLOCK == 0
    must.hold(ok, name, f"of blocks whose size is a multiple of {_BLOCK}", cache.shape[2])
    ok = (scale is not None) == whole
    must.hold(ok, scale_name, "given for an int8 cache, and only then", scale is not None)
    if offset is not None:
        must.hold(whole, offset_name, "None without an int8 cache", "a tensor")
    for factor_name, factor in ((scale_name, scale), (offset_name, offset)):
        must.dtype(factor_name, factor, torch.float32)
        must.shape(factor_name, factor, (heads, width))


@npu_qkv_rms_norm_rope_cache.meta
def _(qkv, head_nums, cos, is_output_qkv):
    if not is_output_qkv:
        return tuple(qkv.new_empty(0) for _ in range(3))
    return tuple(qkv.new_empty((qkv.shape[0], n * cos.shape[1])) for n in head_nums)


def _inputs(make, dtype, cache):
    inner = 32 if cache == torch.int8 else 16
    pages = [make(2, 128 // inner, 32, inner).mul(9).to(cache) for _ in range(2)]
    index = make(1, dtype=torch.int64, low=3, high=4) + torch.tensor([0, 1, -4, 9]).to(
        pages[0].device
    )
    return (
        make(4, 512, dtype=dtype), make(128, dtype=dtype), make(128, dtype=dtype, seed=1),
        make(4, 128, dtype=dtype), make(4, 128, dtype=dtype, seed=2), index, make(4, 256, dtype=dtype),
        *pages, [2, 2, 4, 128], [2, 1, 1],
    )  # fmt: skip


npu_qkv_rms_norm_rope_cache.samples = [
    Sample(lambda make: _inputs(make, torch.float16, torch.float16), {"is_output_qkv": True}),
    Sample(
        lambda make: _inputs(make, torch.bfloat16, torch.int8),
        lambda make: {
            "k_scale": make(1, 128, low=0.01, high=0.03),
            "v_scale": make(1, 128, low=0.01, high=0.03),
            "k_offset": make(1, 128),
            "epsilon": 1e-5,
        },
    ),
]
