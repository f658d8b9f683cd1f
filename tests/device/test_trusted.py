"""Gradients and other inner operators of PyTorch, called directly: its kernels trust sizes and indices, the device does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401

aten = torch.ops.aten


def pooled(dims, adaptive):
    """Input, gradient and indices of a max pooling on the CPU, and the operator of its gradient with further arguments."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, *[6] * dims)
    if adaptive:
        y, indices = getattr(F, f"adaptive_max_pool{dims}d")(x, 3, return_indices=True)
        return x, torch.randn_like(y), indices, getattr(aten, f"adaptive_max_pool{dims}d_backward"), ()
    y, indices = getattr(F, f"max_pool{dims}d")(x, 2, return_indices=True)
    window = [2] * dims, [2] * dims, [0] * dims, [1] * dims, False
    return x, torch.randn_like(y), indices, getattr(aten, f"max_pool{dims}d_with_indices_backward"), window


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_indices_of_pooling(dims, adaptive):
    x, grad, indices, backward, window = pooled(dims, adaptive)
    expected = backward(grad, x, *window, indices)
    found = backward(grad.npu(), x.npu(), *window, indices.npu())
    torch.testing.assert_close(found.cpu(), expected)
    for wrong in (6**dims, -2, 2**62):
        spoiled = indices.clone()
        spoiled.view(-1)[5] = wrong
        message = rf"argument 'indices' must hold indices from (0|-1) to {6**dims - 1}, but holds {wrong}"
        with pytest.raises(RuntimeError, match=message):
            backward(grad.npu(), x.npu(), *window, spoiled.npu())
    with pytest.raises(RuntimeError, match="argument 'indices' must have the sizes"):
        backward(grad.npu(), x.npu(), *window, indices[:, :1].npu())
    with pytest.raises(RuntimeError, match="argument 'grad_output' must have the batch"):
        backward(grad[:1].npu(), x.npu(), *window, indices[:1].npu())


def test_indices_with_strides_are_looked_at():
    x, grad, indices, backward, window = pooled(2, adaptive=False)
    wide = torch.stack([indices, indices], -1).npu()
    wide[..., 1] = 2**40  # beside the elements
    found = backward(grad.npu(), x.npu(), *window, wide[..., 0])
    torch.testing.assert_close(found.cpu(), backward(grad, x, *window, indices))
    wide[1, 2, 2, 2, 0] = 36
    with pytest.raises(RuntimeError, match="from -1 to 35, but holds 36"):
        backward(grad.npu(), x.npu(), *window, wide[..., 0])


def test_distances():
    x1, x2 = torch.randn(4, 3), torch.randn(5, 3)
    distances, grad = torch.cdist(x1, x2), torch.randn(4, 5)
    given = [t.npu() for t in (grad, x1, x2)]
    found = aten._cdist_backward(*given, 2.0, distances.npu())
    torch.testing.assert_close(found.cpu(), aten._cdist_backward(grad, x1, x2, 2.0, distances))
    with pytest.raises(RuntimeError, match=r"_cdist_backward: argument 'grad' must have the sizes \[4, 5\]"):
        aten._cdist_backward(given[0][0], *given[1:], 2.0, distances.npu())
    with pytest.raises(RuntimeError, match="argument 'cdist' must have a row for each of 4 rows of 'x1'"):
        aten._cdist_backward(given[0].t(), *given[1:], 2.0, distances.t().npu())


def bags():
    """The arguments of the gradient of embedding_bag: 5 indices into 7 rows, in 3 bags."""
    indices, bag = torch.tensor([1, 4, 6, 0, 2]), torch.tensor([0, 0, 1, 2, 2])
    return [torch.randn(3, 3), indices, bag, torch.tensor([2, 1, 2]), torch.zeros(3, dtype=torch.int64)]


def backward_of_bags(grad, indices, bag, size, most):
    return aten._embedding_bag_dense_backward(grad, indices, bag, size, most, 7, False, 0, None, -1)


def test_embedding_bags():
    given = bags()
    found = backward_of_bags(*[t.npu() for t in given])
    torch.testing.assert_close(found.cpu(), backward_of_bags(*given))


@pytest.mark.parametrize(
    ("which", "value", "said"),
    [
        (1, 7, "argument 'indices' must hold indices from 0 to 6, but holds 7"),
        (1, -1, "argument 'indices' must hold indices from 0 to 6, but holds -1"),
        (2, 3, "argument 'offset2bag' must hold indices from 0 to 2, but holds 3"),
    ],
)
def test_embedding_bags_with_wrong_indices(which, value, said):
    given = [t.npu() for t in bags()]
    given[which][1] = value
    with pytest.raises(RuntimeError, match=said):
        backward_of_bags(*given)


def test_a_replayed_graph_looks_again():
    x, grad, indices, backward, window = (
        t.npu() if isinstance(t, torch.Tensor) else t for t in pooled(2, adaptive=True)
    )
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        backward(grad, x, *window, indices)
    graph.replay()
    indices.fill_(1000)
    with pytest.raises(RuntimeError, match="must hold indices from 0 to 35, but holds 1000"):
        graph.replay()
        torch.npu.synchronize()
