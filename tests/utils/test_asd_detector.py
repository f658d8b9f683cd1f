"""torch_npu.utils.register_asd_hook and set_asd_loss_scale: accepted, without a hook on the activation."""

from __future__ import annotations

import pytest
import torch

import torch_npu


def test_no_hook_is_registered_with_the_later_versions_of_the_check():
    assert torch_npu._C._get_silent_check_version() > 1
    weight = torch.ones(3, device="npu", requires_grad=True)
    x = weight * 2
    torch_npu.utils.set_asd_loss_scale(1024.0)
    torch_npu.utils.register_asd_hook(x, weight)
    torch_npu.utils.register_asd_hook(None, weight)
    assert not x._backward_hooks
    x.sum().backward()
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_other_types_are_refused():
    weight = torch.ones(3, device="npu")
    with pytest.raises(TypeError, match="loss_scale must be a number, but received str"):
        torch_npu.utils.set_asd_loss_scale("1")
    with pytest.raises(TypeError, match="x must be a Tensor, but received list"):
        torch_npu.utils.register_asd_hook([1.0], weight)
