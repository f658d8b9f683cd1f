"""The CTC loss and its gradient: PyTorch's kernels trust classes and lengths, the device does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401

aten = torch.ops.aten


def ctc(log_probs, targets, inputs=(5, 4), counts=(2, 1), **options):
    return F.ctc_loss(log_probs, targets, inputs, counts, **options)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("tensors", [False, True])
def test_classes_of_the_ctc_loss(joined, tensors):
    """Only those that the lengths say: what follows in a row is padding."""
    x = torch.randn(5, 2, 4).log_softmax(-1)
    targets = torch.tensor([1, 3, 2]) if joined else torch.tensor([[1, 3, 99], [2, -7, 2**40]])
    lengths = torch.tensor([5, 4]), torch.tensor([2, 1])
    lengths = lengths if tensors else tuple(one.tolist() for one in lengths)
    torch.testing.assert_close(
        ctc(x.npu(), targets.npu(), *lengths).cpu(), ctc(x, targets, *lengths)
    )
    for wrong in (4, -1, 2**40):
        spoiled = targets.clone()
        spoiled.view(-1)[1] = wrong
        with pytest.raises(
            RuntimeError, match=f"'targets' must hold classes from 0 to 3, but holds {wrong}$"
        ):
            ctc(x.npu(), spoiled.npu(), *lengths)


def test_the_gradient_of_the_ctc_loss():
    x = torch.randn(5, 2, 4).log_softmax(-1)
    targets = torch.tensor([[1, 3], [2, 1]])
    given = [x, targets, [5, 4], [2, 1]]
    loss, alpha = aten._ctc_loss(*given)
    grad = torch.ones(2)

    def backward(
        grad=grad, loss=loss, alpha=alpha, x=x, targets=targets, inputs=(5, 4), counts=(2, 1)
    ):
        tensors = [one.to(device) for one in (grad, x, targets, loss, alpha)]
        return aten._ctc_loss_backward(*tensors[:3], inputs, counts, *tensors[3:], 0)

    device = "cpu"
    expected = backward()
    device = "npu"
    torch.testing.assert_close(backward().cpu(), expected)
    wrong = {
        "'grad' must have the sizes": {"grad": grad[:1]},
        "'neg_log_likelihood' must have the sizes": {"loss": loss[:1]},
        "'log_alpha' must have the sizes": {"alpha": alpha[:1]},
        "'log_alpha' must have two columns": {"alpha": alpha[..., :3].contiguous()},
        "'targets' must hold classes": {"targets": targets + 9},
        "'targets' must have 2 rows": {"targets": targets[:1]},
        "'input_lengths' must hold lengths from 0 to 5": {"inputs": (5, 6)},
        "'input_lengths' must have a length for each of 2": {"inputs": (5,)},
        "'target_lengths' must hold lengths from 0 to 2, but holds -1": {"counts": (-1, 1)},
    }
    for message, changed in wrong.items():
        with pytest.raises(RuntimeError, match=f"aten::_ctc_loss_backward: argument {message}"):
            backward(**changed)
    with pytest.raises(RuntimeError, match="'targets' must have the 3 elements"):
        backward(targets=torch.tensor([1, 3]))
