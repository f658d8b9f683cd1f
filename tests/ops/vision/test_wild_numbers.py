"""Boxes of NaN and of infinities: the card computes something, so nothing is refused here either."""

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map_only

import torch_npu  # noqa: F401  (registers the operators)
from tests.ops.support import make
from torch_npu.ops._registry import operators

VISION = sorted(name for name, o in operators.items() if o.folder == "vision" and o.samples)


def wild(tensor, value):
    """Every third number replaced, but for the images that regions name and for thresholds."""
    if not tensor.is_floating_point() or tensor.dim() == 0:
        return tensor
    found = tensor.clone()
    found.view(-1)[1::3] = value
    if tensor.dim() > 1 and tensor.shape[1] == 5:
        found[:, 0] = tensor[:, 0]
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -7.0])
@pytest.mark.parametrize("name", VISION)
def test_nothing_is_refused(name, value):
    operator = operators[name]
    for sample in operator.samples:
        args, kwargs = sample.inputs(make)
        given = tree_map_only(torch.Tensor, lambda t: wild(t, value), args)
        plain, found = (tree_flatten(operator(*a, **kwargs))[0] for a in (args, given))
        assert [t.dtype for t in found] == [t.dtype for t in plain]
