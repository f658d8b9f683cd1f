"""What npu_max and npu_min share."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared._indices import inside


def check_dim(self, dim):
    """`dim` is one of the tensor's dimensions, and there is something to choose from."""
    must.hold(not self.is_complex(), "self", "a real tensor", self.dtype, ErrCode.TYPE)
    count = max(self.dim(), 1)
    must.hold(-count <= dim < count, "dim", f"within [{-count}, {count - 1}]", dim)
    must.hold(
        self.dim() == 0 or self.size(dim) > 0, "self", "not empty along 'dim'", tuple(self.shape)
    )


def extreme(choose, x, dim, keepdim):
    """The values that torch.max or torch.min chooses, and the indices in int32."""
    values, indices = choose(x, dim, keepdim)
    return values, indices.to(torch.int32)


def _kept(sizes, dim, keepdim):
    """The shape of the reduced tensor."""
    dim = dim % max(len(sizes), 1)
    return tuple(1 if i == dim else s for i, s in enumerate(sizes) if keepdim or i != dim)


def check_gradient(grad, dim, indices, sizes, keepdim):
    """The gradient and the indices have the shape of the reduced tensor."""
    count = max(len(sizes), 1)
    must.hold(-count <= dim < count, "dim", f"within [{-count}, {count - 1}]", dim)
    must.shape("grad", grad, _kept(sizes, dim, keepdim))
    must.shape("indices", indices, tuple(grad.shape))
    must.dtype("indices", indices, torch.int32, torch.int64)
    inside("indices", indices, sizes[dim] if len(sizes) else 1)


def gradient(grad, dim, indices, sizes, keepdim):
    """The gradient at the chosen places of a tensor of `sizes`, zeros elsewhere."""
    if len(sizes) == 0:
        return grad.clone()
    if not keepdim:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    zeros = torch.zeros(sizes, dtype=grad.dtype, device=grad.device)
    return zeros.scatter(dim, indices.long(), grad)
