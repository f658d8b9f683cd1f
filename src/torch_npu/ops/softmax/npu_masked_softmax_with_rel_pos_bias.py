"""npu_masked_softmax_with_rel_pos_bias: the softmax of window attention."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip
from torch_npu.ops._shared._floats import vector_floats


@npu_op(
    "npu_masked_softmax_with_rel_pos_bias(Tensor x, Tensor? atten_mask, Tensor relative_pos_bias, "
    "float scale_value=1.0, int inner_precision_mode=0) -> Tensor"
)
def npu_masked_softmax_with_rel_pos_bias(x, atten_mask, relative_pos_bias, scale_value):
    r"""The softmax of scaled scores with a mask and a bias by relative position, over the last dimension.

    $$ y = \mathrm{softmax}(scale \cdot x + mask + bias) $$

    Args:
        x: (B, W, N, S1, S2), or (B * W, N, S1, S2) without the windows' dimension; float16, float32, and bfloat16 but on
            older series. Not empty; on the Atlas inference series S2 fills whole 32 bytes.
        atten_mask: (W, S1, S2), (W, 1, S1, S2) or (1, W, 1, S1, S2), the dtype of `x`.
        relative_pos_bias: (N, S1, S2), (1, N, S1, S2) or (1, 1, N, S1, S2), the dtype of `x`.
        scale_value: factor of x.
        inner_precision_mode: 0; reserved.

    Returns:
        Like `x`.
    """
    scores = wide(x) * scale_value
    if x.dim() == 4 and atten_mask is not None:  # windows are part of the batch
        windows = _windows(atten_mask)
        scores = scores.unflatten(0, (-1, windows))
    if atten_mask is not None:
        scores = scores + wide(atten_mask).reshape(-1, 1, *x.shape[-2:])
    scores = scores + wide(relative_pos_bias).reshape(-1, *x.shape[-2:])
    return scores.softmax(-1).to(x.dtype).view(x.shape)


def _windows(mask):
    return mask.shape[1] if mask.dim() == 5 else mask.shape[0]


@npu_masked_softmax_with_rel_pos_bias.check
def _(x, atten_mask, relative_pos_bias, inner_precision_mode):
    must.dtype("x", x, *vector_floats())
    must.ndim("x", x, 4, 5)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape), ErrCode.PARAM)
    if _chip.on_310p():
        whole = x.shape[-1] * x.element_size() % 32 == 0
        must.hold(
            whole, "x", "of a last dimension of whole 32 bytes", tuple(x.shape), ErrCode.PARAM
        )
    must.same_dtype("atten_mask", atten_mask, "x", x)
    must.same_dtype("relative_pos_bias", relative_pos_bias, "x", x)
    rows, columns = x.shape[-2:]
    heads = x.shape[-3]
    must.ndim("relative_pos_bias", relative_pos_bias, 3, 5)
    lead = (1,) * (relative_pos_bias.dim() - 3)
    must.shape("relative_pos_bias", relative_pos_bias, (*lead, heads, rows, columns))
    if atten_mask is not None:
        must.ndim("atten_mask", atten_mask, 3, 5)
        windows = _windows(atten_mask)
        shapes = {3: (windows,), 4: (windows, 1), 5: (1, windows, 1)}
        must.shape("atten_mask", atten_mask, (*shapes[atten_mask.dim()], rows, columns))
        fits = x.shape[1] == windows if x.dim() == 5 else windows and x.shape[0] % windows == 0
        expected = "of as many windows as 'x' has"
        must.hold(fits, "atten_mask", expected, tuple(atten_mask.shape), ErrCode.PARAM)
    must.choice("inner_precision_mode", inner_precision_mode, (0,))


npu_masked_softmax_with_rel_pos_bias.samples = [
    Sample(lambda make: (make(1, 2, 3, 4, 4), make(1, 2, 1, 4, 4), make(1, 1, 3, 4, 4))),
    Sample(
        lambda make: (
            make(4, 3, 4, 8, dtype=torch.float16),
            make(2, 4, 8, dtype=torch.float16),
            make(3, 4, 8, dtype=torch.float16),
        ),
        {"scale_value": 0.5},
    ),
    Sample(lambda make: (make(2, 2, 3, 4, 4), None, make(3, 4, 4))),
]
