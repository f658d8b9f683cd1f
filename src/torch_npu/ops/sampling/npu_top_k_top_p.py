"""npu_top_k_top_p: keeps the logits that top-k and top-p sampling may choose."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op


def _between(name, tensor, low, high):
    if must.has_data(tensor) and tensor.numel():
        least, most = tensor.min().item(), tensor.max().item()
        received = f"values from {least:g} to {most:g}"
        must.hold(low <= least and most <= high, name, f"from {low} to {high}", received)


@npu_op("npu_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor", infinite=True)
def npu_top_k_top_p(logits, p, k):
    r"""Replaces by -inf each logit that is not among the k largest or in the nucleus of mass p.

    With the logits of a row sorted ascending, $s_0 \le s_1 \le \dots$:

    $$ t_v = \begin{cases} -\infty & s_v < s_{V-k} \\ s_v & \text{else} \end{cases}, \qquad
       o_v = \begin{cases} -\infty & \sum_{u \le v} \mathrm{softmax}(t)_u \le 1 - p
       \ \text{and}\ v < V - 1 \\ t_v & \text{else} \end{cases} $$

    and o is put back into the original order. Ties with the k-th largest logit stay.

    Args:
        logits: (batch, V); float16, bfloat16 or float32.
        p: the mass of the nucleus of each row, (batch,) in the dtype of `logits`, in [0, 1]; None:
            no top-p filter.
        k: how many logits to keep in each row, (batch,) int32; 0 and less, V and more, and None mean no
            top-k filter.

    Returns:
        the filtered logits, with the shape and dtype of `logits`.

    Constraints:
        `p` and `k` must not both be None.
    """
    if logits.numel() == 0:
        return logits.clone()
    ordered, places = logits.sort(dim=-1, stable=True)
    size = logits.shape[1]
    if k is not None:
        # The operator library takes a k out of (0, V) for "no top-k filter".
        wanted = torch.where((k <= 0) | (k >= size), size, k).long()
        least = ordered.gather(1, (size - wanted).unsqueeze(1))
        ordered = ordered.masked_fill(ordered < least, -torch.inf)
    if p is not None:
        mass = wide(ordered).softmax(-1).cumsum(-1)
        outside = mass <= 1 - wide(p).unsqueeze(1)
        last = torch.arange(size, device=logits.device) == size - 1
        ordered = ordered.masked_fill(outside & ~last, -torch.inf)
    return torch.empty_like(ordered).scatter_(1, places, ordered)


@npu_top_k_top_p.check
def _(logits, p, k):
    must.dtype("logits", logits, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("logits", logits, 2)
    batch = logits.shape[0]
    if k is None:
        must.present("p", p, "where 'k' is None")
    must.same_dtype("p", p, "logits", logits)
    must.shape("p", p, (batch,))
    _between("p", p, 0, 1)
    must.dtype("k", k, torch.int32)
    must.shape("k", k, (batch,))


@npu_top_k_top_p.native
def _(logits, p, k):
    plain = fits(logits, p) and (k is None or k.dtype == torch.int32)
    if not plain or logits.numel() == 0:
        return NotImplemented
    return torch.ops.softnpu.top_k_top_p(logits, p, k)


npu_top_k_top_p.samples = [
    Sample(
        lambda make: (
            make(4, 50, low=-5, high=5),
            make(4, low=0),
            make(4, dtype=torch.int32, low=1, high=50),
        )
    ),
    Sample(lambda make: (make(3, 17, dtype=torch.float16), make(3, dtype=torch.float16, low=0))),
    Sample(
        lambda make: (make(3, 40, dtype=torch.bfloat16),),
        lambda make: {"k": make(3, dtype=torch.int32, low=1, high=41)},
    ),
]
