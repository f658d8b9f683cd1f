"""npu_rotary_mul and npu_rotary_mul_backward: rotary position embedding of one tensor."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import BadArgument, ErrCode, operator_error
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import SUM, Sharding
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops.rope import _rotate as rope
from torch_npu.ops.rope._layouts import check_rotary, composed


def _check_inputs(operator, self, r1, r2, rotary_mode):
    modes = rope.MODES if chips.current().family == "A5" else ("half", "interleave")
    words = f"The rotary_mode of {operator} should be half or interleave, but got {rotary_mode}"
    must.choice("rotary_mode", rotary_mode, modes, upstream=words)
    must.ndim("self", self, 3, 4)
    allowed = vector_floats()
    for name, tensor in (("self", self), ("r1", r1), ("r2", r2)):
        must.dtype(name, tensor, *allowed)
    must.ndim("r1", r1, self.dim())
    must.shape("r2", r2, tuple(r1.shape))


@npu_op(
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None)"
    " -> Tensor",
    by_shape=True,
    compiled="fuse",
    ge="RotaryPositionEmbedding",
)
def npu_rotary_mul(self, r1, r2, rotary_mode, rotate):
    r"""Rotary position embedding: pairs of elements of the last dimension, turned by an angle.

    $$ y = x \cdot \cos + \mathrm{rot}(x) \cdot \sin $$

    | rotary_mode | rot(x) | chips |
    |---|---|---|
    | half | $(-x_2, x_1)$ of the halves | all |
    | interleave | $(-x_1, x_0, -x_3, x_2, \ldots)$ | A2, A3, Ascend950 |
    | quarter | $(-x_2, x_1, -x_4, x_3)$ of the quarters | Ascend950 |
    | interleave-half | x sorted, even positions first, then as half | Ascend950 |

    With `rotate`, rot(x) is the matrix product of x and `rotate`.

    Args:
        self: x, of layout BNSD, BSND, SBND or TND; float16, bfloat16 or float32. D is even; at most 896
            for half (Ascend950: up to 1024, a multiple of 4 for quarter).
        r1: cos, of the rank of `self`; it is first rounded to the dtype of `self`. Its shape:
            half: BNSD takes 11SD, B1SD, BNSD; BSND takes 1S1D, BS1D, BSND; SBND takes S11D, SB1D,
            SBND; TND takes T1D, 1ND, 11D, TND. With 11SD, B * N is at most 8 * S, where half of D fills
            blocks of 32 bytes; otherwise D is at least 80 or 2 * B * N at most S / (vector cores).
            interleave: 11SD, 1S1D, S11D, T1D, 1ND; for gradients B * N is less than 1000.
            Ascend950: any shape that broadcasts to `self`.
            Atlas training and inference series: 11SD, 1S1D, S11D, B and N up to 1000 where 64 divides D, else any
            that broadcasts; half alone, 4 dimensions.
        r2: sin, of the shape of `r1`.
        rotary_mode: see above.
        rotate: a (D, D) matrix of the dtype of `self` that replaces the rotation; not on Ascend950, nor differentiable.

    Returns:
        y, with the shape and dtype of `self`.

    The page gives [-1, 1] as the range of r1 and r2; it is not verified, since scaled embeddings
    exceed it.
    """
    x, cos, sin = wide(self), wide(r1.to(self.dtype)), wide(r2.to(self.dtype))
    if rotate is not None:
        return (x * cos + (x @ rotate.to(x.dtype)) * sin).to(self.dtype)
    if composed(self):
        turned = (rope.turn(x, rotary_mode) * sin).to(self.dtype)
        return ((x * cos).to(self.dtype) + turned).to(self.dtype)
    return rope.rotate(x, cos, sin, rotary_mode).to(self.dtype)


@npu_rotary_mul.check
def _(self, r1, r2, rotary_mode, rotate):
    _check_inputs("npu_rotary_mul", self, r1, r2, rotary_mode)
    check_rotary(self, r1, rotary_mode, matrix=rotate is not None)
    if rotate is not None:
        family = chips.current().family
        must.hold(family in ("A2", "A3"), "rotate", "None on this chip", tuple(rotate.shape))
        must.same_dtype("rotate", rotate, "self", self)
        must.shape("rotate", rotate, (self.shape[-1], self.shape[-1]))


@npu_rotary_mul.native
def _(self, r1, r2, rotary_mode, rotate):
    if rotate is not None or composed(self) or not floats(self, r1, r2):
        return NotImplemented
    cos, sin = r1.to(self.dtype), r2.to(self.dtype)
    return torch.ops.softnpu.rotary(self, cos, sin, rotary_mode)


@npu_rotary_mul.backward
def _(grad, *, self, r1, r2, rotary_mode, rotate):
    if rotate is not None:
        bad = BadArgument("rotate", "None for backward", tuple(rotate.shape), ErrCode.NOT_SUPPORT)
        raise operator_error("npu_rotary_mul", bad)
    dx, dr1, dr2 = torch.ops.npu.npu_rotary_mul_backward(grad, self, r1, r2, rotary_mode)
    return {"self": dx, "r1": dr1.to(r1.dtype), "r2": dr2.to(r2.dtype)}


@npu_rotary_mul.sharding
def _(self, r1):
    for dim in range(self.ndim - 1):
        angles = None if r1.shape[dim] == 1 else dim
        yield Sharding((dim,), {"self": dim, "r1": angles, "r2": angles})


npu_rotary_mul.samples = [
    Sample(lambda make: (make(2, 3, 5, 64), make(1, 3, 1, 64), make(1, 3, 1, 64))),
    Sample(lambda make: (make(2, 4, 3, 8), make(2, 1, 3, 8), make(2, 1, 3, 8), "half")),
    Sample(
        lambda make: (make(5, 3, 16), make(5, 1, 16), make(5, 1, 16)),
        {"rotary_mode": "interleave"},
    ),
    Sample(
        lambda make: (make(2, 2, 3, 8), make(1, 1, 3, 8), make(1, 1, 3, 8), "half", make(8, 8)),
    ),
    Sample(lambda make: (make(4, 2, 8, dtype=torch.bfloat16), make(4, 1, 8), make(4, 1, 8))),
]


@npu_op(
    "npu_rotary_mul_backward(Tensor grad, Tensor self, Tensor r1, Tensor r2,"
    " str rotary_mode='half') -> (Tensor, Tensor, Tensor)",
    compiled="fuse",
)
def npu_rotary_mul_backward(grad, self, r1, r2, rotary_mode):
    r"""Gradients of `npu_rotary_mul` with respect to self, r1 and r2.

    $$ dx = dy \cdot \cos - \mathrm{rot}(dy \cdot \sin), \quad d\cos = \sum dy \cdot x, \quad
       d\sin = \sum dy \cdot \mathrm{rot}(x) $$

    the sums over the dimensions that cos and sin were broadcast in; in the mode interleave-half x
    is sorted first, and dx is put back in order.

    Args:
        grad: dy, of the shape of `self`.
        self, r1, r2, rotary_mode: as in the forward.

    Returns:
        dx, dr1 and dr2, of the shapes of `self`, `r1` and `r2`, all in the dtype of `self`.
    """
    dy, cos, sin = (wide(t.to(self.dtype)) for t in (grad, r1, r2))
    x = rope.arrange(wide(self), rotary_mode)
    dx = rope.restore(dy * cos - rope.turn(dy * sin, rotary_mode), rotary_mode)
    dcos = (dy * x).sum_to_size(r1.shape)
    dsin = (dy * rope.turn(x, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(self.dtype), dcos.to(self.dtype), dsin.to(self.dtype)


@npu_rotary_mul_backward.check
def _(grad, self, r1, r2, rotary_mode):
    _check_inputs("npu_rotary_mul_backward", self, r1, r2, rotary_mode)
    check_rotary(self, r1, rotary_mode, gradient=True)
    must.dtype("grad", grad, *vector_floats())
    must.shape("grad", grad, tuple(self.shape))


@npu_rotary_mul_backward.native
def _(grad, self, r1, r2, rotary_mode):
    if not floats(grad, self, r1, r2):
        return NotImplemented
    dy, cos, sin = (t.to(self.dtype) for t in (grad, r1, r2))
    return torch.ops.softnpu.rotary_backward(dy, self, cos, sin, rotary_mode)


@npu_rotary_mul_backward.sharding
def _(self, r1):
    for dim in range(self.ndim - 1):
        one = r1.shape[dim] == 1
        given, found = (None, SUM) if one else (dim, dim)
        yield Sharding((dim, found, found), {"grad": dim, "self": dim, "r1": given, "r2": given})


npu_rotary_mul_backward.samples = [
    Sample(lambda make: (make(2, 3, 5, 8), make(2, 3, 5, 8), make(1, 3, 1, 8), make(1, 3, 1, 8))),
    Sample(
        lambda make: (make(5, 3, 16), make(5, 3, 16), make(5, 1, 16), make(5, 1, 16)),
        {"rotary_mode": "interleave"},
    ),
]
