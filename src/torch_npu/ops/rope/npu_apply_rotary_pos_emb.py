"""npu_apply_rotary_pos_emb: rotary embedding of query and key together, in place."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import halves_away, wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops.rope._rotate import divisor, rotate

LAYOUTS = ("BSND", "SBND", "BNSD", "TND")
MODES = ("half", "quarter", "interleave")


def _rotate_in_place(tensor, cos, sin, mode):
    """Turns the leading cos.shape[-1] elements of the last dimension and keeps the others."""
    part = tensor[..., : cos.shape[-1]]
    if chips.current().family == "A5" or part.dtype not in (torch.float16, torch.bfloat16):
        turned = rotate(wide(part), wide(cos), wide(sin), mode)
    elif part.dtype == torch.float16:
        turned = rotate(part, cos, sin, mode)
    else:
        turned = halves_away(rotate(wide(part), wide(cos), wide(sin), mode))
    part.copy_(turned)


@npu_op(
    "npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin,"
    " str layout='BSND', str rotary_mode='half') -> (Tensor, Tensor)"
)
def npu_apply_rotary_pos_emb(query, key, cos, sin, rotary_mode):
    r"""Rotates query and key by the same angles and writes the results over them.

    $$ q \leftarrow q \cdot \cos + \mathrm{rot}(q) \cdot \sin, \qquad
       k \leftarrow k \cdot \cos + \mathrm{rot}(k) \cdot \sin $$

    rot is that of `npu_rotary_mul` in the given mode.

    Args:
        query: of the given layout; float16, float32, and bfloat16 but on Atlas inference series.
            D is 64 or 128 (Ascend950: up to 1024).
        key: as `query` but for the number of heads.
        cos: as `query` with N = 1; D may be smaller, then the leading elements of each head are
            rotated. On Ascend950 B may be 1.
        sin: of the shape of `cos`.
        layout: "BSND" or "TND"; on Ascend950 also "SBND" and "BNSD".
        rotary_mode: "half"; on Ascend950 also "interleave" and, for D a multiple of 4, "quarter".

    Returns:
        `query` and `key` themselves. Upstream's schema does not declare the mutation, so neither
        does this one.

    On A2, A3 and 310P the kernel works in the dtype of float16 (each product rounds) and rounds bfloat16 results with
    halves away from zero; on Ascend950 it rounds fp32 results once.

    As upstream, the operator has no derivative: backward raises.

    Differs from upstream: empty tensors are accepted on every chip.
    """
    _rotate_in_place(query, cos, sin, rotary_mode)
    _rotate_in_place(key, cos, sin, rotary_mode)
    return query, key


@npu_apply_rotary_pos_emb.check
def _(query, key, cos, sin, layout, rotary_mode):
    new = chips.current().family == "A5"
    must.choice("layout", layout, LAYOUTS if new else ("BSND", "TND"))
    must.choice("rotary_mode", rotary_mode, MODES if new else ("half",))
    must.dtype("query", query, *vector_floats())
    for name, tensor in (("query", query), ("key", key), ("cos", cos), ("sin", sin)):
        must.same_dtype(name, tensor, "query", query)
        must.ndim(name, tensor, len(layout))
    wanted = list(query.shape)
    wanted[layout.index("N")] = None
    must.shape("key", key, wanted)
    wanted[layout.index("N")] = 1
    wanted[-1] = None
    if new and "B" in layout and cos.shape[layout.index("B")] == 1:
        wanted[layout.index("B")] = 1
    must.shape("cos", cos, wanted)
    must.shape("sin", sin, tuple(cos.shape))
    size, turned = query.shape[-1], cos.shape[-1]
    must.hold(turned <= size, "cos", f"at most {size} long in its last dimension", turned)
    for name, value in (("query", size), ("cos", turned)):
        fits = value <= 1024 if new else value in (64, 128)
        expected = "up to 1024" if new else "64 or 128"
        must.hold(fits, name, f"{expected} long in its last dimension", value)
    multiple = divisor(rotary_mode)
    must.hold(
        turned % multiple == 0,
        "cos",
        f"a multiple of {multiple} long in its last dimension",
        turned,
    )


@npu_apply_rotary_pos_emb.meta
def _(query, key):
    return torch.empty_like(query), torch.empty_like(key)


@npu_apply_rotary_pos_emb.backward
def _(*grads):
    raise NotImplementedError("derivative for 'npu::npu_apply_rotary_pos_emb' is not implemented")


npu_apply_rotary_pos_emb.samples = [
    Sample(
        lambda make: tuple(make(2, 3, n, 64) for n in (4, 2, 1, 1)),
    ),
    Sample(
        lambda make: tuple(make(5, n, 128, dtype=torch.float16) for n in (2, 1, 1, 1)),
        {"layout": "TND"},
    ),
]
